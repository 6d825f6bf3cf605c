"""Mechanisms on labels: their ε against closed forms and dp-accounting, their laws against samples."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal, getcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pate_fed.errors import InputError
from pate_fed.label_dp import (
    Alibi,
    NoiseCluster,
    PriorRes,
    RandRes,
    discrete_delta,
    equation5_sigma,
    label_accuracy,
    label_counts,
)
from pate_fed.label_dp.exact import WORDS, keep_words, uniform_below
from pate_fed.label_dp.noise_cluster import name_clusters
from pate_fed.privacy import SeededNoise, SystemNoise
from pate_fed.privacy.bounds.gaussian import gaussian_delta, gaussian_dp_epsilon, pld_epsilon
from pate_fed.privacy.label_dp import noise_cluster_epsilon, randomized_response_epsilon

# Table 2 of Tang et al.: classes, ε, the private label accuracy that is printed, in %.
TABLE_2 = [
    (10, 0.5, 15.5), (10, 1.0, 23.2), (10, 2.0, 45.2), (10, 4.0, 85.9),
    (100, 1.0, 2.7), (100, 2.0, 6.9), (100, 4.0, 35.8), (100, 6.0, 80.4),
]  # fmt: skip


class Words:
    """A source whose uniform numbers are given."""

    kind, private = "given", False

    def __init__(self, *keys: list[int]) -> None:
        self.keys = list(keys)

    def tie_keys(self, shape: object) -> np.ndarray:
        return np.array(self.keys.pop(0), dtype=np.int64) + 1


@pytest.mark.parametrize(("classes", "epsilon", "printed"), TABLE_2)
def test_table_2_by_formula_and_by_sampling(classes: int, epsilon: float, printed: float) -> None:
    mechanism = RandRes(num_classes=classes, epsilon=epsilon)
    formula = math.exp(epsilon) / (math.exp(epsilon) + classes - 1)
    assert mechanism.probability == pytest.approx(formula, rel=1e-15)
    # The table shows one draw on 50,000 labels: within three deviations of the formula, and its rounding.
    spread = 100 * math.sqrt(formula * (1 - formula) / 50_000)
    assert 100 * formula == pytest.approx(printed, abs=3 * spread + 0.05)
    labels = np.arange(50_000) % classes
    drawn = mechanism.release(labels, SeededNoise(0))
    assert 100 * np.mean(drawn.label == labels) == pytest.approx(100 * formula, abs=4 * spread)
    assert drawn.delta == 0 and drawn.epsilon == epsilon and not drawn.private


@settings(max_examples=60, deadline=None)
@given(
    epsilon=st.floats(1e-9, 200, allow_nan=False), classes=st.sampled_from([2, 3, 10, 100, 1000]),
)  # fmt: skip
def test_the_odds_never_pass_e_to_the_epsilon(epsilon: float, classes: int) -> None:
    mechanism = RandRes(num_classes=classes, epsilon=epsilon)
    getcontext().prec = 80
    bound = Decimal(epsilon).exp()
    assert Decimal(mechanism.odds.numerator) / Decimal(mechanism.odds.denominator) <= bound
    if mechanism.words < WORDS - 1:  # and one draw in 2^62 more would pass it
        more = Decimal((mechanism.words + 1) * (classes - 1)) / Decimal(WORDS - mechanism.words - 1)
        assert more > bound * (1 - Decimal(10) ** -50)
    if 1e-6 < epsilon < 15:
        assert randomized_response_epsilon(classes, mechanism.probability) == pytest.approx(epsilon, rel=1e-8)


def test_randres_frequencies_are_p_and_uniform_else() -> None:
    mechanism = RandRes(num_classes=5, epsilon=0.7)
    for true in range(5):
        drawn = mechanism.release(np.full(40_000, true), SystemNoise()).label
        expected = np.full(5, 40_000 * mechanism.other)
        expected[true] = 40_000 * mechanism.probability
        assert stats.chisquare(np.bincount(drawn, minlength=5), expected).pvalue > 1e-6
        wrong = np.roll(expected, 1)
        assert stats.chisquare(np.bincount(drawn, minlength=5), wrong).pvalue < 1e-6


def test_uniform_numbers_are_exactly_uniform() -> None:
    # 2^62 is 1 more than a multiple of 3, so the very last number is thrown away and drawn again.
    found = uniform_below(3, 4, Words([0, 1, 2**62 - 1, 5], [4]))  # type: ignore[arg-type]
    assert found.tolist() == [0, 1, 1, 2]
    assert uniform_below(2**62, 2, Words([0, 2**62 - 1])).tolist() == [0, 2**62 - 1]  # type: ignore[arg-type]
    with pytest.raises(InputError, match="bound"):
        uniform_below(0, 1, SeededNoise(0))


def test_one_word_decides() -> None:
    mechanism = RandRes(num_classes=3, epsilon=1.0)
    words = mechanism.words
    found = mechanism.release([2, 2, 2], Words([words - 1, words, words], [0, 0, 1])).label  # type: ignore[arg-type]
    assert found.tolist() == [2, 0, 1]


@pytest.mark.parametrize("epsilon", [0.01, 0.05, 0.5, 1.0, 2.0, 4.0, 8.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-7])
def test_noise_clusters_sigma_is_the_least_of_equation_5(epsilon: float, delta: float) -> None:
    sigma = equation5_sigma(epsilon, delta)
    assert gaussian_delta(math.sqrt(2) / sigma, epsilon) <= delta
    assert gaussian_delta(math.sqrt(2) / (sigma * (1 - 1e-9)), epsilon) > delta
    assert noise_cluster_epsilon(sigma, delta) == pytest.approx(epsilon, rel=1e-6)
    assert gaussian_dp_epsilon(math.sqrt(2) / sigma, delta) == pytest.approx(epsilon, rel=1e-6)


def test_the_published_epsilon_is_not_that_of_integer_noise() -> None:
    published = noise_cluster_epsilon(1.0, 1e-5)
    assert discrete_delta(1.0, published) > 1.3e-5
    mechanism = NoiseCluster(num_clusters=2, num_classes=2, epsilon=published, delta=1e-5)
    assert mechanism.sigma > 1.01 and discrete_delta(mechanism.sigma, published) <= 1e-5


@pytest.mark.parametrize("sigma", [0.9, 1.7, 5.3, 40.0])
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0])
def test_the_discrete_delta_is_the_sum_over_the_noise(sigma: float, epsilon: float) -> None:
    reach = math.ceil(12 * sigma) + 3
    x = np.arange(-reach, reach + 1)
    mass = np.exp(-(x**2) / (2 * sigma**2))
    mass /= mass.sum()
    moved = np.roll(mass, 1)
    here, there = np.outer(mass, mass), np.outer(moved, np.roll(mass, -1))
    slow = np.maximum(here - math.exp(epsilon) * there, 0).sum()
    assert discrete_delta(sigma, epsilon) == pytest.approx(slow, rel=1e-6, abs=1e-18)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.05, 1e-5), (0.5, 1e-5), (1.0, 1e-6), (4.0, 1e-5)])
def test_noise_that_runs_is_accounted_for(epsilon: float, delta: float) -> None:
    mechanism = NoiseCluster(num_clusters=20, num_classes=10, epsilon=epsilon, delta=delta)
    least = equation5_sigma(epsilon, delta)
    assert least <= mechanism.sigma < 1.2 * least
    assert discrete_delta(mechanism.sigma, epsilon) <= delta
    library = pld_epsilon(1, 1, sigma1=None, sigma2=mechanism.sigma, delta=delta, interval=1e-4)
    assert library == pytest.approx(epsilon, rel=0.15)
    assert library <= epsilon * 1.001 + 2e-4  # its grid is pessimistic


def test_noise_cluster_names_clusters_by_their_majority() -> None:
    clusters = np.arange(3000) % 3
    labels = (clusters + 1) % 3
    mechanism = NoiseCluster(num_clusters=3, num_classes=3, epsilon=0.5, delta=1e-5)
    found = mechanism.release(clusters, labels, SeededNoise(1))
    assert np.array_equal(found.label, labels) and label_accuracy(found.label, labels) == 1.0
    assert label_counts(clusters, labels, 3, 3).tolist() == [[0, 1000, 0], [0, 0, 1000], [1000, 0, 0]]
    noisy = mechanism.noisy_counts(np.zeros((3, 3), dtype=int), SystemNoise())
    assert noisy.shape == (3, 3) and noisy.any()


def _seen(counts: list[int], shrink: float, *, draws: int = 40_000) -> float:
    """How often the first of two classes wins, in one cluster, with the real noise or less."""
    mechanism = NoiseCluster(num_clusters=2, num_classes=2, epsilon=1.0, delta=1e-5)
    noise = SeededNoise(counts[0])
    drawn = noise.discrete_gaussian((draws, 2), sigma=mechanism.sigma / shrink)
    return float(np.mean((np.array(counts) + drawn).argmax(axis=1) == 0))


def test_an_observer_learns_no_more_than_epsilon() -> None:
    """Neighbours on the edge: the winner's odds move by less than e^ε; with little noise, by more."""
    for counts, neighbour in (([5, 5], [4, 6]), ([20, 30], [19, 31])):
        ratio = _seen(counts, 1.0) / max(_seen(neighbour, 1.0), 1e-9)
        assert math.log(max(ratio, 1e-9)) < 1.0
    assert math.log(_seen([5, 5], 20.0) / max(_seen([4, 6], 20.0), 1e-9)) > 1.0


