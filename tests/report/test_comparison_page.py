"""Accuracy against ε: repeats as one point, with an interval that never says more than was seen."""

from __future__ import annotations

from pathlib import Path

from saved_runs import events, make_outcome, save_run

from pate_fed.format import wilson_interval
from pate_fed.report.comparison import RunToCompare, load_run
from pate_fed.report.comparison_page import accuracy_against_epsilon


def _runs(folder: Path, *rights: int, group: str) -> list[RunToCompare]:
    paths = [
        save_run(folder / f"{group}-{place}", events(outcome=make_outcome(right=right)))
        for place, right in enumerate(rights)
    ]
    return [load_run(path, name=path.name, group=group) for path in paths]


def test_equal_repeats_keep_the_interval_of_their_test_inputs(tmp_path: Path) -> None:
    figure = accuracy_against_epsilon(_runs(tmp_path, 450, 450, group="a"))
    assert figure is not None
    low, high = wilson_interval(0.9, 500)
    assert figure.rows == (("a", "3.5", "90.0 %", f"{100 * low:.0f} to {100 * high:.0f} %", "2"),)


def test_repeats_that_differ_widen_it(tmp_path: Path) -> None:
    """Two shares 0.8 and 0.9: Student's half is 12.706 * 0.0707 / sqrt(2) = 0.635."""
    figure = accuracy_against_epsilon(_runs(tmp_path, 400, 450, group="a"))
    assert figure is not None and figure.rows[0][2:] == ("85.0 %", "21 to 100 %", "2")


def test_a_run_alone_is_no_comparison_and_cut_off_runs_are_counted(tmp_path: Path) -> None:
    one = _runs(tmp_path, 450, group="a")
    assert accuracy_against_epsilon(one) is None
    cut = load_run(save_run(tmp_path / "cut", events()[:4]), name="cut")
    figure = accuracy_against_epsilon([*one, *_runs(tmp_path, 400, group="b"), cut])
    assert figure is not None and "Without 1 of 3 runs" in figure.caption and len(figure.rows) == 2
