"""How well a student does on files with true labels, and what of them does not count."""

from __future__ import annotations

import numpy as np

from pate_fed.cli.evaluation import AccuracyTally

NONE = np.empty(0, dtype=np.int64)


def test_files_add_up_and_what_taught_the_student_is_left_out() -> None:
    tally = AccuracyTally(["no", "yes"])
    assert tally.lines() == [] and tally.to_dict() == {}
    truth = np.array([0, 0, 1, 1])
    tally.add([0, 1, 1, 1], truth, np.array([1]))  # the wrong one taught it
    tally.add([0, 0], np.array([1, -1]), NONE)  # of the second nothing is known
    found = tally.to_dict()
    assert (found["n"], found["accuracy"], found["left_out"]) == (4, 0.75, 1)
    assert {name: each["n"] for name, each in found["recall"].items()} == {"no": 1, "yes": 3}
    assert any("left out of it: 1 " in line for line in tally.lines())
    assert truth.tolist() == [0, 0, 1, 1]
