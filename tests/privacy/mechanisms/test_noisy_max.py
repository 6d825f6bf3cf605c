"""The mechanisms: what they answer, when they stop, and what they refuse to look at."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from pate_fed.errors import InputError
from pate_fed.privacy import (
    ConfidentGNMax,
    DistributedGNMax,
    GNMax,
    InteractiveGNMax,
    LNMax,
    Protection,
    SeededNoise,
    SystemNoise,
)
from pate_fed.privacy.mechanisms.events import hospital_noise
from pate_fed.privacy.mechanisms.noisy_max import noisy_argmax

REST: dict[str, Any] = {"num_teachers": 100, "num_classes": 3}


STILL = 1e-6  # A noise scale at which no draw differs from 0.


CONFIDENT = ConfidentGNMax(**REST, threshold=60, sigma1=STILL, sigma2=STILL)


SIGHT = hospital_noise(sigma_party=4.0, survivors=10)


TOTALS = np.array([[70, 20, 10], [40, 30, 30], [10, 60, 30], [59, 41, 0], [0, 0, 100]])


def always() -> list[Any]:
    """Mechanisms that answer every query."""
    return [LNMax(**REST, scale=STILL), GNMax(**REST, sigma=STILL)]


@pytest.mark.parametrize("mechanism", always(), ids=lambda m: m.name)
def test_every_query_is_answered_with_the_plurality(mechanism: Any) -> None:
    release = mechanism.release(TOTALS, SeededNoise(0))
    assert release.label.tolist() == [0, 0, 1, 0, 2]
    assert release.answered.all() and release.asked == 5
    assert (release.event.asked, release.event.answered) == (5, 5)


def test_confident_answers_where_the_largest_total_reaches_the_threshold() -> None:
    release = CONFIDENT.release(TOTALS, SeededNoise(0))
    assert release.answered.tolist() == [True, False, True, False, True]
    assert release.label.tolist() == [0, -1, 1, -1, 2]
    assert (release.reinforced == -1).all()
    assert (release.event.asked, release.event.answered) == (5, 3)


@pytest.mark.parametrize(
    ("threshold", "answers"), [(58.5, 4), (59, 4), (59.5, 3), (60, 3), (60.5, 2), (-5, 5)]
)
def test_a_threshold_between_whole_votes_is_the_next_whole_one(threshold: float, answers: int) -> None:
    release = replace(CONFIDENT, threshold=threshold).release(TOTALS, SeededNoise(0))
    assert release.event.answered == answers


@pytest.mark.parametrize(("cap", "asked"), [(0, 0), (1, 1), (2, 3), (3, 5), (4, 5), (None, 5)])
def test_it_stops_after_the_last_answer_and_asks_no_more(cap: int | None, asked: int) -> None:
    release = CONFIDENT.release(TOTALS, SeededNoise(0), max_answers=cap)
    assert release.asked == release.event.asked == len(release.answered) == len(release.label) == asked
    assert release.event.answered == release.answered.sum() <= (asked if cap is None else cap)


@pytest.mark.parametrize("mechanism", always(), ids=lambda m: m.name)
def test_the_cap_of_those_that_answer_all(mechanism: Any) -> None:
    assert mechanism.release(TOTALS, SeededNoise(0), max_answers=2).asked == 2
    assert mechanism.release(TOTALS, SeededNoise(0), max_answers=0).asked == 0
    for cap in (-1, 1.5, True):
        with pytest.raises(InputError, match="max_answers"):
            mechanism.release(TOTALS, SeededNoise(0), max_answers=cap)


def test_no_query_gives_an_empty_release() -> None:
    for mechanism in [*always(), CONFIDENT]:
        release = mechanism.release(np.zeros((0, 3), dtype=np.int64), SystemNoise())
        assert release.asked == 0 and release.event.cost().rho == 0 and not release.event.cost().pure


@settings(deadline=None, derandomize=True)
@given(
    st.integers(0, 2**31),
    st.integers(1, 60),
    st.one_of(st.none(), st.integers(0, 70)),
    st.floats(0.5, 60),
    st.floats(-20, 120),
)
def test_release_keeps_its_shape_whatever_the_noise(
    seed: int, queries: int, cap: int | None, sigma: float, threshold: float
) -> None:
    totals = np.random.default_rng(seed).multinomial(100, [0.5, 0.3, 0.2], size=queries)
    mechanism = replace(CONFIDENT, sigma1=sigma, sigma2=sigma, threshold=threshold)
    release = mechanism.release(totals, SeededNoise(seed), max_answers=cap)
    assert release.asked <= queries
    assert ((release.label >= 0) == release.answered).all() and (release.label < 3).all()
    assert release.event.answered == release.answered.sum()
    if cap is not None:
        assert release.event.answered <= cap
        # It stopped with an answer, or there was nothing more to ask.
        assert release.asked == queries or cap == 0 or release.answered[-1]


def test_outputs_cannot_be_written_and_totals_are_left_alone() -> None:
    totals = TOTALS.copy()
    release = CONFIDENT.release(totals, SeededNoise(0))
    for array in (release.answered, release.label, release.reinforced):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    assert (totals == TOTALS).all()


def test_the_same_seed_gives_the_same_release_and_the_system_does_not() -> None:
    mechanism = replace(CONFIDENT, sigma1=40, sigma2=40)
    totals = np.tile(TOTALS, (20, 1))
    first, again = (mechanism.release(totals, SeededNoise(4)) for _ in range(2))
    assert (first.label == again.label).all()
    assert not first.event.private and first.event.noise == "not private: seeded noise"
    fresh = [mechanism.release(totals, SystemNoise()) for _ in range(2)]
    assert fresh[0].label.tolist() != fresh[1].label.tolist()
    assert fresh[0].event.private


@pytest.mark.parametrize("sigma", [2.0, 10.0])
def test_labels_follow_the_law_of_the_noisy_argmax(sigma: float) -> None:
    totals = np.tile([50, 46, 4], (20_000, 1))
    x = np.arange(-120, 121)
    law = np.exp(-0.5 * (x / sigma) ** 2)
    law /= law.sum()
    below = np.cumsum(law) - law
    first = (law * np.interp(x + 4, x, below)).sum() + 0.5 * (law * np.interp(x + 4, x, law)).sum()
    release = GNMax(**REST, sigma=sigma).release(totals, SeededNoise(9))
    wins = int((release.label == 0).sum())
    # The third class wins so seldom that it cannot be seen here.
    assert stats.binomtest(wins, 20_000, min(1.0, float(first))).pvalue > 1e-6
    assert stats.binomtest(wins, 20_000, 0.5).pvalue < 1e-6


class _FewKeys(SeededNoise):
    """Keys of 1 to 4 alone, so that the largest are mostly equal, and no noise."""

    def tie_keys(self, shape: Any) -> NDArray[np.int64]:
        return self.rng.integers(1, 4, size=shape, endpoint=True)


def test_equal_keys_prefer_no_class() -> None:
    """Of 62 bits they are equal in one of 2^62 pairs; whatever their number, each tied class is as likely."""
    votes = np.tile([[7, 2, 7, 7]], (30_000, 1))
    label = noisy_argmax(votes, np.zeros_like(votes), _FewKeys(seed=3))
    counts = np.bincount(label, minlength=4)
    assert counts[1] == 0
    assert stats.chisquare(counts[[0, 2, 3]]).pvalue > 1e-3


def test_the_threshold_check_follows_its_law() -> None:
    mechanism = replace(CONFIDENT, sigma1=15, threshold=70)
    release = mechanism.release(np.tile([60, 30, 10], (20_000, 1)), SeededNoise(2))
    x = np.arange(-400, 401)
    law = np.exp(-0.5 * (x / 15) ** 2)
    chance = float(law[x >= 10].sum() / law.sum())
    assert stats.binomtest(release.event.answered, 20_000, chance).pvalue > 1e-6
    # Laws of two thirds and three halves of the noise are told apart.
    for factor in (2 / 3, 3 / 2):
        other = np.exp(-0.5 * (x / (15 * factor)) ** 2)
        wrong = float(other[x >= 10].sum() / other.sum())
        assert stats.binomtest(release.event.answered, 20_000, wrong).pvalue < 1e-6


@pytest.mark.parametrize(
    "change",
    [
        {"num_teachers": 0},
        {"num_teachers": -1},
        {"num_teachers": 2.5},
        {"num_classes": 1},
        {"num_classes": 0},
        {"sigma1": 0},
        {"sigma1": -1.0},
        {"sigma1": math.inf},
        {"sigma1": math.nan},
        {"sigma2": 0.0},
        {"sigma2": "40"},
        {"sigma2": 1e-320},
        {"threshold": math.nan},
        {"threshold": math.inf},
        {"threshold": None},
    ],
)
def test_bad_parameters_are_refused_by_name(change: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"{next(iter(change))}="):
        replace(CONFIDENT, **change)


def test_other_bad_parameters_are_refused() -> None:
    for make in (
        lambda: LNMax(**REST, scale=0),
        lambda: GNMax(**REST, sigma=math.inf),
        lambda: InteractiveGNMax(**REST, threshold=1, sigma1=1, sigma2=1, confidence=1.5),
        lambda: InteractiveGNMax(**REST, threshold=1, sigma1=1, sigma2=1, confidence=math.nan),
        lambda: DistributedGNMax(**REST, threshold=math.nan, sigma_party=4.0, least_honest=3),
        lambda: DistributedGNMax(**REST, threshold=None, sigma_party=1.0, least_honest=3),
        lambda: DistributedGNMax(**REST, threshold=None, sigma_party=4.0, least_honest=0),
    ):
        with pytest.raises(InputError):
            make()


INTERACTIVE = InteractiveGNMax(**REST, threshold=40, sigma1=STILL, sigma2=STILL, confidence=0.9)


def test_interactive_answers_where_the_teachers_contradict_the_student() -> None:
    totals = [[95, 5, 0], [95, 5, 0], [40, 40, 20], [10, 90, 0]]
    predictions = [
        [0.95, 0.05, 0.0],  # agree, and sure: confirmed
        [0.05, 0.95, 0.0],  # contradict: the teachers answer
        [0.4, 0.4, 0.2],  # agree, not sure: nothing
        [1.0, 0.0, 0.0],  # contradict, however sure the student is
    ]
    release = INTERACTIVE.release(totals, SeededNoise(0), predictions=predictions)
    assert release.answered.tolist() == [False, True, False, True]
    assert release.label.tolist() == [-1, 0, -1, 1]
    assert release.reinforced.tolist() == [0, -1, -1, -1]
    assert (release.event.asked, release.event.answered) == (4, 2)
    assert release.event.mechanism == INTERACTIVE
    capped = INTERACTIVE.release(totals, SeededNoise(0), predictions=predictions, max_answers=1)
    assert capped.asked == len(capped.reinforced) == 2


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 2**31))
def test_interactive_check_moves_by_at_most_one_vote(seed: int) -> None:
    """Rounding the maximum half to even would let it jump by two where the student expects half votes."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet([1.0, 1.0, 1.0])
    if rng.random() < 0.5:
        shares = np.array([0.125, 0.375, 0.5])  # 12.5 and 37.5 of 100 votes
    votes = rng.multinomial(100, rng.dirichlet([1.0, 1.0, 1.0]))
    giver, taker = rng.permutation(3)[:2]
    if votes[giver] == 0:
        return
    moved = votes.copy()
    moved[giver] -= 1
    moved[taker] += 1
    assert abs(_checked(votes, shares) - _checked(moved, shares)) <= 1


def _checked(votes: NDArray[np.int64], shares: NDArray[np.float64]) -> int:
    """The largest whole threshold at which the check passes: what is compared with it."""
    low, high = -101, 101
    while high - low > 1:
        middle = (low + high) // 2
        mechanism = replace(INTERACTIVE, threshold=middle)
        passed = mechanism.release([votes], SeededNoise(0), predictions=[shares]).answered[0]
        low, high = (middle, high) if passed else (low, middle)
    return low


def test_protection_and_sight_are_on_the_event() -> None:
    protection = Protection(unit="hospital", votes_moved=4)
    release = CONFIDENT.release(TOTALS, SeededNoise(0), protection=protection, coordinator=SIGHT)
    assert (release.event.protection, release.event.coordinator) == (protection, SIGHT)