def test_ties_fall_to_no_class_in_particular() -> None:
    tied, cost = np.zeros((4, 2), dtype=np.int64), {"epsilon": 1.0, "delta": 1e-5, "how": "no noise"}
    winners = [name_clusters(np.arange(4), tied, SeededNoise(seed), **cost).label for seed in range(50)]
    assert 60 < np.sum(winners) < 140


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.7])
def test_alibis_noise_costs_epsilon_and_no_step_less(epsilon: float) -> None:
    mechanism = Alibi(num_classes=10, epsilon=epsilon)
    from fractions import Fraction

    assert Fraction(2 * 1024) / Fraction(mechanism.scale) <= Fraction(epsilon)
    assert 2 * 1024 / mechanism.scale == pytest.approx(epsilon, rel=1e-12)


def test_alibis_posterior_is_bayes_rule() -> None:
    mechanism = Alibi(num_classes=4, epsilon=1.5)
    rows = mechanism.noisy_rows([0, 1, 3], SeededNoise(3))
    prior = np.array([0.1, 0.2, 0.3, 0.4])
    slow = np.empty((3, 4))
    for k in range(4):
        one_hot = 1024 * (np.arange(4) == k)
        slow[:, k] = prior[k] * np.exp(-np.abs(rows - one_hot).sum(axis=1) / mechanism.scale)
    slow /= slow.sum(axis=1, keepdims=True)
    assert mechanism.posterior(rows, np.tile(prior, (3, 1))) == pytest.approx(slow)
    released = mechanism.release(np.arange(4), SeededNoise(3))
    assert released.posterior is not None and released.posterior.sum(axis=1) == pytest.approx(1)


