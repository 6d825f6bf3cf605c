"""The student "encoder-head": wrong labels, few labels, labels spread over the graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pate_fed.learning import StudentSettings
from pate_fed.learning.networks import heads
from pate_fed.learning.networks.encoder import fit_encoder
from pate_fed.learning.students import closed_form
from pate_fed.learning.students.closed_form import deformed_at_random, deformed_copies, small_changes
from pate_fed.learning.students.student import Student
from pate_fed.learning.students.train import train_student
from pate_fed.learning.students.trainer import LabelledPool

MakeStripes = Callable[..., tuple[NDArray[np.uint8], NDArray[np.int64]]]


TrainOn = Callable[..., Student]
MakePool = Callable[..., LabelledPool]
HEAD = StudentSettings(name="encoder-head")


def _centres(student: Student) -> int:
    """Of its kernel: the labelled images, or all where labels were spread."""
    return len(student._networks[0].output.centres)


def test_a_head_student_stands_wrong_labels_and_is_kept(
    stripes: MakeStripes, noisy_student: Callable[[str], Student], tmp_path: Path
) -> None:
    student = noisy_student("encoder-head")
    fresh, truth = stripes(300, seed=2)
    assert np.mean(student.predict(fresh) == truth) > 0.85
    (record,) = student.history
    assert record.test_accuracy is not None and record.test_accuracy > 0.8 and record.disagreements is None
    student.save(tmp_path / "s.pt")
    shares = student.predict_proba(fresh)
    assert np.allclose(shares.sum(axis=1), 1, atol=1e-5)
    assert np.array_equal(Student.load(tmp_path / "s.pt").predict_proba(fresh), shares)
    student.export(tmp_path / "s.ts")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls TorchScript old
        found = torch.jit.load(str(tmp_path / "s.ts"))(torch.from_numpy(fresh[:7]))
    assert np.allclose(found.numpy(), shares[:7], atol=1e-5)


def test_left_out_labels_calibrate_a_student(stripes: MakeStripes, train_on: TrainOn) -> None:
    images, truth = stripes(300)
    random = np.random.default_rng(0).integers(0, 4, 300)
    fresh, right = stripes(500, seed=2)
    shares = train_on(images, np.where(random < 2, truth, random), HEAD).predict_proba(fresh)
    accuracy = float(np.mean(shares.argmax(axis=1) == right))
    assert accuracy > 0.9
    assert abs(float(shares.max(axis=1).mean()) - accuracy) < 0.1


@pytest.mark.parametrize("labels", [[2], [2, 2, 2], [0, 1, 3]])
def test_few_labels_give_a_student(stripes: MakeStripes, train_on: TrainOn, labels: list[int]) -> None:
    student = train_on(stripes(300)[0], np.array(labels), HEAD)
    fresh, _ = stripes(50, seed=2)
    assert set(student.predict(fresh)) <= set(labels)  # a class without a label is not learnt


def test_more_labels_than_centres(
    stripes: MakeStripes, train_on: TrainOn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "MOST_CENTRES", 60)
    images, labels = stripes(300)
    labels[:120:5] = (labels[:120:5] + 1) % 4
    student, (fresh, truth) = train_on(images, labels[:120], HEAD), stripes(200, seed=2)
    assert np.mean(student.predict(fresh) == truth) > 0.8


def test_deformed_copies_move_turn_slant_and_grow() -> None:
    image = torch.zeros(1, 1, 28, 28)
    image[0, 0, 14, 6:22] = 1.0  # a line across, a little below the middle
    rows, columns = torch.meshgrid(torch.arange(28.0), torch.arange(28.0), indexing="ij")
    found = []
    for copy in deformed_copies(image):
        assert copy.shape == image.shape
        ink = copy / copy.sum()
        found.append([float((ink * rows).sum()), float((ink * columns).sum()), float(copy.sum())])
    (right, left, down, up), turned = found[:4], found[4:]
    middle = [14.0, 13.5]
    assert np.allclose([right[:2], left[:2]], [[14, 12.5], [14, 14.5]], atol=1e-4)
    assert np.allclose([down[:2], up[:2]], [[13, 13.5], [15, 13.5]], atol=1e-4)
    assert np.allclose([each[:2] for each in turned[:4]], [middle] * 4, atol=0.2)  # about the middle
    assert len(turned) == 6 and turned[4][2] < image.sum() < turned[5][2]


def test_each_image_of_a_batch_is_deformed_by_itself() -> None:
    image = torch.rand(1, 1, 28, 28)
    ways = torch.stack([image[0], *(copy[0] for copy in deformed_copies(image))])
    torch.manual_seed(0)
    shown = deformed_at_random(image.expand(200, -1, -1, -1), small_changes(image))
    nearest = (shown[:, None] - ways[None]).flatten(2).abs().amax(dim=2)
    assert nearest.amin(dim=1).max() < 1e-4  # each is one of the eleven
    assert len(nearest.argmin(dim=1).unique()) == 11


def test_few_labels_are_spread_over_all_images(stripes: MakeStripes, pool_of: MakePool) -> None:
    """Four labels a class and many images: the graph must make up for what the labels lack."""
    images, truth = stripes(500)
    some = np.concatenate([np.flatnonzero(truth == each)[:4] for each in range(4)])
    pool = pool_of(images, truth[some], index=some)
    student = train_student(pool, HEAD, seed=0)
    assert _centres(student) == len(images)  # it learnt all images' spread classes
    fresh, answers = stripes(400, seed=5)
    assert np.mean(student.predict(fresh) == answers) > 0.9


def test_contradicted_labels_are_not_spread(stripes: MakeStripes, pool_of: MakePool) -> None:
    """With a tenth of few labels wrong, the head learns what the neighbours say."""
    images, truth = stripes(500)
    some = np.concatenate([np.flatnonzero(truth == each)[:10] for each in range(4)])
    noisy = truth[some].copy()
    noisy[::10] = (noisy[::10] + 2) % 4
    pool = pool_of(images, noisy, index=some)
    student = train_student(pool, HEAD, seed=0)
    assert _centres(student) == len(images)  # it learnt all images' spread classes
    assert np.array_equal(student.predict(images[some[::10]]), truth[some[::10]])


def test_a_graph_and_a_head_speak_together_by_their_weight() -> None:
    scores = np.array([[3.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    said = np.log(np.array([[0.2, 0.7, 0.1], [0.1, 0.3, 0.6]], dtype=np.float32))
    shares = np.array([[0.75, 0.25, closed_form.LEAST], [closed_form.LEAST] * 3])
    for weight in (0.0, 0.3, 1.0):
        product = shares**weight * np.exp(said) ** (1 - weight)
        assert np.allclose(np.exp(closed_form._together(scores, said, weight)), product)
    assert closed_form._together(scores, said, 1.0)[0].argmax() == 0
    assert closed_form._together(scores, said, 0.0)[0].argmax() == 1


@pytest.mark.parametrize(("right", "weight"), [(40, 1.0), (30, 1.0), (23, 0.4888), (16, 0.0), (4, 0.0)])
def test_a_graph_of_few_labels_loses_its_say_bit_by_bit(
    right: int, weight: float, stripes: MakeStripes, pool_of: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It foretells `right` of 40 labels, the head three quarters, whose standard error is 0.0685."""
    images, truth = stripes(500)
    some = np.concatenate([np.flatnonzero(truth == each)[:10] for each in range(4)])
    told = np.eye(4)[np.where(np.arange(40) < right, truth[some], (truth[some] + 1) % 4)]
    monkeypatch.setattr(closed_form, "held_out_scores", lambda *given, **named: told)
    features = closed_form.PoolFeatures(fit_encoder(images), images, "cpu")
    pool = pool_of(images, truth[some], index=some)
    _, _, found, believed = closed_form._spreading(pool, features, agreement=0.75, seed=0)
    assert found == pytest.approx(weight, abs=1e-4) and believed.sum() == right
