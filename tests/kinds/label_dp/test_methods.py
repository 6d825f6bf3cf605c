"""Whole methods on inputs that are quickly learnt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pate_fed.errors import InputError
from pate_fed.kinds.label_dp.learners import LearnSettings, TeachSettings, ldp_normal
from pate_fed.kinds.label_dp.methods import MethodSettings, find_clusterer, run_method
from pate_fed.kinds.label_dp.options import METHODS
from pate_fed.kinds.label_dp.public import PublicInputs
from pate_fed.kinds.label_dp.randres import RandRes
from pate_fed.kinds.label_dp.source import LabelsInOnePlace, Record, Released
from pate_fed.privacy import LedgerTerms, SeededNoise

QUICK = MethodSettings(
    learn=LearnSettings(epochs=4, batch_size=32, learning_rate=3e-3, ema_decay=0.95),
    num_clusters=12,
    teach=TeachSettings(num_teachers=6, learn=LearnSettings(epochs=1, batch_size=16), unlabelled=64),
    student_labels=30,
)


def _source(truth: np.ndarray) -> LabelsInOnePlace:
    return LabelsInOnePlace(truth=truth, num_classes=4, noise=SeededNoise(0), record=Record())


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name == "pate-fm+aug-descent" else [])
        for name in METHODS
    ],
)
def test_every_method_learns_easy_classes(
    name: str, public: PublicInputs, few: PublicInputs, truth: np.ndarray, easy: Callable[..., Any]
) -> None:
    budget = 60.0 if name.startswith("pate-fm") else 3.0  # six teachers bear little noise
    longer = replace(QUICK.learn, epochs=12)  # the guesses of two networks take their time
    settings = replace(QUICK, learn=longer) if "aug" in name else QUICK
    outcome = run_method(name, public, _source(truth), epsilon=budget, settings=settings, seed=0)
    fresh, answers = easy(200, seed=1)
    assert np.mean(outcome.classify(fresh) == answers) > 0.8
    assert outcome.labels.epsilon <= budget * 1.0000001
    assert (outcome.labels.delta == 0) == (not name.startswith(("pate-fm", "noise")))
    assert not outcome.labels.private and "seeded" in outcome.labels.text()
    short = replace(QUICK, learn=replace(QUICK.learn, epochs=1))
    once, again = (
        run_method(name, few, _source(easy(120)[1]), epsilon=budget, settings=short, seed=0).classify(fresh)
        for _ in range(2)
    )
    assert np.array_equal(once, again)


class _OnRecord(Record):
    """Keeps the releases; the first may be there from an earlier process."""

    def __init__(self, *kept: Released) -> None:
        self.kept = list(kept)

    def release(self, terms: LedgerTerms, draw: Callable[[], Released], *, stage: int = 0) -> Released:
        if len(self.kept) <= stage:
            self.kept.append(draw())
        return self.kept[stage]


def test_the_second_stage_is_the_same_after_a_death_in_a_seeded_study(
    few: PublicInputs, easy: Callable[..., Any]
) -> None:
    private, whole = easy(120)[1], _OnRecord()
    run_method("lp-2st", few, replace(_source(private), record=whole), epsilon=3.0, settings=QUICK, seed=0)
    cut = _OnRecord(whole.kept[0])
    run_method("lp-2st", few, replace(_source(private), record=cut), epsilon=3.0, settings=QUICK, seed=0)
    np.testing.assert_array_equal(cut.kept[1].label, whole.kept[1].label)


@pytest.mark.parametrize(("name", "message"), [("os:sep", "a str; a function"), ("os:getcwd", "seed")])
def test_a_clusterer_that_cannot_be_called_is_refused(name: str, message: str) -> None:
    with pytest.raises(InputError, match=f"--clusterer {name}: .*{message}"):
        find_clusterer(name)


def test_named_clusters_are_a_network(public: PublicInputs, truth: np.ndarray) -> None:
    """The nearest of the named centres, one by one: what is exported answers alike, and is sure."""
    settings = replace(QUICK, num_clusters=9)
    found = run_method("noise-cluster", public, _source(truth), epsilon=3.0, settings=settings, seed=0)
    clusters = public.clusters(settings.clusterer, 9)
    centres = public.centres(clusters, 9)
    gaps = ((public.features[:, None, :] - centres) ** 2).sum(axis=2)  # (600, 9)
    named = {int(cluster): int(label) for cluster, label in zip(clusters, found.labels.label, strict=True)}
    expected = [named[int(cluster)] for cluster in gaps.argmin(axis=1)]
    assert found.classify(public.images).tolist() == expected
    shares = public.probabilities(found.networks)
    assert shares.max(axis=1).min() > 0.999 and shares.argmax(axis=1).tolist() == expected


def test_an_unknown_method_is_named(public: PublicInputs, truth: np.ndarray) -> None:
    with pytest.raises(InputError, match="did you mean randres"):
        run_method("randres+denoise", public, _source(truth), epsilon=1, settings=QUICK, seed=0)
    with pytest.raises(InputError, match="3 records for 4 classes"):
        PublicInputs(public.images[:3], num_classes=4)
    released = RandRes(num_classes=4, epsilon=3).release(truth, SeededNoise(0))
    assert ldp_normal(public, released, LearnSettings(epochs=1), seed=0) is not None
