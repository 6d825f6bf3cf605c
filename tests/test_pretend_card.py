"""Studies on a GPU that is not there: every tensor stays on its side, and what comes out is the CPU's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pretend_card import pretend_card

from pate_fed import Run, simulate
from pate_fed.cli.main import main
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


def test_on_a_card_all_parties_are_trained_in_one_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once: list[int] = []

    def counted(learners: list[Any], *args: Any) -> None:
        at_once.append(len(learners))
        fit(learners, *args)

    fit = batched._fit
    monkeypatch.setattr(batched, "_fit", counted)
    parties = {"parties": {"num_clients": 12}, "student": {"name": "encoder-head"}}
    for device in ("cpu", "cuda"):
        study = {**STUDY, **parties, "teacher": {"name": "small-cnn", "epochs": 1}}
        study["engine"] = {"backend": "inline", "device": device}
        with pretend_card():
            simulate(study, run_dir=tmp_path / device, quiet=True)
    assert at_once == [6, 6, 12]


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
