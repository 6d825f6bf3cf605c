"""Clusters, learning and whole methods, on inputs that are quickly learnt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from pate_fed.errors import InputError, PateFedError
from pate_fed.label_dp import RandRes, label_accuracy
from pate_fed.label_dp.aug_descent import DescentSettings, _Descent, aug_descent, clean_chances
from pate_fed.label_dp.clusters import (
    cluster_means,
    encoder_clusters,
    find_clusterer,
    fine_clusters,
    noise_clusters,
    pixel_clusters,
)
from pate_fed.label_dp.denoise import denoise, equation8, estimated_accuracy
from pate_fed.label_dp.hospitals import Hospitals, Simulated
from pate_fed.label_dp.learners import LearnSettings, ldp_normal, train
from pate_fed.label_dp.methods import MethodSettings, clusters_to_name, run_method
from pate_fed.label_dp.names import METHODS
from pate_fed.label_dp.networks import NETWORKS, build_network
from pate_fed.label_dp.public import PublicInputs
from pate_fed.label_dp.scan import Scan
from pate_fed.label_dp.teachers import TeachSettings, queries_of, teach
from pate_fed.learning.students.fixmatch import FixMatch
from pate_fed.privacy import SeededNoise, SystemNoise

QUICK = MethodSettings(
    learn=LearnSettings(epochs=4, batch_size=32, learning_rate=3e-3, ema_decay=0.95),
    num_clusters=12,
    teach=TeachSettings(num_teachers=6, learn=LearnSettings(epochs=1, batch_size=16), unlabelled=64),
    student_labels=30,
)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_learns_easy_classes(
    name: str, public: PublicInputs, truth: np.ndarray, easy: Callable[..., Any]
) -> None:
    budget = 60.0 if name.startswith("pate-fm") else 3.0  # six teachers bear little noise
    longer = replace(QUICK.learn, epochs=12)  # the guesses of two networks take their time
    settings = replace(QUICK, learn=longer) if "aug" in name else QUICK
    outcome = run_method(name, public, truth, epsilon=budget, noise=SeededNoise(0), settings=settings, seed=0)
    fresh, answers = easy(200, seed=1)
    assert np.mean(outcome.classify(fresh) == answers) > 0.8
    assert outcome.method == name and outcome.labels.epsilon <= budget * 1.0000001
    assert (outcome.labels.delta == 0) == (not name.startswith(("pate-fm", "noise")))
    assert not outcome.labels.private and "seeded" in outcome.labels.words()
    again = run_method(name, public, truth, epsilon=budget, noise=SeededNoise(0), settings=settings, seed=0)
    assert np.array_equal(again.classify(fresh), outcome.classify(fresh))


def test_denoise_keeps_better_labels_and_foretells_how_good(truth: np.ndarray, public: PublicInputs) -> None:
    many = np.tile(truth, 20)
    clusters = np.random.default_rng(0).integers(0, 25, len(many)) * 4 + many
    clusters[::5] = np.random.default_rng(1).integers(0, 100, len(clusters[::5]))
    response = RandRes(num_classes=4, epsilon=1.0)
    label = response.release(many, SeededNoise(0)).label
    found = denoise(label, clusters, num_clusters=100, num_classes=4)
    kept = float((label == many)[found.kept].mean())
    measured = float((found.pseudo == many).mean())
    assert kept > 0.85 > response.probability and found.alpha == 0
    assert kept == pytest.approx(equation8(measured, 1.0), abs=0.02)
    guess = estimated_accuracy(found.agreement, kept=response.probability, other=response.other)
    assert guess == pytest.approx(measured, abs=0.04)


def test_counts_spread_to_clusters_nearby() -> None:
    """Forty clusters of few records on a line: alone each majority is chance, together they are right."""
    rng = np.random.default_rng(0)
    clusters = np.repeat(np.arange(40), 15)
    truth = (clusters >= 20).astype(np.int64)
    label = RandRes(num_classes=2, epsilon=0.5).release(truth, SeededNoise(0)).label
    centres = np.stack([np.arange(40) + 30 * (np.arange(40) >= 20), rng.random(40)], axis=1)
    settings = {"num_clusters": 40, "num_classes": 2}
    alone = denoise(label, clusters, **settings)
    spread = denoise(label, clusters, centres=centres.astype(np.float32), **settings)
    assert spread.alpha > 0
    assert np.mean(spread.pseudo == truth) > np.mean(alone.pseudo == truth) + 0.05


def test_equation_8_at_its_ends() -> None:
    assert equation8(1 / 10, 1.0) == pytest.approx(RandRes(num_classes=10, epsilon=1.0).probability)
    assert equation8(1.0, 1.0) == 1 and equation8(0.0, 1.0) == 0
    assert estimated_accuracy(0.05, kept=0.5, other=0.1) == 0.0


@pytest.mark.parametrize("clusterer", [encoder_clusters, pixel_clusters])
def test_light_clusters_are_the_classes(clusterer: Any, public: PublicInputs, truth: np.ndarray) -> None:
    found = public.clusters(clusterer, 8)
    counts = np.zeros((8, 4))
    np.add.at(counts, (found, truth), 1)
    assert counts.max(axis=1).sum() > 0.8 * len(truth)
    assert public.clusters(clusterer, 8) is found  # found once


def test_scan_finds_classes_without_labels(easy: Callable[..., Any]) -> None:
    images, labels = easy(160)
    inputs = PublicInputs(images, num_classes=4)
    lines: list[str] = []
    scan = Scan(
        network="small-cnn",
        contrast_epochs=4,
        cluster_epochs=8,
        label_epochs=2,
        neighbours=5,
        batch_size=32,
        confidence=0.6,
        say=lines.append,
    )
    found = scan(inputs, 4, seed=0)
    assert found.shape == (160,) and found.min() >= 0 and found.max() < 4
    counts = np.zeros((4, 4))
    np.add.at(counts, (found, labels), 1)
    assert counts.max(axis=1).sum() > 0.5 * len(labels)  # a quarter by chance
    assert len(lines) == 14 and np.array_equal(found, scan(inputs, 4, seed=0))


def test_a_users_clusterer_is_held_to_its_word(public: PublicInputs) -> None:
    def mine(inputs: PublicInputs, num_clusters: int, *, seed: int) -> np.ndarray:
        return np.arange(len(inputs.images)) % num_clusters

    assert public.clusters(mine, 5).max() == 4
    for wrong, message in (
        (lambda inputs, k, *, seed: np.zeros(3, dtype=int), "gave int64"),
        (lambda inputs, k, *, seed: np.full(len(inputs), k), "outside 0 to"),
        (lambda inputs, k, *, seed: np.zeros(len(inputs)), "gave float64"),
    ):
        with pytest.raises(InputError, match=message):
            public.clusters(wrong, 5)
    assert find_clusterer("pate_fed.label_dp.clusters:pixel_clusters") is pixel_clusters
    with pytest.raises(InputError, match="MODULE:FUNCTION"):
        find_clusterer("nosuch:thing")
    with pytest.raises(InputError, match="--clusters 3"):
        public.clusters(encoder_clusters, 3)
    with pytest.raises(InputError, match="more than the 600"):
        public.clusters(encoder_clusters, 601)


def test_two_clusterers_of_one_name_are_two(public: PublicInputs) -> None:
    first = public.clusters(lambda inputs, k, *, seed: np.arange(len(inputs)) % k, 7)
    second = public.clusters(lambda inputs, k, *, seed: np.arange(len(inputs)) // 3 % k, 7)
    assert first[:8].tolist() == [0, 1, 2, 3, 4, 5, 6, 0] and second[:4].tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize(("name", "message"), [("os:sep", "a str; a function"), ("os:getcwd", "seed")])
def test_a_clusterer_that_cannot_be_called_is_refused(name: str, message: str) -> None:
    with pytest.raises(InputError, match=f"--clusterer {name}: .*{message}"):
        find_clusterer(name)


def test_the_number_of_clusters_follows_from_public_numbers() -> None:
    assert fine_clusters(60_000, 10) == 1200 and fine_clusters(100, 10) == 10
    few = noise_clusters(60_000, 10, epsilon=0.05, delta=1e-5)
    assert 50 < few < 150 < noise_clusters(60_000, 10, epsilon=1.0, delta=1e-5)
    assert noise_clusters(60_000, 10, epsilon=1e-3, delta=1e-5) == 10
    means = cluster_means(np.array([[1.0], [3.0], [5.0]], dtype=np.float32), np.array([0, 0, 2]), 3)
    assert means.tolist() == [[2.0], [0.0], [5.0]]


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "light"])
@pytest.mark.parametrize("shape", [(32, 32, 3), (28, 28, 1)])
def test_networks_take_small_images(name: str, shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    network = build_network(name, shape, 7).eval()
    x = torch.rand(2, shape[2], *shape[:2])
    network.preprocess.fit(x)
    with torch.no_grad():
        assert network(x).shape == (2, 7)
        assert network.logits(network.preprocess(x)).shape == (2, 7)


def test_the_papers_networks_are_of_their_size() -> None:
    def millions(name: str) -> float:
        return sum(p.numel() for p in build_network(name, (32, 32, 3), 10).parameters()) / 1e6

    assert millions("resnet-18") == pytest.approx(11.17, abs=0.02)
    assert millions("wrn-28-4") == pytest.approx(5.85, abs=0.03)
    assert millions("vgg-16") == pytest.approx(14.7, abs=0.1)
    with pytest.raises(InputError, match="network is 'vgg'"):
        build_network("vgg", (32, 32, 3), 10)
    with pytest.raises(InputError, match="16×16"):
        build_network("vgg-16", (8, 8, 3), 10)
    with pytest.raises(InputError, match="encoder"):
        build_network("light", (32, 32, 3), 10)


def test_networks_on_images_learn_too(easy: Callable[..., Any]) -> None:
    images, labels = easy(200)
    inputs = PublicInputs(images, num_classes=4, network="small-cnn", flip=False)
    settings = LearnSettings(epochs=6, batch_size=20, ema_decay=0.9, learning_rate=5e-3)
    network = train(inputs, np.arange(200), labels, settings, seed=0)
    fresh, answers = easy(100, seed=3)
    assert np.mean(inputs.probabilities([network], fresh).argmax(axis=1) == answers) > 0.8
    assert np.array_equal(
        inputs.classes_at(network, np.arange(50)),
        inputs.probabilities([network]).argmax(axis=1)[:50],
    )


def test_a_norms_measures_are_averaged_too(easy: Callable[..., Any]) -> None:
    """ResNet-18 for one step: the averaged network has the norms of the trained one."""
    inputs = PublicInputs(easy(16)[0], num_classes=4, network="resnet-18")
    network = train(
        inputs, np.arange(16), np.arange(16) % 4, LearnSettings(epochs=1, batch_size=16, sgd=True), seed=0
    )
    means = [value for name, value in network.state_dict().items() if name.endswith("running_mean")]
    assert means and any(bool(value.abs().sum() > 0) for value in means)


def test_soft_labels_and_mixup(public: PublicInputs, truth: np.ndarray) -> None:
    soft = np.full((600, 4), 0.1)
    soft[np.arange(600), truth] = 0.7
    for mixup in (0.0, 1.0):
        network = train(public, np.arange(600), soft, QUICK.learn, seed=0, unlabelled_weight=0.0, mixup=mixup)
        shares = public.probabilities([network])
        assert np.mean(shares.argmax(axis=1) == truth) > 0.95
        assert shares.max(axis=1).mean() < 0.85  # what it is taught, and not more
    with pytest.raises(InputError, match="no private label"):
        train(public, np.array([], dtype=np.int64), truth[:0], QUICK.learn, seed=0)


def test_clean_losses_are_told_from_wrong_ones() -> None:
    rng = np.random.default_rng(0)
    losses = np.concatenate([rng.normal(0.2, 0.05, 300), rng.normal(0.8, 0.08, 700)])
    chances = clean_chances(losses)
    assert (chances[:300] > 0.5).mean() > 0.98 and (chances[300:] < 0.5).mean() > 0.98
    assert clean_chances(np.full(5, 0.3)).tolist() == [1.0] * 5


def test_aug_descent_names_the_epoch_in_which_a_loss_is_lost(
    public: PublicInputs, truth: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What goes wrong in the very last step is seen too."""
    settings = DescentSettings(learn=LearnSettings(epochs=3, batch_size=200), warm_up=2)
    step, steps = torch.optim.Adam.step, iter(range(10**6))

    def breaks(optimiser: torch.optim.Adam, *rest: Any) -> Any:
        found = step(optimiser, *rest)
        if next(steps) == last:
            with torch.no_grad():
                optimiser.param_groups[0]["params"][-1].fill_(torch.nan)
        return found

    last = -1
    monkeypatch.setattr(torch.optim.Adam, "step", breaks)
    aug_descent(public, truth, settings, seed=0)
    last, steps = next(steps) - 1, iter(range(10**6))
    with pytest.raises(PateFedError, match="AugDescent loss of the labels is nan in epoch 3"):
        aug_descent(public, truth, settings, seed=0)


