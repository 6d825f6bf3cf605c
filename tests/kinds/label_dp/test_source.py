"""A source puts every release on record before it is learnt from, and never draws one twice."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pate_fed.kinds.label_dp.release import PrivateLabels
from pate_fed.kinds.label_dp.source import LabelsInOnePlace, Record, Released
from pate_fed.privacy import LedgerTerms, SeededNoise
from pate_fed.privacy.protection import LABEL

TRUTH = np.arange(40) % 4


class _OnDisk(Record):
    """Gives what is there already back, and notes what came."""

    def __init__(self) -> None:
        self.drawn: list[LedgerTerms] = []
        self.there: Released | None = None

    def release(self, terms: LedgerTerms, draw: Callable[[], Released], *, stage: int = 0) -> Released:
        if self.there is None:
            self.there = draw()
            self.drawn.append(terms)
        return self.there


def _responses(source: LabelsInOnePlace) -> PrivateLabels:
    return source.respond(2.0)


def _counts(source: LabelsInOnePlace) -> PrivateLabels:
    return source.count(TRUTH, 4, epsilon=3.0, delta=1e-5)


@pytest.mark.parametrize("ask", [_responses, _counts])
def test_what_is_on_record_is_what_is_learnt_from_and_nothing_is_drawn_again(
    ask: Callable[[LabelsInOnePlace], PrivateLabels],
) -> None:
    record = _OnDisk()
    first = ask(LabelsInOnePlace(truth=TRUTH, num_classes=4, noise=SeededNoise(0), record=record))
    again = ask(LabelsInOnePlace(truth=TRUTH, num_classes=4, noise=SeededNoise(1), record=record))
    [terms] = record.drawn
    assert record.there is not None
    np.testing.assert_array_equal(first.label, record.there.label)
    np.testing.assert_array_equal(again.label, record.there.label)
    assert (terms.most_asked, terms.most_answered, terms.protection) == (40, 40, LABEL)
    assert not terms.private  # the noise is seeded


def test_only_counts_tell_their_noise() -> None:
    source = LabelsInOnePlace(truth=TRUTH, num_classes=4, noise=SeededNoise(0), record=Record())
    _responses(source)
    assert source.sigma is None
    _counts(source)
    assert source.sigma is not None and source.sigma > 0


def test_a_release_about_some_records_tells_nothing_of_the_others() -> None:
    some = Released(index=np.array([4, 1]), label=np.array([2, -1]))
    assert some.everywhere(6).tolist() == [-1, -1, -1, -1, 2, -1]
    assert Released.of_all(TRUTH).everywhere(40).tolist() == TRUTH.tolist()
