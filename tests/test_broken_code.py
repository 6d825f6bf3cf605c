"""Twelve mutations of our own code that the audits are to notice; the code as it is they are not to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

from clients import site
from pate_fed.learning.features.own import OwnFeatures
from pate_fed.privacy import ConfidentGNMax, GNMax, LNMax, Protection, SeededNoise, audit_all
from pate_fed.privacy.mechanisms import class_sums, noisy_max
from pate_fed.privacy.planning.attack import AttackResult
from pate_fed.testing import audit_study

Patch = pytest.MonkeyPatch
Mutation = Callable[[Patch], None]


def votes(seed: int) -> list[AttackResult]:
    """What `pate-fed audit` samples."""
    return audit_all(SeededNoise(seed))


def sums(seed: int) -> list[AttackResult]:
    """What `pate-fed audit --study` runs."""
    return [audit_study(seed=seed, noise_at=place) for place in ("coordinator", "hospitals")]


def half_the_noise(patch: Patch) -> None:
    patch.setattr(
        GNMax, "draw", lambda self, source, shape: source.discrete_gaussian(shape, sigma=self.sigma / 2)
    )


def sigma_for_its_square(patch: Patch) -> None:
    right = SeededNoise.discrete_gaussian
    patch.setattr(
        SeededNoise, "discrete_gaussian", lambda self, shape, sigma: right(self, shape, sigma=sigma**0.5)
    )


def one_label_s_noise_charged_for_two(patch: Patch) -> None:
    """ε is of the scale 1/ε, as if a vote that moves changed one total."""
    right = LNMax.draw
    patch.setattr(
        LNMax, "draw", lambda self, source, shape: source.discrete_laplace(shape, scale=self.scale / 2)
    )
    assert LNMax.draw is not right


def threshold_without_noise(patch: Patch) -> None:
    right = ConfidentGNMax._answer

    def answer(self: Any, totals: Any, top: Any, source: Any, most: Any) -> Any:
        passed = top >= self.threshold
        return right(self, totals, np.where(passed, 10**9, -(10**9)), source, most)

    patch.setattr(ConfidentGNMax, "_answer", answer)


def one_draw_for_all_classes(patch: Patch) -> None:
    right = GNMax.draw
    patch.setattr(
        GNMax, "draw", lambda self, source, shape: np.tile(right(self, source, (shape[0], 1)), shape[1])
    )


def ties_to_the_lowest_class(patch: Patch) -> None:
    patch.setattr(noisy_max, "noisy_argmax", lambda totals, drawn, source: (totals + drawn).argmax(axis=1))


def a_query_answered_twice(patch: Patch) -> None:
    """Two draws of the same label, and the mean of both is what wins."""
    right = GNMax.draw

    def draw(self: Any, source: Any, shape: Any) -> Any:
        return (right(self, source, shape) + right(self, source, shape)) // 2

    patch.setattr(GNMax, "draw", draw)


def joining_charged_for_replacing(patch: Patch) -> None:
    patch.setattr(Protection, "votes_vanish", property(lambda self: True))


def a_record_used_twice(patch: Patch) -> None:
    right = OwnFeatures.contributions
    patch.setattr(OwnFeatures, "contributions", lambda *given, **more: 2 * right(*given, **more))


def another_hospital_s_part_too(patch: Patch) -> None:
    right = site._partition

    @cache
    def parts(study: Any) -> Any:
        each = right(study)
        return [np.concatenate([each[at], each[at - 1]]) for at in range(len(each))]

    patch.setattr(site, "_partition", parts)


def half_the_sensitivity(patch: Patch) -> None:
    right = class_sums.squared_sensitivity
    patch.setattr(class_sums, "squared_sensitivity", lambda norm, unit: right(norm, unit) // 4)


def noise_left_out_at_hospitals(patch: Patch) -> None:
    patch.setattr("clients.kinds.base.add_noise_share", lambda answer, draw, sigma_party: answer)


MUTATIONS: dict[Mutation, Callable[[int], list[AttackResult]]] = {
    **dict.fromkeys([half_the_noise, sigma_for_its_square, one_label_s_noise_charged_for_two], votes),
    **dict.fromkeys([threshold_without_noise, one_draw_for_all_classes, ties_to_the_lowest_class], votes),
    **dict.fromkeys([a_query_answered_twice, joining_charged_for_replacing], votes),
    **dict.fromkeys([a_record_used_twice, another_hospital_s_part_too, half_the_sensitivity], sums),
    noise_left_out_at_hospitals: sums,
}


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Costs and noise that were reckoned of broken code, and of right one, are not kept."""
    caches = (class_sums.least_sigma, class_sums.least_share)
    for each in caches:
        each.cache_clear()
    yield
    for each in caches:
        each.cache_clear()


def _caught(mutation: Mutation, seed: int, patch: Patch) -> list[str]:
    with patch.context() as broken:
        mutation(broken)
        return [each.line() for each in MUTATIONS[mutation](seed) if not each.passed]


def test_broken_code_is_caught(monkeypatch: Patch) -> None:
    assert len(MUTATIONS) == 12 and _caught(threshold_without_noise, 1, monkeypatch)
    assert all(each.passed for each in votes(1))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: one.__name__)
def test_each_mutation_is_caught_whatever_the_seed(mutation: Mutation, seed: int, monkeypatch: Patch) -> None:
    assert _caught(mutation, seed, monkeypatch)


@pytest.mark.slow
def test_the_code_as_it_is_is_not_accused() -> None:
    found = [each for seed in range(12) for each in (*votes(seed), *sums(seed))]
    assert len(found) == 12 * 9 and all(each.passed for each in found)
