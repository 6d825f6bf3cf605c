"""Teachers of the user's own: what a part may be, and one sentence for each thing that it may not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier
from torch import nn

from pate_fed.errors import InputError
from pate_fed.learning import TeacherSettings
from pate_fed.learning.teachers.network import train_teacher
from pate_fed.learning.teachers.own import FittedTeacher, fit_own_teacher, is_network, make_own, try_own

IMAGES = np.random.default_rng(0).integers(0, 255, (30, 8, 8, 1), dtype=np.uint8)
ROWS = np.random.default_rng(1).normal(size=(30, 5))
LABELS = np.arange(30, dtype=np.int64) % 3
WHAT = "teacher 'ours:make'"


def network(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), classes))


class Net(nn.Module):
    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.layers = network(shape, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


class Says:
    """An estimator that predicts what it was told to."""

    def __init__(self, given: Any = 0) -> None:
        self.given = given

    def fit(self, x: Any, y: Any) -> None:
        pass

    def predict(self, x: Any) -> Any:
        return self.given(len(x)) if callable(self.given) else self.given


@pytest.mark.parametrize(
    ("part", "nets"),
    [
        (network, True),
        (Net, True),
        (DecisionTreeClassifier, False),
        (DecisionTreeClassifier(max_depth=2), False),
        (lambda shape, classes: DecisionTreeClassifier(), False),
    ],
)
def test_what_a_part_may_be(part: Any, nets: bool) -> None:
    made = make_own(part, what=WHAT, input_shape=(8, 8, 1), num_classes=3)
    assert is_network(made) is nets and made is not part
    try_own(part, IMAGES, what=WHAT, num_classes=3)


def test_an_estimator_learns_flat_inputs_is_seeded_and_stays_as_it_was_given() -> None:
    given = DecisionTreeClassifier(max_features=1)
    taught = [
        fit_own_teacher(
            make_own(given, what=WHAT, input_shape=(5,), num_classes=3),
            ROWS,
            LABELS,
            what=WHAT,
            num_classes=3,
            seed=seed,
        )
        for seed in (1, 1, 2)
    ]
    first, again, other = (teacher.predict(ROWS[:, ::-1]) for teacher in taught)
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert np.array_equal(taught[0].predict(ROWS), LABELS)
    assert not hasattr(given, "tree_")
    seen: list[Any] = []
    FittedTeacher(Says(lambda n: seen.append(n) or np.zeros(n)), what=WHAT, num_classes=3).predict(IMAGES)
    assert seen == [30]


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (3, "is a int; a factory or an object with fit and predict is meant"),
        (lambda shape, classes: 3, "made a int; a torch.nn.Module or an object"),
        (lambda shape: network(shape, 3), "fails when it is made (TypeError"),
        (lambda shape, classes: network((7, 7), classes), "fails on images (8, 8, 1) (RuntimeError"),
        (lambda shape, classes: network(shape, 4), "gives (24, 4) for 24 images; logits (24, 3) are meant"),
        (Says(lambda n: np.zeros((n, 3))), "predict gives float64 (24, 3) for 24 inputs; one class each"),
        (Says(lambda n: np.full(n, np.nan)), "predict gives numbers that are no classes; 0 to 2 are meant"),
        (Says(lambda n: np.full(n, 0.5)), "predict gives numbers that are no classes"),
        (Says(lambda n: np.full(n, 3)), "votes for classes 3 to 3; 0 to 2 are meant"),
        (Says(lambda n: np.full(n, -1)), "votes for classes -1 to -1"),
        (Says(lambda n: ["a"] * n), "predict gives <U1 (24,) for 24 inputs"),
        (Says(lambda n: 1 / 0), "predict fails (ZeroDivisionError"),
        (DummyClassifier(strategy="constant", constant=7), "fit fails (ValueError"),
    ],
)
def test_a_wrong_part_is_one_sentence_that_names_it(part: Any, said: str) -> None:
    with pytest.raises(InputError) as refused:
        try_own(part, IMAGES, what=WHAT, num_classes=3)
    assert str(refused.value).startswith(f"{WHAT}: ") and said in str(refused.value)


def test_a_network_learns_from_rows_in_their_shape_and_by_its_seed() -> None:
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 3, 120)
    rows = rng.normal(size=(120, 2 * 2 * 3))
    rows[np.arange(120), 4 * labels] += 4  # one number of a volume tells its class
    seen = list[tuple[int, ...]]()

    class Volumes(nn.Sequential):
        def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
            super().__init__(nn.Flatten(), nn.Linear(12, num_classes))

        def forward(self, x: torch.Tensor) -> Any:
            seen.append((x.dtype, *x.shape[1:]))  # type: ignore[arg-type]
            return super().forward(x)

    try_own(Volumes, rows, shape=(2, 2, 3), what=WHAT, num_classes=3)

    def taught(seed: int) -> tuple[Any, Any]:
        made = make_own(
            Volumes,
            what=WHAT,
            input_shape=(2, 2, 3),
            num_classes=3,
            rows=True,
            settings=TeacherSettings(epochs=60),
        )
        teacher = fit_own_teacher(made, rows, labels, what=WHAT, num_classes=3, seed=seed)
        return teacher.predict(rows), made.network[1].weight.detach().numpy()

    (found, weights), (_, again), (_, other) = taught(0), taught(0), taught(1)
    assert np.mean(found == labels) > 0.9
    assert np.array_equal(weights, again) and not np.array_equal(weights, other)
    assert set(seen) == {(torch.float32, 2, 2, 3)}
    with pytest.raises(
        InputError, match=r"fit fails \(ValueError: gives \(2, 12\); logits \(2, 3\) are meant"
    ):
        try_own(lambda shape, classes: nn.Flatten(), rows, what=WHAT, num_classes=3)
    try_own(DecisionTreeClassifier, ROWS, what=WHAT, num_classes=3)


def test_a_network_s_first_weights_follow_from_the_seed() -> None:
    images = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 1)).astype(np.uint8)
    settings = TeacherSettings(name="m:make", epochs=1)

    def trained(seed: int) -> dict[str, Any]:
        teacher = train_teacher(
            images, np.arange(20) % 2, num_classes=2, settings=settings, seed=seed, make=blank
        )
        return {name: value.tolist() for name, value in teacher._model.state_dict().items()}

    def blank() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 2))

    assert trained(1) == trained(1) != trained(2)


def test_records_of_one_class_teach_that_class() -> None:
    rows = np.zeros((5, 2))
    fitted = fit_own_teacher(
        LogisticRegression(), rows, np.full(5, 1), what="teacher 'm:make'", num_classes=3, seed=0
    )
    assert fitted.predict(rows).tolist() == [1] * 5
