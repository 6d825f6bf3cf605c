"""`pate-fed demo`: four hospitals ready to run, and run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pate_fed.cli import demo
from pate_fed.cli.main import main


def test_a_demonstration_that_waits_is_run_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Any
) -> None:
    seen: list[demo.Demo] = []
    monkeypatch.setattr(demo, "run_demo", lambda made: seen.append(made) or 0)
    folder = tmp_path / "demo"
    command = ("demo", "hospitals", str(folder))
    code, out, _ = run(*command)
    assert code == 0 and out.count("python -m pate_fed.client --hospital") == 4
    key = (folder / "authority" / "ca.key").read_bytes()
    assert run(*command, "--run")[0] == 0  # the README's two lines, one after the other
    assert [made.folder for made in seen] == [folder]
    assert (folder / "authority" / "ca.key").read_bytes() == key
    (folder / "run").mkdir()
    code, _, err = run(*command, "--run")
    assert code == 2 and "holds a study already" in err


@pytest.mark.slow
def test_the_demonstration_runs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "hospitals", str(tmp_path / "demo"), "--run"]) == 0
    out = capfd.readouterr().out
    assert "SUCCESS  ε=" in out
    for name in ("north", "east", "south", "west"):
        assert "SUCCESS" in (tmp_path / "demo" / f"{name}.log").read_text(encoding="utf-8").splitlines()[-1]
