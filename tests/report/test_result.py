"""What a run found: counts behind the figures, samples, epochs, outcomes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest

from pate_fed.errors import InputError
from pate_fed.report.result import (
    Epoch,
    Outcome,
    Samples,
    count_confusion,
    count_top_votes,
)


def test_samples_are_images_and_few() -> None:
    assert len(Samples(images=np.zeros((100, 2, 2, 3), np.uint8)).images) == 64
    for wrong in (np.zeros((4, 2, 2)), np.zeros((4, 2, 2, 2), np.uint8), np.zeros((4, 2, 2, 1))):
        with pytest.raises(InputError, match="uint8"):
            Samples(images=wrong)


def test_confusion_counts_answered_queries_only() -> None:
    truth, label = np.array([0, 0, 1, 2, 2]), np.array([0, 1, -1, 2, 0])
    assert count_confusion(truth, label, num_classes=3) == ((1, 1, 0), (0, 0, 0), (1, 0, 1))
    assert count_confusion(truth[:0], label[:0], num_classes=2) == ((0, 0), (0, 0))
    with pytest.raises(InputError, match="from 0 to 1"):
        count_confusion(truth, label, num_classes=2)
    with pytest.raises(InputError, match="one each"):
        count_confusion(truth, label[:2], num_classes=3)


@pytest.mark.parametrize("teachers", [1, 3, 50, 250, 6250])
def test_top_votes_count_every_query_once(teachers: int) -> None:
    rng = np.random.default_rng(teachers)
    totals = rng.multinomial(teachers, [0.5, 0.3, 0.2], size=200)
    totals[0] = (teachers, 0, 0)
    answered = rng.random(200) < 0.4
    found = count_top_votes(totals, answered, num_teachers=teachers)
    edges = found["top_edges"]
    assert len(edges) == len(found["top_answered"]) + 1 == len(found["top_refused"]) + 1 <= 51
    assert edges[0] == 0 and edges[-1] > teachers
    assert (sum(found["top_answered"]), sum(found["top_refused"])) == (answered.sum(), (~answered).sum())
    top = totals.max(axis=1)
    first = int(((top >= edges[0]) & (top < edges[1]) & answered).sum())
    assert found["top_answered"][0] == first
    assert math.isclose(edges[1] - edges[0], edges[-1] - edges[-2])


def test_top_votes_need_one_bit_a_query() -> None:
    with pytest.raises(InputError, match="one bit"):
        count_top_votes(np.zeros((3, 2), np.int64), np.zeros(2, bool), num_teachers=5)


def test_an_epoch_is_made_of_any_record() -> None:
    @dataclass
    class Record:
        epoch: int = 3
        losses: tuple[float, float] = (0.5, 0.25)
        broken: float = float("nan")
        name: str = "x"
        test_accuracy: float | None = 0.75

    epoch = Epoch.of(Record())
    assert epoch == Epoch(epoch=3, test_accuracy=0.75, values={"losses 1": 0.5, "losses 2": 0.25})
    with pytest.raises(InputError, match="epoch"):
        Epoch.of(object())


def test_an_outcome_has_a_known_status() -> None:
    with pytest.raises(InputError, match="finished"):
        Outcome(status="finished")
