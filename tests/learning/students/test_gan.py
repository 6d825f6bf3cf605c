"""The GAN student: who learns what; the small-loss exchange and the cleansing against slow versions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pate_fed.learning import StudentSettings, tensors
from pate_fed.learning.networks.encoder import fit_encoder
from pate_fed.learning.students import gan
from pate_fed.learning.students.closed_form import PoolFeatures
from pate_fed.learning.students.gan import (
    GANTrainer,
    balanced,
    contradicted,
    decayed,
    exchange,
    keep_rate,
    most_suspected,
    select_small_losses,
    suspects,
)
from pate_fed.learning.students.losses import supervised_losses
from pate_fed.learning.students.student import Student
from pate_fed.learning.students.trainer import LabelledPool, TrainingSets
from pate_fed.learning.tensors import to_tensor

MakeStripes = Callable[..., tuple[NDArray[np.uint8], NDArray[np.int64]]]


QUICK = StudentSettings(epochs=2, batch_size=50, learning_rate=3e-3)
MakePool = Callable[..., LabelledPool]


@pytest.mark.parametrize(("epoch", "rate"), [(1, 1 - 0.2 / 15), (3, 0.96), (15, 0.8), (16, 0.8), (400, 0.8)])
def test_the_schedule_is_the_papers(epoch: int, rate: float) -> None:
    assert keep_rate(epoch, noise_rate=0.2) == pytest.approx(rate)


def test_the_ramp_may_be_shorter() -> None:
    assert keep_rate(2, noise_rate=0.4, ramp_epochs=4) == pytest.approx(0.8)


def _slow_selection(losses: list[float], candidates: list[bool], rate: float) -> set[int]:
    """argmin over subsets of at least rate · |candidates|: take the smallest until there are enough."""
    inside = [i for i, here in enumerate(candidates) if here]
    chosen: set[int] = set()
    while len(chosen) < rate * len(inside) - 1e-9:
        chosen.add(min((i for i in inside if i not in chosen), key=lambda i: (losses[i], i)))
    return chosen


@given(
    st.lists(st.tuples(st.sampled_from([0.1, 0.2, 0.5, 1.0, 7.5]), st.booleans()), min_size=1, max_size=30),
    st.sampled_from([0.0, 0.3, 0.5, 0.8, 0.96, 1.0]),
)
@settings(deadline=None, derandomize=True)
def test_selection_takes_the_smallest_losses_among_candidates(
    rows: list[tuple[float, bool]], rate: float
) -> None:
    losses, candidates = [row[0] for row in rows], [row[1] for row in rows]
    found = select_small_losses(torch.tensor(losses), torch.tensor(candidates), rate=rate)
    assert set(found.nonzero().flatten().tolist()) == _slow_selection(losses, candidates, rate)


@pytest.mark.parametrize("epoch", range(1, 17))
def test_the_kept_count_is_not_off_by_one(epoch: int) -> None:
    everything = torch.ones(100, dtype=torch.bool)
    rate = keep_rate(epoch, noise_rate=0.3)
    exact = -(-(100 * (150 - 3 * min(epoch, 15))) // 150)  # ceil(100 · (1 - 0.3 · e / 15)) in whole numbers
    chosen = select_small_losses(torch.rand(100), everything, rate=rate)
    assert int(chosen.sum()) == exact


def test_each_discriminator_gets_the_others_choice() -> None:
    first, second = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([4.0, 3.0, 2.0, 1.0])
    for_first, for_second = exchange([first, second], torch.ones(4, dtype=torch.bool), rate=0.5)
    assert for_first.tolist() == [False, False, True, True]
    assert for_second.tolist() == [True, True, False, False]


def test_one_discriminator_learns_from_all() -> None:
    (chosen,) = exchange([torch.tensor([1.0, 9.0])], torch.ones(2, dtype=torch.bool), rate=0.1)
    assert chosen.all()


def test_no_candidates_choose_nothing() -> None:
    nothing = torch.zeros(4, dtype=torch.bool)
    assert not any(each.any() for each in exchange([torch.rand(4), torch.rand(4)], nothing, rate=0.8))


@pytest.mark.parametrize("seed", range(5))
def test_cleansing_is_the_papers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    samples, epochs, alpha, tau = 40, 9, 0.9, 0.25
    labels = rng.integers(0, 3, samples)
    predictions = rng.integers(0, 3, (epochs, 2, samples))

    slow = [0.0] * samples
    for epoch in range(epochs):
        for i in range(samples):
            one, two = predictions[epoch, 0, i], predictions[epoch, 1, i]
            counted = one != two and one != labels[i] and two != labels[i]
            slow[i] = alpha * slow[i] + (1.0 if counted else 0.0)
    by_count = sorted(range(samples), key=lambda i: (-slow[i], i))
    slow_removed = {i for i in by_count[: int(tau * samples)] if slow[i] > 0}

    table = torch.zeros(samples, dtype=torch.float64)
    for one, two in predictions:
        found = suspects(torch.from_numpy(one), torch.from_numpy(two), torch.from_numpy(labels))
        table = decayed(table, found, decay=alpha)
    assert table.tolist() == pytest.approx(slow)
    assert set(most_suspected(table, share=tau).nonzero().flatten().tolist()) == slow_removed


def test_early_suspicion_fades_and_late_suspicion_stays() -> None:
    table = torch.zeros(2)
    for epoch in range(10):
        table = decayed(table, torch.tensor([epoch < 3, epoch >= 7]), decay=0.9)
    assert table[1] > table[0] * 1.5


def test_nobody_suspected_nobody_removed() -> None:
    assert not most_suspected(torch.zeros(10), share=0.5).any()
    assert not most_suspected(torch.ones(10), share=0.0).any()


@pytest.mark.parametrize(("share", "count"), [(0.318, 699), (0.4, 880), (0.091, 200)])
def test_the_removed_count_is_the_papers(share: float, count: int) -> None:
    assert int(most_suspected(torch.rand(2200) + 1, share=share).sum()) == count == math.floor(share * 2200)


def test_classes_come_alike_often_but_a_handful_of_labels_does_not() -> None:
    labels = torch.tensor([0] * 500 + [1] * 80 + [3] * 5)  # none of class 2
    like = torch.zeros(60, 100, dtype=torch.int64)
    torch.manual_seed(0)
    picked = balanced(labels, like)
    assert picked.shape == like.shape and picked.dtype == torch.int64
    shares = torch.bincount(labels[picked.flatten()], minlength=4) / 6000
    # The mean is 195 labels, so that five of a class come as often as five of 48.75 would.
    expected = torch.tensor([1, 1, 0, 5 / 48.75]) / (2 + 5 / 48.75)
    assert shares == pytest.approx(expected, abs=0.02)


def test_discriminators_with_opinions_see_balanced_labels(
    stripes: MakeStripes, pool_of: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, labels = stripes(300)
    kept = np.flatnonzero((labels > 0) | (np.arange(300) % 8 == 0))[:100]  # class 0 is rare
    seen: list[torch.Tensor] = []

    def learn(self: GANTrainer, x: torch.Tensor, y: torch.Tensor, *rest: object) -> tuple[torch.Tensor, ...]:
        seen.append(y)
        return torch.zeros(4).double(), y < 0, y < 0

    monkeypatch.setattr(GANTrainer, "_learn_batch", learn)
    order = np.concatenate([kept, np.setdiff1d(np.arange(300), kept)])
    sets = TrainingSets.of(pool_of(images[order], labels[kept]), "cpu")
    shares = []
    papers = replace(QUICK, name="co-teaching", network="small-cnn", ema_decay=0.0)
    as_they_come = GANTrainer(papers, (16, 16, 1), 4, to_tensor(images[order], "cpu"))
    for trainer in (_on_encoder(images[order]), as_they_come):
        seen.clear()
        for epoch in range(1, 6):
            trainer.run_epoch(epoch, sets)
        shares.append(float((torch.cat(seen) == 0).double().mean()))
    rare = float((labels[kept] == 0).mean())
    assert rare < 0.1 and shares[1] == pytest.approx(rare, abs=0.01)
    assert shares[0] > 2 * rare


def _trainer(images: NDArray[np.uint8], name: str = "co-teaching") -> GANTrainer:
    return GANTrainer(
        replace(QUICK, name=name, network="small-cnn"), (16, 16, 1), 4, to_tensor(images, "cpu")
    )


def _copies(module: torch.nn.Module) -> list[torch.Tensor]:
    return [weight.detach().clone() for weight in module.parameters()]


def _moved(module: torch.nn.Module, before: list[torch.Tensor]) -> bool:
    return any(not torch.equal(a, b) for a, b in zip(module.parameters(), before, strict=True))


def test_the_generators_loss_moves_only_the_generator(stripes: MakeStripes) -> None:
    images, _ = stripes(60)
    trainer = _trainer(images)
    generator = trainer.generator
    assert generator is not None
    before = [_copies(each) for each in (*trainer.networks, generator)]
    trainer._learn_generator(trainer.inputs[:30], trainer.preprocess(generator.draw(30)))
    moved = [_moved(m, b) for m, b in zip((*trainer.networks, generator), before, strict=True)]
    assert moved == [False, False, True]
    assert all(weight.grad is None for network in trainer.networks for weight in network.parameters())


def test_the_discriminators_losses_do_not_move_the_generator(
    stripes: MakeStripes, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, labels = stripes(60)
    trainer = _trainer(images)
    assert trainer.generator is not None
    monkeypatch.setattr(trainer, "_learn_generator", lambda u, fake: torch.zeros(()))
    before = [_copies(each) for each in (*trainer.networks, trainer.generator)]
    trainer._learn_batch(trainer.inputs[:30], torch.from_numpy(labels[:30]), trainer.inputs[30:], 0.8)
    modules = (*trainer.networks, trainer.generator)
    assert [_moved(m, b) for m, b in zip(modules, before, strict=True)] == [True, True, False]
    assert all(weight.grad is None for weight in trainer.generator.parameters())


def test_a_sample_only_its_peer_dropped_does_not_teach(stripes: MakeStripes) -> None:
    images, labels = stripes(60)
    trainer = _trainer(images)
    y = torch.from_numpy(labels[:30])
    with torch.no_grad():
        for network in trainer.networks:
            network.eval()
        losses = [supervised_losses(n.logits(trainer.inputs[:30]), y) for n in trainer.networks]
    first, second = exchange(losses, torch.ones(30, dtype=torch.bool), rate=0.5)
    assert first.sum() == second.sum() == 15
    assert set(losses[1].argsort()[:15].tolist()) == set(first.nonzero().flatten().tolist())


def test_preprocessing_is_shared_and_never_trained(
    stripes: MakeStripes, noisy_student: Callable[[str], Student]
) -> None:
    one, two = (network.preprocess.state_dict() for network in noisy_student("pate++")._networks)
    fresh = fit_encoder(stripes(400)[0]).preprocessing()
    for key, value in fresh.state_dict().items():
        assert torch.equal(one[key], value) and torch.equal(two[key], value)


def test_each_loss_moves_its_own_weights(stripes: MakeStripes) -> None:
    images, labels = stripes(60, size=8)
    settings = replace(QUICK, name="gan", network="dense")
    trainer = GANTrainer(settings, (8, 8, 1), 4, to_tensor(images, "cpu"))
    generator = trainer.generator
    assert generator is not None
    u, (network,) = trainer.inputs[30:], trainer.networks

    def moved(step: Callable[[], object]) -> list[bool]:
        before = [[w.detach().clone() for w in each.parameters()] for each in (network, generator)]
        step()
        after = [list(each.parameters()) for each in (network, generator)]
        return [
            any(not torch.equal(*pair) for pair in zip(*both, strict=True))
            for both in zip(before, after, strict=True)
        ]

    assert moved(lambda: trainer._learn_generator(u, trainer.preprocess(generator.draw(30)))) == [False, True]
    assert all(w.grad is not None for w in generator.parameters())  # every layer of it has a slope
    trainer.generator_optimiser = tensors.SGD(generator.parameters(), lr=0.0)
    y = torch.from_numpy(labels[:30].copy())
    assert moved(lambda: trainer._learn_batch(trainer.inputs[:30], y, u, 1.0)) == [True, False]
    assert all((w.grad is not None) == w.requires_grad for w in network.parameters())


def _on_encoder(images: NDArray[np.uint8], name: str = "co-teaching") -> GANTrainer:
    settings = replace(QUICK, name=name, network="encoder")
    return GANTrainer(
        settings, (16, 16, 1), 4, to_tensor(images, "cpu"), PoolFeatures(fit_encoder(images), images, "cpu")
    )


@pytest.mark.parametrize("name", ["co-teaching", "gan"])
def test_a_peer_tells_what_it_sees_in_the_image_as_it_is(stripes: MakeStripes, name: str) -> None:
    trainer = _on_encoder(stripes(60)[0], name)
    index = torch.arange(30, 60)
    unlearnt = torch.tensor([False, False, True, False])
    told = trainer._opinions(index, unlearnt, 0.5)
    for opinion, peer in zip(told, reversed(trainer.averages), strict=True):
        shares = peer.logits(trainer.inputs[index]).softmax(dim=1) ** gan.SHARPER * ~unlearnt
        expected = gan.OPINION * 0.5 * shares / shares.sum(dim=1, keepdim=True)
        assert torch.allclose(opinion, expected, atol=1e-5)
    assert not any(opinion.requires_grad for opinion in told)
    assert (len(told) == 1) == (name == "gan")


@pytest.mark.parametrize(("network", "share"), [("encoder", gan.HEAD), ("small-cnn", gan.HEAD_FROM_PIXELS)])
def test_a_head_has_its_part_in_what_a_peer_tells(stripes: MakeStripes, network: str, share: float) -> None:
    images, labels = stripes(60)
    features = PoolFeatures(fit_encoder(images), images, "cpu") if network == "encoder" else None
    head = (0.7 * F.one_hot(torch.from_numpy(labels.copy()), 4) + 0.075).log()
    settings = replace(QUICK, name="co-teaching", network=network)
    trainer = GANTrainer(settings, (16, 16, 1), 4, to_tensor(images, "cpu"), features, head=head)
    index, nothing = torch.arange(30, 60), torch.zeros(4, dtype=torch.bool)
    for opinion, peer in zip(trainer._opinions(index, nothing, 1.0), reversed(trainer.averages), strict=True):
        peers = peer.logits(trainer.inputs[index]).softmax(dim=1)
        both = (peers ** (1 - share) * head[index].exp() ** share) ** gan.SHARPER
        assert torch.allclose(opinion, gan.OPINION * both / both.sum(dim=1, keepdim=True), atol=1e-4)


def test_images_on_pixels_are_shown_deformed_unless_all_is_as_in_the_paper(stripes: MakeStripes) -> None:
    pixels, index = to_tensor(stripes(60)[0], "cpu"), torch.arange(60)
    settings = replace(QUICK, name="pate++", network="small-cnn")
    ours = GANTrainer(settings, (16, 16, 1), 4, pixels)
    torch.manual_seed(0)
    same = (ours._shown(index.repeat(10)) - ours.inputs.repeat(10, 1, 1, 1)).abs().flatten(1).amax(1) < 1e-3
    assert 0.02 < float(same.float().mean()) < 0.2  # one in eleven
    papers = GANTrainer(replace(settings, ema_decay=0.0), (16, 16, 1), 4, pixels)
    assert torch.equal(papers._shown(index), papers.inputs)


def test_opinions_draw_a_discriminator_to_its_peer(stripes: MakeStripes) -> None:
    images, labels = stripes(60)
    trainer, y = _on_encoder(images), torch.from_numpy(labels[:30])
    told = [F.one_hot(torch.full((30,), n), 4).float() * 3 for n in (0, 1)]  # against labels and each other
    for _ in range(30):
        trainer._learn_batch(trainer.inputs[:30], y, trainer.inputs[30:], 0.8, told)
    for number, network in enumerate(trainer.networks):
        network.eval()
        assert (network.logits(trainer.inputs[30:]).argmax(dim=1) == number).float().mean() > 0.8


def test_inputs_are_shown_as_they_are_or_deformed(stripes: MakeStripes) -> None:
    trainer = _on_encoder(stripes(60)[0])
    assert trainer.copies is not None and trainer.copies.shape == (11, *trainer.inputs.shape)
    torch.manual_seed(0)
    same = (trainer._shown(torch.arange(60).repeat(20)) - trainer.inputs.repeat(20, 1)).abs().amax(1) < 1e-3
    assert 0.02 < float(same.float().mean()) < 0.2  # one in eleven


def test_the_generator_of_features_learns_and_the_encoder_stays_as_it_is(
    stripes: MakeStripes, pool_of: MakePool
) -> None:
    images, labels = stripes(60)
    encoder = fit_encoder(images)
    torch.manual_seed(0)
    trainer = GANTrainer(
        replace(QUICK, name="gan", network="encoder"),
        (16, 16, 1),
        4,
        to_tensor(images, "cpu"),
        PoolFeatures(encoder, images, "cpu"),
    )
    assert trainer.generator is not None
    before = [each.clone() for each in trainer.generator.parameters()]
    trainer.run_epoch(1, TrainingSets.of(pool_of(images, labels[:30]), "cpu"))
    after = list(trainer.generator.parameters())
    # The bias before a batch norm has no slope.
    assert sum(not torch.equal(old, new) for old, new in zip(before, after, strict=True)) >= len(after) - 2
    assert all(bool(torch.isfinite(each).all()) for each in after)
    assert torch.equal(trainer.preprocess.basis, encoder.preprocessing().basis)  # type: ignore[arg-type]


def test_pate_plus_learns_from_disagreement_only(stripes: MakeStripes) -> None:
    images, labels = stripes(60)
    settings = replace(QUICK, name="pate+", network="small-cnn", additions=())
    trainer = GANTrainer(settings, (16, 16, 1), 4, to_tensor(images, "cpu"))
    for network in trainer.networks:
        network.eval()  # without noise, so that the two passes here are the same
    x, y = trainer.inputs[:30], torch.from_numpy(labels[:30])
    with torch.no_grad():
        logits = [network.logits(x) for network in trainer.networks]
    figures, disagree, _ = trainer._learn_batch(x, y, trainer.inputs[30:], 0.8)
    assert torch.equal(disagree, logits[0].argmax(1) != logits[1].argmax(1))
    kept = math.ceil(0.8 * int(disagree.sum()) - 1e-9)
    assert figures[3].item() * 30 == pytest.approx(kept, abs=1e-4)
    losses = [torch.nn.functional.cross_entropy(each, y, reduction="none") for each in logits]
    chosen = [losses[1 - i][disagree].argsort()[:kept] for i in (0, 1)]
    expected = np.mean([losses[i][disagree][chosen[i]].mean().item() for i in (0, 1)])
    assert figures[0].item() == pytest.approx(expected, rel=1e-4)


def test_pate_plus_with_opinions_also_learns_what_is_undisputed(stripes: MakeStripes) -> None:
    images, labels = stripes(60)
    settings = replace(QUICK, name="pate+", network="small-cnn")
    trainer = GANTrainer(settings, (16, 16, 1), 4, to_tensor(images, "cpu"))
    for network, average in zip(trainer.networks, trainer.averages, strict=True):
        network.eval()
        network.load_state_dict(trainer.networks[0].state_dict())  # they agree on everything
        average.eval()
    x, y, u = trainer.inputs[:30], torch.from_numpy(labels[:30]), trainer.inputs[30:]
    opinions = trainer._opinions(torch.arange(30, 60), torch.zeros(4, dtype=torch.bool), 1.0)
    figures, disagree, _ = trainer._learn_batch(x, y, u, 0.8, opinions)
    assert not disagree.any()
    assert figures[3].item() == pytest.approx(math.ceil(gan.UNDISPUTED * 0.8 * 30) / 30, abs=1e-6)


def test_labels_that_both_contradict_are_found_and_never_all(stripes: MakeStripes, pool_of: MakePool) -> None:
    images, _ = stripes(60)
    trainer = GANTrainer(
        replace(QUICK, name="pate++", network="small-cnn"), (16, 16, 1), 4, to_tensor(images, "cpu")
    )
    with torch.no_grad():
        first, second = (average.logits(trainer.inputs).argmax(dim=1) for average in trainer.averages)
    labels = first.clone()
    labels[:30:3] = second[:30:3]  # one of the two is for it
    labels[1:30:3] = (first[1:30:3] + 1) % 4
    sets = TrainingSets.of(pool_of(images, labels[:30].numpy()), "cpu")
    expected = (first[:30] != labels[:30]) & (second[:30] != labels[:30])
    assert 0 < int(expected.sum()) < 30
    assert torch.equal(contradicted(trainer, sets), expected)
    other = torch.tensor(
        [next(k for k in range(4) if k not in (int(a), int(b))) for a, b in zip(first, second, strict=True)]
    )
    nobodys = TrainingSets.of(pool_of(images, other[:30].numpy()), "cpu")
    assert not contradicted(trainer, nobodys).any()  # something must teach the second stage
