"""A run under way as rows: its phase, labels by class, and whether it is over."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from saved_runs import RECORD, SUMS, events, make_outcome, save_run

from pate_fed.errors import IntegrityError
from pate_fed.privacy import GNMax, Ledger, LedgerTerms, Protection, SeededNoise
from pate_fed.report.watching import describe_event, labels_by_class, read_snapshot, snapshot_rows, sparkline


def _phases(folder: Path) -> str:
    now = read_snapshot(folder)
    assert now is not None
    return dict(snapshot_rows(now))["phases"]


@pytest.mark.parametrize(
    ("count", "phase"), [(1, "▶ get ready"), (3, "▶ answer"), (4, "▶ release"), (8, "▶ learn")]
)
def test_phases(tmp_path: Path, count: int, phase: str) -> None:
    told = _phases(save_run(tmp_path / "run", events()[:count]))
    assert told.count("▶") == 1 and phase in told
    assert "▶" not in _phases(save_run(tmp_path / "over", events()))


def test_labels_by_class_are_those_of_the_ledger_until_they_have_a_file(tmp_path: Path) -> None:
    """Of inputs without a true label there is no confusion matrix to take them from."""
    now = read_snapshot(save_run(tmp_path / "run", events()[:5]))
    assert now is not None and labels_by_class(now) == []  # no ledger either
    folder = save_run(tmp_path / "again", events()[:5])
    noise, mechanism = SeededNoise(5), GNMax(num_teachers=10, num_classes=3, sigma=5.0)
    terms = LedgerTerms(
        study_digest="0" * 64,
        delta=1e-5,
        mechanisms=(mechanism,),
        protection=Protection(),
        noise=noise.kind,
        private=noise.private,
    )
    with Ledger.create(folder / "ledger.sqlite", terms) as ledger:
        release = mechanism.release(np.array([[9, 1, 0], [0, 0, 10], [0, 9, 1]]), noise)
        ledger.charge(
            release.event,
            batch_digest="0" * 64,
            index=np.arange(3),
            answered=release.answered,
            label=release.label,
        )
        now = read_snapshot(folder)
        assert now is not None
        assert labels_by_class(now) == np.bincount(release.label, minlength=3).tolist()


def test_a_study_that_goes_on_after_a_failure_is_not_over(tmp_path: Path) -> None:
    told = [*events(), RECORD]
    now = read_snapshot(save_run(tmp_path / "run", told))
    assert now is not None and not now.over
    again = read_snapshot(save_run(tmp_path / "again", [*told, make_outcome()]))
    assert again is not None and again.over


def test_the_curve_keeps_its_last_value() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█" and sparkline([0.3, 0.3]) == "▁▁"
    long = sparkline([place / 100 for place in range(101)])
    assert len(long) == 40 and long[-1] == "█"


def test_features_of_class_sums_are_no_queries(tmp_path: Path) -> None:
    now = read_snapshot(save_run(tmp_path / "run", events(SUMS)[:4]))
    assert now is not None
    for told in (describe_event(now.told[3], now) or "", dict(snapshot_rows(now))["answered"]):
        assert "9 hospitals, sums of 200 features, " in told and "quer" not in told


def test_a_log_whose_study_is_damaged_is_not_waited_for(tmp_path: Path) -> None:
    """One that is only begun is; the last line of a log may be half written."""
    log = save_run(tmp_path / "run", events()[:3]) / "log.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text(lines[0][:50])
    assert read_snapshot(log.parent) is None
    log.write_text(lines[0][:50] + "\n" + lines[1])
    with pytest.raises(IntegrityError, match=r"log\.jsonl: is damaged: the study, with which it begins"):
        read_snapshot(log.parent)
