"""Runs of a sweep side by side: how many at once, and what ends them."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from builders import SMALL_STUDY, vary

from pate_fed.cli import sweep
from pate_fed.cli.sweep import combine
from pate_fed.config.study import Study

CHILD = """
import pathlib, sys, time
study, folder = map(pathlib.Path, sys.argv[1:3])
folder.mkdir(parents=True)
(folder / "began").touch()
text = study.read_text()
if "sigma2 = 8.0" in text:
    print("a word before\\ntoo few hospitals", file=sys.stderr)
    sys.exit(4)
if "sigma2 = 9.0" in text:
    time.sleep(60)
end = time.monotonic() + 60
while "sigma2 = 2.0" in text and not (folder.parent / "sigma2-8.0" / "began").exists():
    if time.monotonic() > end:
        sys.exit("ran alone")
    time.sleep(0.01)
(folder / "ended").touch()
"""


@pytest.fixture
def children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs that only wait, as processes; the folder where theirs go."""
    (tmp_path / "sleeping_child.py").write_text(CHILD, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(sweep, "CHILD", "sleeping_child")
    return tmp_path / "runs"


def _jobs(folder: Path, *sigmas: float) -> dict[Path, Study]:
    values = tomllib.loads(SMALL_STUDY)
    found = combine(values, [f"aggregation.sigma2={','.join(map(str, sigmas))}"], seeds=None, where="x")
    return {folder / each.folder: each.study for each in found}


def test_as_many_run_at_once_as_are_meant_and_one_that_fails_stops_no_other(children: Path) -> None:
    told: list[tuple[str, str]] = []
    sweep.run_side_by_side(
        _jobs(children, 2.0, 8.0, 4.0),
        at_once=2,
        begin=lambda place: told.append(("begins", place.name)),
        end=lambda place, error: told.append((f"{error}", place.name)),
    )
    assert told[:2] == [("begins", "sigma2-2.0"), ("begins", "sigma2-8.0")]
    assert ("too few hospitals", "sigma2-8.0") in told and ("None", "sigma2-4.0") in told
    assert told[2][0] != "begins"
    assert ("None", "sigma2-2.0") in told  # whose run waited until the one beside it had begun


def test_an_interruption_ends_all_that_run(children: Path) -> None:
    def begin(place: Path) -> None:
        if place.name == "sigma2-2.0":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep.run_side_by_side(
            _jobs(children, 9.0, 2.0), at_once=2, begin=begin, end=lambda place, error: None
        )
    assert not (children / "sigma2-9.0" / "ended").exists()


def test_runs_that_take_every_core_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pate_fed.cli.sweep.cores", lambda: 3)
    monkeypatch.setattr(sweep, "_MEMORY", 1)
    on_cpu = [vary(each, device="cpu") for each in _jobs(Path("x"), 1.0, 2.0, 3.0, 4.0).values()]
    assert sweep.most_at_once(on_cpu) == 3 and sweep.most_at_once(on_cpu[:2]) == 2
    assert sweep.most_at_once([vary(each, backend="ray") for each in on_cpu]) == 1
    monkeypatch.setattr(sweep, "_MEMORY", 2**60)
    assert sweep.most_at_once(on_cpu) == 1
