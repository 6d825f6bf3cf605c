"""Students of the user's own: networks in our loop, estimators on their own, and what is kept of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.naive_bayes import GaussianNB
from sklearn.tree import DecisionTreeClassifier
from torch import nn

from pate_fed.errors import InputError
from pate_fed.learning import StudentSettings
from pate_fed.learning.students.own import FittedStudent, fit_own_student, try_own_student
from pate_fed.learning.students.student import Student
from pate_fed.learning.students.train import train_student
from pate_fed.learning.students.trainer import LabelledPool

WHAT = "student 'm:make'"
LABELS = np.arange(60) % 3
ROWS = LABELS[:, None] + np.linspace(0, 0.3, 60)[:, None] + np.zeros((60, 2))
IMAGES = np.zeros((60, 8, 8, 1), dtype=np.uint8)
IMAGES[np.arange(60), LABELS] = 200  # another row of pixels for each class
SETTINGS = StudentSettings(name="m:make", epochs=30, learning_rate=0.03, ema_decay=0.0)


def blank(shape: tuple[int, ...], classes: int) -> nn.Module:
    size = int(np.prod(shape))
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(size), nn.Linear(size, classes))


def trained(seed: int = 1) -> Student:
    pool = LabelledPool(images=IMAGES, labelled_index=np.arange(30), labels=LABELS[:30], num_classes=3)
    return train_student(pool, SETTINGS, seed=seed, make=lambda: blank((8, 8, 1), 3))


def test_a_network_of_one_s_own_learns_in_our_loop_and_keeps_its_weights(tmp_path: Path) -> None:
    student = trained()
    assert (student.predict(IMAGES) == LABELS).all() and len(student.history) == 30
    same, other = trained(), trained(seed=2)
    assert np.array_equal(student.predict_proba(IMAGES), same.predict_proba(IMAGES))
    assert not np.array_equal(student.predict_proba(IMAGES), other.predict_proba(IMAGES))
    student.save(tmp_path / "student.pt")
    with pytest.raises(InputError, match="weights of m:make, code of the user's own"):
        Student.load(tmp_path / "student.pt")
    again = Student.load(tmp_path / "student.pt", network=blank((8, 8, 1), 3))
    assert np.array_equal(student.predict_proba(IMAGES), again.predict_proba(IMAGES))


def test_our_networks_go_with_our_students_alone() -> None:
    with pytest.raises(InputError, match="network"):
        replace(SETTINGS, network="encoder")


def fitted(estimator: Any) -> FittedStudent:
    places = np.arange(30)
    return fit_own_student(estimator, ROWS, places, LABELS[:30], what=WHAT, num_classes=4, seed=3)


def test_an_estimator_learns_from_the_labelled_inputs(tmp_path: Path) -> None:
    student = fitted(GaussianNB())
    assert (student.predict(ROWS) == LABELS).all()
    chances = student.predict_proba(ROWS)
    assert chances.shape == (60, 4) and chances.dtype == np.float32
    assert (chances[:, 3] == 0).all()  # no label named it
    student.kept = chances
    student.save(tmp_path / "student.pt")
    assert [path.name for path in tmp_path.iterdir()] == ["predictions.npz"]
    with np.load(tmp_path / "predictions.npz", allow_pickle=False) as held:
        assert np.array_equal(held["probabilities"], chances)


class Drawn(GaussianNB):
    """Draws while it fits, and has no seed of its own."""

    def fit(self, x: Any, y: Any) -> Drawn:
        self.drawn = np.random.rand()
        return super().fit(x, y)  # type: ignore[no-any-return]


def test_a_seed_repeats_what_an_estimator_draws_from_numpy() -> None:
    def drawn(seed: int) -> float:
        student = fit_own_student(
            Drawn(), ROWS, np.arange(30), LABELS[:30], what=WHAT, num_classes=3, seed=seed
        )
        return float(student.estimator.drawn)

    before = np.random.get_state()[1].copy()  # type: ignore[index, union-attr]
    assert drawn(1) == drawn(1) != drawn(2)
    assert np.array_equal(before, np.random.get_state()[1])  # type: ignore[index]


def test_one_may_learn_from_inputs_without_a_label_too() -> None:
    class Nearest:
        def fit(self, x_public: Any, index: Any, labels: Any) -> None:
            assert x_public.shape == (60, 2) and index.tolist() == list(range(30)) and len(labels) == 30

        def predict(self, x: Any) -> Any:
            return np.floor(x[:, 0]).astype(int)

    student = fitted(Nearest())
    assert (student.predict(ROWS) == LABELS).all()
    assert np.array_equal(student.predict_proba(ROWS), np.eye(4, dtype=np.float32)[LABELS])


class Told(GaussianNB):  # type: ignore[misc]
    """Keeps the probabilities that it gets."""

    got: Any = "nothing"

    def fit(self, x: Any, y: Any, probabilities: Any = None) -> None:
        assert len(x) == len(y)
        self.got = probabilities
        super().fit(x, y)


class ToldOfAll(Told):
    """The same of all public inputs."""

    def fit(self, x_public: Any, index: Any, labels: Any, probabilities: Any = None) -> None:
        super().fit(x_public[index], labels, probabilities)


@pytest.mark.parametrize("kind", [Told, ToldOfAll])
def test_probabilities_go_to_those_whose_fit_takes_them(kind: type[Told]) -> None:
    shares, told, plain = np.full((30, 4), 0.25, dtype=np.float32), kind(), kind()
    known: Any = {"what": WHAT, "num_classes": 4, "seed": 0}
    given = ROWS, np.arange(30), LABELS[:30]
    fit_own_student(told, *given, **known, probabilities=shares)
    assert told.got.dtype == np.float64 and np.array_equal(told.got, shares)
    fit_own_student(plain, *given, **known)
    assert plain.got is None
    other = fit_own_student(GaussianNB(), *given, **known, probabilities=shares)
    assert (other.predict(ROWS) == LABELS).all()


def test_a_part_is_tried_with_probabilities_where_these_will_come() -> None:
    class Needs(Told):
        def fit(self, x: Any, y: Any, probabilities: Any = None) -> None:
            super().fit(x, y, probabilities[: len(y)])

    try_own_student(Needs(), ROWS, what=WHAT, num_classes=3, with_probabilities=True)
    with pytest.raises(InputError, match="fit fails"):
        try_own_student(Needs(), ROWS, what=WHAT, num_classes=3)


def test_labels_of_one_class_are_learnt_by_any() -> None:
    one = fit_own_student(GaussianNB(), ROWS, np.arange(5), np.full(5, 2), what=WHAT, num_classes=4, seed=0)
    assert (one.predict(ROWS) == 2).all() and (one.predict_proba(ROWS)[:, 2] == 1).all()


class Given(DecisionTreeClassifier):  # type: ignore[misc]
    """Gives what it is told to give in place of probabilities."""

    def __init__(self, given: Any = None) -> None:
        super().__init__()
        self.given = given

    def predict_proba(self, x: Any) -> Any:
        if isinstance(self.given, Exception):
            raise self.given
        return self.given(len(x))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda n: np.full((n, 3), np.nan), "none of them NaN"),
        (lambda n: np.tile([2.0, -1.0, 0.0], (n, 1)), "none of them NaN or below 0"),
        (lambda n: np.full((n, 3), 0.5), "do not sum to 1"),
        (lambda n: np.full(n, 0.5), r"predict_proba gives \(60,\) for 60 inputs"),
        (lambda n: np.full((n, 7), 1 / 7), r"predict_proba gives \(60, 7\)"),
        (ValueError("no"), r"predict_proba fails \(ValueError: no, at .*"),
    ],
)
def test_wrong_probabilities_are_one_sentence(given: Any, said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        fitted(Given(given)).predict_proba(ROWS)
    assert str(refused.value).startswith(WHAT)


def test_a_part_is_tried_before_any_vote() -> None:
    class Broken(GaussianNB):  # type: ignore[misc]
        def fit(self, x_public: Any, index: Any, labels: Any) -> None:
            raise ValueError("no such labels")

    class Outside(GaussianNB):  # type: ignore[misc]
        def predict(self, x: Any) -> Any:
            return np.full(len(x), 9)

    try_own_student(GaussianNB(), ROWS, what=WHAT, num_classes=3)
    try_own_student(blank, IMAGES, what=WHAT, num_classes=3)
    try_own_student(blank, ROWS, what=WHAT, num_classes=3)
    for part, inputs, said in (
        (Broken(), ROWS, r"fit fails \(ValueError: no such labels"),
        (Outside(), ROWS, "classes 9 to 9; 0 to 2"),
        (lambda shape, classes: nn.Flatten(), ROWS, "fit fails .*logits"),
        (lambda shape, classes: nn.Flatten(), IMAGES, "logits"),
        (3, ROWS, "is a int; a factory or an object"),
    ):
        with pytest.raises(InputError, match=said) as refused:
            try_own_student(part, inputs, what=WHAT, num_classes=3)
        assert str(refused.value).startswith(WHAT)


def test_averages_keep_what_a_norm_has_measured() -> None:
    pool = LabelledPool(images=IMAGES, labelled_index=np.arange(30), labels=LABELS[:30], num_classes=3)
    averaged = train_student(pool, replace(SETTINGS, ema_decay=0.5), seed=1, make=lambda: blank((8, 8, 1), 3))
    norm = next(m for m in averaged._networks[0].modules() if isinstance(m, nn.BatchNorm1d))
    assert norm.running_mean is not None and bool((norm.running_mean != torch.zeros(64)).any())