@pytest.mark.parametrize("sgd", [True, False])
def test_both_learners_take_the_same_steps(public: PublicInputs, truth: np.ndarray, sgd: bool) -> None:
    learn = LearnSettings(epochs=2, sgd=sgd)
    pair = [public.network() for _ in range(2)]
    there = np.arange(600)
    descent = _Descent(public, pair, there, truth, DescentSettings(learn=learn))
    alone = FixMatch(learn.student(), public.network(), public.views(), sgd=sgd)
    for optimiser in descent.optimisers:
        assert type(optimiser) is type(alone.optimisers[0])
        assert optimiser.defaults == alone.optimisers[0].defaults and optimiser.defaults["fused"]


def test_named_clusters_are_a_network(public: PublicInputs, truth: np.ndarray) -> None:
    """The nearest of the named centres, one by one: what is exported answers alike, and is sure."""
    settings = replace(QUICK, num_clusters=9)
    noise = SeededNoise(0)
    found = run_method("noise-cluster", public, truth, epsilon=3.0, noise=noise, settings=settings, seed=0)
    clusters = public.clusters(settings.clusterer, 9)
    centres = public.centres(clusters, 9)
    gaps = ((public.features[:, None, :] - centres) ** 2).sum(axis=2)  # (600, 9)
    named = {int(cluster): int(label) for cluster, label in zip(clusters, found.labels.label, strict=True)}
    expected = [named[int(cluster)] for cluster in gaps.argmin(axis=1)]
    assert found.classify(public.images).tolist() == expected
    shares = public.probabilities(found.networks)
    assert shares.max(axis=1).min() > 0.999 and shares.argmax(axis=1).tolist() == expected