def test_alibis_posterior_is_calibrated() -> None:
    mechanism, labels = Alibi(num_classes=10, epsilon=2.0), np.arange(20_000) % 10
    released = mechanism.release(labels, SeededNoise(0))
    assert released.posterior is not None
    claimed = released.posterior.max(axis=1).mean()
    assert np.mean(released.label == labels) == pytest.approx(claimed, abs=0.015)


@given(
    epsilon=st.floats(0.01, 8), data=st.data(), classes=st.integers(2, 8),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_the_response_with_a_prior_keeps_epsilon(epsilon: float, data: st.DataObject, classes: int) -> None:
    """All output probabilities of all labels, in closed form from k and the words."""
    prior = np.array([data.draw(st.floats(0.001, 1)) for _ in range(classes)])
    mechanism = PriorRes(num_classes=classes, epsilon=epsilon)
    k = int(mechanism.choices((prior / prior.sum())[None])[0])
    if k == 1:
        return
    keep = keep_words(epsilon, k) / WORDS
    law = np.full((classes, k), 1 / k)
    law[:k] = (1 - keep) / (k - 1)
    law[np.arange(k), np.arange(k)] = keep
    assert (law.max(axis=0) / law.min(axis=0)).max() <= math.exp(epsilon) * (1 + 1e-12)


def test_the_response_with_a_prior_has_that_law() -> None:
    prior = np.tile([0.5, 0.3, 0.15, 0.05], (30_000, 1))
    mechanism = PriorRes(num_classes=4, epsilon=1.0)
    k = int(mechanism.choices(prior[:1])[0])
    slow = [math.e / (math.e + j - 1) * sum(sorted(prior[0])[-j:]) for j in range(1, 5)]
    assert k == int(np.argmax(slow)) + 1 == 2
    keep = math.e / (math.e + 1)
    for label, expected in ((0, keep), (1, 1 - keep), (2, 0.5), (3, 0.5)):
        found = mechanism.release(np.full(30_000, label), prior, SeededNoise(label)).label
        assert set(found.tolist()) <= {0, 1}
        assert np.mean(found == 0) == pytest.approx(expected, abs=0.015)
    sure = np.tile([1.0, 0.0, 0.0, 0.0], (5, 1))
    assert mechanism.release(np.full(5, 3), sure, SeededNoise(0)).label.tolist() == [0] * 5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandRes(num_classes=10, epsilon=0), "epsilon"),
        (lambda: RandRes(num_classes=10, epsilon=-1.0), "epsilon"),
        (lambda: RandRes(num_classes=10, epsilon=1e-12), "at least 1e-09"),
        (lambda: RandRes(num_classes=10, epsilon=math.nan), "epsilon"),
        (lambda: RandRes(num_classes=1, epsilon=1.0), "num_classes"),
        (lambda: Alibi(num_classes=10, epsilon=0), "epsilon"),
        (lambda: PriorRes(num_classes=10, epsilon=-2), "epsilon"),
        (lambda: NoiseCluster(num_clusters=9, num_classes=10, epsilon=1, delta=1e-5), "at least the 10"),
        (lambda: NoiseCluster(num_clusters=10, num_classes=10, epsilon=1, delta=0), "delta"),
        (lambda: NoiseCluster(num_clusters=10, num_classes=10, epsilon=0, delta=1e-5), "epsilon"),
        (lambda: equation5_sigma(1e-12, 1e-12), "noise of more than"),
        (lambda: RandRes(num_classes=3, epsilon=1).release([0, 3], SeededNoise(0)), "outside the classes"),
        (lambda: RandRes(num_classes=3, epsilon=1).release([-1], SeededNoise(0)), "outside the classes"),
        (lambda: RandRes(num_classes=3, epsilon=1).release([], SeededNoise(0)), "at least one"),
        (lambda: RandRes(num_classes=3, epsilon=1).release([0.5], SeededNoise(0)), "whole number"),
        (lambda: label_counts([0, 5], [0, 1], 3, 2), "clusters run"),
        (lambda: label_counts([0], [0, 1], 3, 2), "clusters are"),
        (lambda: PriorRes(num_classes=3, epsilon=1).release([0], [[1.0, 0.0]], SeededNoise(0)), "prior"),
    ],
)  # fmt: skip
def test_bad_input_is_named(make: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("epsilon", "shown"),
    [(3.0, "3"), (0.1, "0.1"), (0.99991, "1"), (1.00001, "1.001"), (1e-9, "1e-9")],
)
def test_what_is_shown_of_an_epsilon_is_never_less(epsilon: float, shown: str) -> None:
    assert float(shown) >= epsilon
    labels = NoiseCluster(num_clusters=2, num_classes=2, epsilon=1.0, delta=1e-5).release(
        [0, 1], [0, 1], SeededNoise(0)
    )
    assert f"ε={shown} δ=1e-05" in replace(labels, epsilon=epsilon).words()


def test_the_room_needs_no_torch() -> None:
    import subprocess
    import sys

    code = (
        "import sys\n"
        "for name in ('torch', 'torchvision', 'flwr', 'opendp', 'sklearn'): sys.modules[name] = None\n"
        "import pate_fed.label_dp as room\n"
        "assert all(hasattr(room, name) for name in room.__all__)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
