"""Studies on a GPU that is not there: every tensor stays on its side, and what comes out is the CPU's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pretend_card import pretend_card

from pate_fed import Run, simulate
from pate_fed.cli.main import main
from pate_fed.errors import PateFedError
from pate_fed.learning.settings import STUDENTS, TEACHERS
from pate_fed.learning.teachers import batched

STUDY: dict[str, Any] = {
    "study": {"seed": 1},
    "parties": {"num_clients": 6},
    "data": {"glyph": {"classes": 3, "private": 120, "public": 48}},
    "aggregation": {"aggregator": "gnmax", "sigma2": 2.0},
    "queries": {"labels": 12, "max_queries": 12},
    "privacy": {"allow_weak": True},
}
MANY = 500  # operations on a card: one that nobody used would have done none


def _run(teacher: str, student: str, device: str, run_dir: Path) -> Run:
    parts = {"teacher": {"name": teacher, "epochs": 2}, "student": {"name": student, "epochs": 2}}
    engine = {"engine": {"backend": "inline", "device": device}}
    return simulate({**STUDY, **parts, **engine}, run_dir=run_dir, quiet=True)


def test_the_pretended_card_mixes_as_little_as_one() -> None:
    here = torch.ones(3, 4)
    with pretend_card() as card:
        assert card.operations == 0
        there = here.to("cuda")
        made = torch.zeros(3, 4, device="cuda")
        assert card.operations == 2
        made.add_(there[0])
        assert made.device.type == made[1:].device.type == (made + 1).device.type == "cuda"
        assert made.cpu().device.type == "cpu" and made.cpu().numpy().sum() == 12
        assert made.sum().item() == 12 and (made.sum() + torch.tensor(1.0)).item() == 13
        for mixed in (
            lambda: made + here,
            lambda: here @ made.T,
            lambda: torch.nn.Linear(4, 2)(made),
            lambda: torch.cat([made, here]),
            lambda: made.gather(1, torch.zeros(3, 1, dtype=torch.int64)),
            lambda: here[made.bool()[:, 0]],
        ):
            with pytest.raises(RuntimeError, match="same device"):
                mixed()
        with pytest.raises(RuntimeError, match="generator"):
            torch.randn(3, device="cuda", generator=torch.Generator())
        with pytest.raises((RuntimeError, TypeError)):
            made.numpy()
        layer = torch.nn.Linear(4, 2).to("cuda")
        layer(made).square().sum().backward()
        assert layer.weight.grad is not None and layer.weight.grad.device.type == "cuda"
    assert torch.zeros(1).device.type == "cpu"


@pytest.mark.parametrize(
    ("teacher", "student"),
    [
        ("encoder-head", "encoder-head"),
        pytest.param("small-cnn", "pate++", marks=pytest.mark.slow),
        *(pytest.param(each, "supervised", marks=pytest.mark.slow) for each in TEACHERS),
        *(pytest.param("hog-linear", each, marks=pytest.mark.slow) for each in STUDENTS),
    ],
)
def test_a_study_on_a_card_gives_what_it_gives_on_a_cpu(teacher: str, student: str, tmp_path: Path) -> None:
    expected = _run(teacher, student, "cpu", tmp_path / "cpu")
    with pretend_card() as card:
        found = _run(teacher, student, "cuda", tmp_path / "cuda")
    assert card.operations > MANY
    if teacher == "small-cnn":  # whose dropout a card draws for all teachers at once
        assert len(found.labels.label) == len(expected.labels.label) == 12
        return
    np.testing.assert_array_equal(found.labels.label, expected.labels.label)
    assert found.metrics["accuracy"] == expected.metrics["accuracy"]


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Sizes of the groups that are trained, in their order."""
    at_once: list[int] = []

    def counted(learners: list[Any], *args: Any) -> None:
        at_once.append(len(learners))
        fit(learners, *args)

    fit = batched._fit
    monkeypatch.setattr(batched, "_fit", counted)
    yield at_once


def _teach(device: str, run_dir: Path) -> Run:
    parties = {"parties": {"num_clients": 12}, "student": {"name": "encoder-head"}}
    study = {**STUDY, **parties, "teacher": {"name": "small-cnn", "epochs": 1}}
    study["engine"] = {"backend": "inline", "device": device}
    with pretend_card():
        return simulate(study, run_dir=run_dir, quiet=True)


def test_on_a_card_all_parties_are_trained_in_one_program(groups: list[int], tmp_path: Path) -> None:
    for device in ("cpu", "cuda"):
        _teach(device, tmp_path / device)
    assert groups == [6, 6, 12]


def test_a_card_with_less_room_trains_smaller_groups(
    groups: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room for five is counted, and then there is none but for two at once, and for none at all."""
    five = batched.group_bytes(5, 10, (28, 28, 1), 3, batch=10)
    monkeypatch.setattr(batched, "_free", lambda device: five / batched._ROOM)
    fit, room = batched._fit, 2

    def fit_in_room(learners: list[Any], *args: Any) -> None:
        if len(learners) > room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        fit(learners, *args)

    monkeypatch.setattr(batched, "_fit", fit_in_room)
    assert len(_teach("cuda", tmp_path / "two").labels.label) == 12
    assert groups == [2] * 6  # tried were 12, 6 and 3
    room = 0

    def none(*_: Any) -> None:  # each alone, as its group did not fit
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("pate_fed.learning.teachers.network.fit_network", none)
    with pytest.raises(PateFedError, match="cuda has too little memory"):
        _teach("cuda", tmp_path / "none")


@pytest.mark.parametrize(
    ("method", "network"),
    [
        ("randres+ssl", "small-cnn"),
        pytest.param("randres+denoise-ssl", "deep-cnn", marks=pytest.mark.slow),
        pytest.param("randres+aug-descent", "small-cnn", marks=pytest.mark.slow),
        pytest.param("alibi", "small-cnn", marks=pytest.mark.slow),
        pytest.param("lp-2st", "resnet-18", marks=pytest.mark.slow),
        pytest.param("randres+normal", "light", marks=pytest.mark.slow),
        pytest.param("pate-fm+normal", "small-cnn", marks=pytest.mark.slow),
    ],
)
def test_private_labels_are_learnt_from_on_a_card(method: str, network: str, tmp_path: Path) -> None:
    options = f"--epsilon 2 --method {method} --network {network} --dataset glyph --records 200"
    options += " --student-epochs 1 --seed 1 --device cuda" + " --teachers 3" * method.startswith("pate-fm")
    with pretend_card() as card:
        assert main(["label-dp", *options.split(), "--run-dir", str(tmp_path / "run")]) == 0
    assert card.operations > MANY
