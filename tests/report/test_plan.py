"""The picture of a plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from pate_fed.errors import InputError
from pate_fed.report.plan import draw_plan


def test_a_plan_is_drawn_or_the_error_names_the_option(tmp_path: Path) -> None:
    curve = [
        {"epsilon": 1.0, "labels": 10, "right_share": 0.9},
        {"epsilon": 2.0, "labels": 0, "right_share": None},
    ]
    plan = {
        "curve": curve,
        "epsilon": 1.5,
        "delta": 1e-5,
        "unit": "record",
        "num_teachers": 9,
        "num_classes": 2,
    }
    draw_plan(plan, tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InputError, match=r"--picture .*nowhere"):
        draw_plan(plan, tmp_path / "nowhere" / "plan.png")
