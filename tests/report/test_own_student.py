"""A run's student of the user's own: no code but that which is named and which ran."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from saved_runs import LABELS, RECORD, events, save_run

from pate_fed.errors import InputError, IntegrityError
from pate_fed.report.run import Run
from pate_fed.structure.parts import part_identity

NAME = "own_parts:GeometricMax"
PART = part_identity(NAME, "student")


def _run(folder: Path, **changes: Any) -> Run:
    record = replace(RECORD, **{"student": NAME, "student_part": PART} | changes)
    return Run.load(save_run(folder, events(record)))


def test_code_of_another_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"the student of .* is {NAME}"):
        _run(tmp_path / "run").student_from("own_parts:Picky")
    ours = _run(tmp_path / "ours", student="co-teaching", student_part=None)
    with pytest.raises(InputError, match="is co-teaching"):
        ours.student_from(NAME)
    labels = Run.load(save_run(tmp_path / "labels", events(LABELS)))
    with pytest.raises(InputError, match="the student of"):
        labels.student_from(NAME)


def test_code_that_has_changed_since_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="0" * 64):
        _run(tmp_path / "run", student_part=replace(PART, digest="0" * 64)).student_from(NAME)


def test_what_fits_is_no_network_whose_weights_were_kept(tmp_path: Path) -> None:
    class First:
        def fit(self, x: Any, y: Any) -> First:
            return self

        def predict_proba(self, x: Any) -> Any:
            return [[1.0, 0.0, 0.0]] * len(x)

        def predict(self, x: Any) -> Any:
            return [0] * len(x)

    with pytest.raises(InputError, match=r"fits, and the one of .* is a network, whose weights are kept"):
        _run(tmp_path / "run").student_from(First())