def test_each_teacher_sees_its_own_labels_alone(public: PublicInputs, truth: np.ndarray) -> None:
    queries = queries_of(600, 40, seed=0)
    settings = TeachSettings(num_teachers=5, learn=QUICK.learn, unlabelled=0)
    before = teach(public, truth, queries, settings, seed=0)
    assert before.sum(axis=1).tolist() == [5] * 40
    changed = truth.copy()
    changed[17] = (changed[17] + 1) % 4
    after = teach(public, changed, queries, settings, seed=0)
    assert np.abs(after - before).sum(axis=1).max() <= 2  # one vote moves, in each query


def test_labels_at_hospitals(public: PublicInputs, truth: np.ndarray) -> None:
    parts = tuple(np.array_split(np.random.default_rng(0).permutation(600), 5))
    place = Simulated(parts=parts, labels=truth)
    given = {"place": place, "pool_size": 600, "pool_digest": "ab" * 32, "num_classes": 4}
    there = replace(QUICK, hospitals=Hospitals(**given))
    local = run_method("lp-1st", public, truth, epsilon=3.0, noise=SystemNoise(), settings=there, seed=0)
    assert local.labels.private and "5 hospitals" in local.labels.how
    right = label_accuracy(local.labels.label, truth)
    assert right == pytest.approx(RandRes(num_classes=4, epsilon=3.0).probability, abs=0.06)
    seeded = replace(QUICK, hospitals=Hospitals(**given, seed=0))
    summed = run_method(
        "noise-cluster", public, truth, epsilon=3.0, noise=SeededNoise(0), settings=seeded, seed=0
    )
    assert label_accuracy(summed.labels.label, truth) > 0.9  # type: ignore[operator]
    assert summed.labels.epsilon <= 3.0 and "summed under masks" in summed.labels.how
    assert not summed.labels.private and summed.facts["sigma"] == seeded.hospitals.sigma  # type: ignore[union-attr]
    with pytest.raises(InputError, match="only randres"):
        run_method("pate-fm", public, truth, epsilon=1, noise=SeededNoise(0), settings=there, seed=0)


