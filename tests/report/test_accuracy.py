"""Accuracies with their numbers, intervals and guesses; balanced accuracy and recall by class."""

from __future__ import annotations

import numpy as np
import pytest

from pate_fed.report.accuracy import Accuracy, HowTested

TRUTH = np.array([0] * 60 + [1] * 40)


def test_a_student_is_held_against_the_most_frequent_class() -> None:
    better = Accuracy.of_student(np.where(np.arange(100) < 90, TRUTH, 1 - TRUTH), TRUTH)
    assert (better.student, better.student_n, better.majority) == (0.9, 100, 0.6)
    assert better.warnings() == []
    worse, missed = Accuracy.of_student(np.zeros(100, dtype=np.int64), TRUTH).warnings(
        "no yes".split().__getitem__
    )
    assert "no better than a guess" in worse and "60 %" in worse
    assert "finds none" in missed and "yes (40)" in missed


def test_a_student_that_finds_a_rare_class_is_not_called_a_guess() -> None:
    """90 of 100 are of one class; the student is right in 80 of these, and finds 9 of the 10 others."""
    truth = np.array([0] * 900 + [1] * 100)
    said = np.where(np.arange(1000) < 720, 0, 1)
    said[990:] = 0
    (told,) = Accuracy.of_student(said, truth).warnings()
    assert told.startswith("Always saying the most frequent class is right in 90") and "balanced" in told
    assert "85 %" in told and "guess" not in told


def test_a_student_whose_interval_reaches_down_to_the_guess_is_warned_of() -> None:
    """66 of 100 where a guess has 60: the old code compared the shares alone and was silent."""
    found = Accuracy.of_student(np.where(np.arange(100) < 66, TRUTH, 1 - TRUTH), TRUTH)
    assert found.student == 0.66
    (maybe,) = found.warnings()
    assert "may be no better than a guess" in maybe and "56 %" in maybe
    sure = Accuracy.of_student(np.where(np.arange(100) < 75, TRUTH, 1 - TRUTH), TRUTH)
    assert sure.warnings() == []


def test_of_one_class_alone_no_guess_is_named() -> None:
    alone = np.zeros(120, dtype=np.int64)
    for found in (alone, np.arange(120) % 2):
        (told,) = Accuracy.of_student(found, alone).warnings()
        assert told.startswith("All test inputs are of one class") and "guess" not in told


def test_few_test_inputs_are_warned_of() -> None:
    (few,) = Accuracy.of_student(TRUTH[20:119], TRUTH[20:119]).warnings()
    assert "80 test inputs only" in few
    assert Accuracy.of_student(TRUTH, TRUTH).warnings() == []


def test_inputs_without_a_true_label_do_not_count() -> None:
    for truth in (np.array([], dtype=np.int64), np.array([-1, -1])):
        found = Accuracy.of_student(np.ones_like(truth), truth)
        assert found == Accuracy() and found.student_interval is None and found.warnings() == []
    part = Accuracy.of_student(np.array([1, 0, 1, -1]), np.array([1, -1, 0, 0]))
    assert (part.student, part.student_n, part.by_class) == (0.5, 2, ((0, 1), (1, 1)))


def test_rare_classes_count_as_much_as_frequent_ones() -> None:
    truth = np.array([0] * 90 + [2] * 10)
    told = np.zeros(100, dtype=np.int64)
    told[95:] = 2
    found = Accuracy.of_student(told, truth)
    assert found.student == 0.95 and found.balanced_accuracy == 0.75
    assert [(each.number, each.share, each.count) for each in found.recall] == [(0, 1.0, 90), (2, 0.5, 10)]
    assert found.weakest is not None and found.weakest.number == 2


def test_the_balanced_interval_covers() -> None:
    """Drawn 2,000 times: MOVER of Wilson's holds its 95 %, where the plain interval's would be far off."""
    rng, recall, counts = np.random.default_rng(0), np.array([0.95, 0.6]), np.array([180, 12])
    inside = 0
    for _ in range(2000):
        right = rng.binomial(counts, recall)
        found = Accuracy(by_class=tuple(zip(right.tolist(), counts.tolist(), strict=True)))
        interval = found.balanced_interval
        assert interval is not None and interval[0] <= (found.balanced_accuracy or 0) <= interval[1]
        inside += interval[0] <= recall.mean() <= interval[1]
    assert inside / 2000 == pytest.approx(0.95, abs=0.025)


def test_what_tested_the_student_is_said() -> None:
    tested = HowTested(kept=19, not_asked=3, left_out=167, splits=10, seen_unlabelled=170)
    text = Accuracy(tested=tested).how_tested("rows", made_of="")
    for part in ("19 that are kept", "3 that were not asked", "167 that were asked", "in 10 parts", "Of 170"):
        assert part in text
    assert Accuracy().how_tested("rows", made_of="") == ""


def test_of_class_sums_no_input_was_asked_about() -> None:
    tested = HowTested(kept=46, not_asked=94, left_out=7, splits=7)
    text = Accuracy(tested=tested).how_tested("rows", made_of="the sums")
    assert "46 that are kept" in text and "94 whose labels were made of the sums" in text
    assert "7 whose labels were made of the sums, each by a student" in text
    assert " asked" not in text
