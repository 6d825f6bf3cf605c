"""The sum is exact, whoever drops out and when; below the threshold there is none."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pate_fed.errors import InputError, QuorumError
from pate_fed.secure_sum import SumRange, threshold_for


@pytest.fixture(scope="module")
def enrolled(federation: Any) -> Any:
    """Federations by their size, each enrolled once: every example is another batch of theirs."""
    return functools.cache(federation)


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(3, 9),
    length=st.integers(1, 70),
    most=st.sampled_from([1, 50, 7000, 2**31 // 9 - 1]),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_sum_is_exact(n: int, length: int, most: int, seed: int, enrolled: Any, vectors: Any) -> None:
    values = vectors(n, length, most=most, seed=seed)
    summed = SumRange.votes(n * most)
    assert summed.bits == (16 if n * most < 2**15 else 32)
    parties = enrolled(n)
    total = parties.total(values, batch=parties.open(length, summed))
    assert total.dtype == np.int64
    np.testing.assert_array_equal(total, values.sum(axis=0))


def test_sums_may_be_negative(federation: Any) -> None:
    values = np.array([[-5, 3], [-(2**20), 2**20], [7, -1], [0, 0]], dtype=np.int64)
    np.testing.assert_array_equal(federation(4).total(values), values.sum(axis=0))


Plan = tuple[str, ...]


def _drop_plans(n: int, threshold: int) -> Counter[Plan]:
    """Every way in which each hospital stays, or drops at one of the four steps, and how many come to it.

    Below the threshold a batch is void: who would have dropped after that step never does.
    """
    plans: Counter[Plan] = Counter()
    for fates in itertools.product(("", *_STEPS), repeat=n):
        void = next((step for step in _STEPS if n - _gone(fates, step) < threshold), _STEPS[-1])
        plans[tuple(fate if fate in _UP_TO[void] else "" for fate in fates)] += 1
    return plans


def _gone(fates: Plan, step: str) -> int:
    return sum(fate in _UP_TO[step] for fate in fates)


def _dropped(fates: Plan) -> dict[str, set[int]]:
    return {step: {i for i, fate in enumerate(fates) if fate == step} for step in set(fates) - {""}}


def _expected(values: Any, plan: dict[str, set[int]], threshold: int) -> Any:
    """The survivors' sum, or None where a step has fewer than the threshold."""
    n = len(values)
    before = {step: len(set().union(*(plan.get(s, set()) for s in steps))) for step, steps in _UP_TO.items()}
    if any(n - gone < threshold for gone in before.values()):
        return None
    lost = plan.get("share", set()) | plan.get("mask", set())
    return values[[i for i in range(n) if i not in lost]].sum(axis=0)


_STEPS = ("share", "mask", "consent", "unmask")


_UP_TO = {step: _STEPS[: number + 1] for number, step in enumerate(_STEPS)}


@pytest.mark.parametrize("n", [3, 4])
def test_every_subset_of_dropouts_at_every_step(n: int, federation: Any, vectors: Any) -> None:
    parties, values = federation(n), vectors(n, 6)
    exact = void = 0
    for fates, times in _drop_plans(n, threshold_for(n)).items():
        plan = _dropped(fates)
        expected = _expected(values, plan, threshold_for(n))
        if expected is None:
            with pytest.raises(QuorumError):
                parties.total(values, drop=plan)
            void += times
        else:
            np.testing.assert_array_equal(parties.total(values, drop=plan), expected)
            exact += times
    assert exact == sum(_ways(n, lost) for lost in range(n - threshold_for(n) + 1))
    assert exact + void == 5**n


def _ways(n: int, lost: int) -> int:
    return len(list(itertools.combinations(range(n), lost))) * 4**lost


@pytest.mark.parametrize("seed", range(4))
def test_random_dropouts_among_seven_with_states_on_disk(seed: int, federation: Any, vectors: Any) -> None:
    rng = np.random.default_rng(seed)
    parties, values = federation(7, restart=True), vectors(7, 5, seed=seed)
    plan: dict[str, set[int]] = {step: set() for step in _STEPS}
    for number in rng.choice(7, size=2, replace=False):
        plan[str(rng.choice(_STEPS))].add(int(number))
    np.testing.assert_array_equal(parties.total(values, drop=plan), _expected(values, plan, threshold_for(7)))


@pytest.mark.parametrize(("n", "lost"), [(60, 20), pytest.param(250, 25, marks=pytest.mark.slow)])
def test_many_hospitals_are_lost_at_random_steps(n: int, lost: int, federation: Any, vectors: Any) -> None:
    """A third, or on a ring a tenth."""
    rng = np.random.default_rng(5)
    parties, values = federation(n), vectors(n, 12)
    gone = rng.permutation(n)[:lost]
    parts = np.array_split(gone, 4)
    plan = {step: set(part.tolist()) for step, part in zip(_STEPS, parts, strict=True)}
    np.testing.assert_array_equal(parties.total(values, drop=plan), _expected(values, plan, threshold_for(n)))


def test_one_more_dropout_leaves_no_output(federation: Any, vectors: Any) -> None:
    parties, values = federation(6), vectors(6, 5)
    assert threshold_for(6) == 4
    for step in _STEPS:
        batch = parties.open(5)
        with pytest.raises(QuorumError, match=r"3 of 6 hospitals .*threshold is 4.*unmasked"):
            parties.total(values, drop={step: {0, 2, 4}}, batch=batch)
        with pytest.raises(Exception, match="not the next one"):
            batch.total()


def test_the_range_decides_the_modulus() -> None:
    assert SumRange.votes(32_767).bits == 16
    assert SumRange.votes(32_768).bits == 32
    assert SumRange.noisy().bits == 32
    with pytest.raises(InputError, match="2\\^32"):
        SumRange(smallest=0, largest=2**32)
    with pytest.raises(InputError):
        SumRange(smallest=1, largest=0)


@given(st.integers(-(2**31), 2**31), st.integers(0, 2**32 - 1), st.data())
def test_lifting_undoes_the_reduction(smallest: int, span: int, data: Any) -> None:
    where = SumRange(smallest=smallest, largest=smallest + span)
    value = data.draw(st.integers(where.smallest, where.largest))
    residue = np.array([value % 2**where.bits], dtype="<u2" if where.bits == 16 else "<u4")
    assert where.lift(residue).tolist() == [value]


@pytest.mark.parametrize("largest", [1, 14, 32_767])
def test_a_sum_that_was_shifted_moves_no_more_than_one_for_a_vote(largest: int) -> None:
    where = SumRange.votes(largest)
    circle = np.arange(2**where.bits, dtype=np.int64)
    folded = where.fold(where.lift(circle.astype("<u2")))
    np.testing.assert_array_equal(folded[: largest + 1], circle[: largest + 1])
    assert (folded.min(), folded.max()) == (0, largest)
    assert np.abs(np.diff(np.append(folded, folded[0]))).max() == 1
    with pytest.raises(InputError, match="half"):
        SumRange.noisy().fold(circle)