def test_many_hospitals_get_clusters_that_suit_their_noise(public: PublicInputs) -> None:
    """80 least shares of noise are more than ε 2 needs: fewer clusters, as for the ε that is spent."""

    def clusters(count: int, epsilon: float) -> int:
        parts = tuple(np.array_split(np.arange(600), count))
        place = Simulated(parts=parts, labels=np.zeros(600, dtype=np.int64))
        there = Hospitals(place=place, pool_size=600, pool_digest="ab" * 32, num_classes=4)
        return clusters_to_name(public, MethodSettings(hospitals=there), epsilon)[1]

    alone = noise_clusters(600, 4, epsilon=2.0, delta=1e-5)
    assert clusters(4, 2.0) == alone > clusters(80, 2.0)
    assert clusters(80, 2.0) == clusters(80, 0.52) >= 4


def test_an_unknown_method_is_named(public: PublicInputs, truth: np.ndarray) -> None:
    with pytest.raises(InputError, match="did you mean randres"):
        run_method("randres+denoise", public, truth, epsilon=1, noise=SeededNoise(0), settings=QUICK, seed=0)
    with pytest.raises(InputError, match="3 records for 4 classes"):
        PublicInputs(public.images[:3], num_classes=4)
    released = RandRes(num_classes=4, epsilon=3).release(truth, SeededNoise(0))
    assert ldp_normal(public, released, LearnSettings(epochs=1), seed=0) is not None
