"""Vote totals and predictions: what is refused before any noise is drawn, and ties."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from pate_fed.errors import InputError
from pate_fed.privacy import ConfidentGNMax, GNMax, InteractiveGNMax, LNMax, SeededNoise
from pate_fed.privacy.mechanisms.events import SECURE_SUM

REST: dict[str, Any] = {"num_teachers": 100, "num_classes": 3}


STILL = 1e-6  # A noise scale at which no draw differs from 0.


CONFIDENT = ConfidentGNMax(**REST, threshold=60, sigma1=STILL, sigma2=STILL)


def always() -> list[Any]:
    """Mechanisms that answer every query."""
    return [LNMax(**REST, scale=STILL), GNMax(**REST, sigma=STILL)]


class NoDraws:
    """A source that must not be asked."""

    kind, private = "none", True

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was drawn")


@pytest.mark.parametrize("mechanism", [*always(), replace(CONFIDENT, threshold=-50)], ids=lambda m: m.name)
def test_ties_are_broken_without_a_preference(mechanism: Any) -> None:
    totals = np.tile([40, 20, 40], (6000, 1))
    wins = np.bincount(mechanism.release(totals, SeededNoise(1)).label, minlength=3)
    assert wins[1] == 0
    assert stats.binomtest(int(wins[0]), 6000).pvalue > 1e-6


BAD_TOTALS: dict[str, Any] = {
    "negative": [[101, -1, 0]],
    "fractional": [[50.5, 49.5, 0.0]],
    "whole floats": [[50.0, 50.0, 0.0]],
    "NaN": [[np.nan, 50, 0]],
    "truth values": [[True, False, True]],
    "text": [["50", "50", "0"]],
    "not rectangular": [[50, 50, 0], [50, 50]],
    "one row": [50, 50, 0],
    "too few classes": [[50, 50]],
    "too many classes": [[50, 50, 0, 0]],
    "one class": [[100]],
    "three axes": [[[50, 50, 0]]],
    "more votes than teachers": [[101, 0, 0]],
    "votes that wrap around": [[2**63 - 1, 2**63 - 1, 102]],
    "unsigned beyond 64 bits": np.array([[2**64 - 1, 0, 0]], dtype=np.uint64),
    "beyond any integer": [[2**70, 0, 0]],
    "nothing": None,
}


@pytest.mark.parametrize("totals", BAD_TOTALS.values(), ids=BAD_TOTALS.keys())
@pytest.mark.parametrize("mechanism", [*always(), CONFIDENT], ids=lambda m: m.name)
def test_bad_totals_are_refused_before_any_noise_is_drawn(mechanism: Any, totals: Any) -> None:
    with pytest.raises(InputError) as caught:
        mechanism.release(totals, NoDraws())
    assert "50" not in str(caught.value)


def test_rows_below_the_number_of_teachers_are_fine_as_hospitals_may_fail() -> None:
    assert GNMax(**REST, sigma=STILL).release([[3, 9, 0], [0, 0, 0]], SeededNoise(0)).label[0] == 1


@pytest.mark.parametrize("mechanism", [*always(), CONFIDENT], ids=lambda m: m.name)
def test_rows_above_it_tell_of_a_liar_under_masks_and_are_no_reason_to_stop(mechanism: Any) -> None:
    masked = {"coordinator": SECURE_SUM}
    assert mechanism.release([[60, 90, 0]], SeededNoise(0), **masked).asked == 1
    with pytest.raises(InputError, match="more votes than the 100 teachers in all"):
        mechanism.release([[60, 41, 0]], NoDraws())  # each hospital's votes were seen, and none was false


INTERACTIVE = InteractiveGNMax(**REST, threshold=40, sigma1=STILL, sigma2=STILL, confidence=0.9)


@pytest.mark.parametrize(
    "predictions",
    [
        [[0.5, 0.5]],
        [0.2, 0.3, 0.5],
        [[0.2, 0.3, 0.6]],
        [[np.nan, 0.5, 0.5]],
        [[-0.1, 0.6, 0.5]],
        [[1.1, -0.1, 0.0]],
        [["a", "b", "c"]],
        [[0.2, 0.3, 0.5]] * 2,
    ],
)
def test_bad_predictions_are_refused(predictions: Any) -> None:
    with pytest.raises(InputError, match="predictions"):
        INTERACTIVE.release([[50, 50, 0]], NoDraws(), predictions=predictions)  # type: ignore[arg-type]
