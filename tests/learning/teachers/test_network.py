"""Teachers: they learn, repeat themselves, survive small parts, and their files are safe."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pate_fed.errors import InputError, IntegrityError, PateFedError
from pate_fed.learning import TeacherSettings
from pate_fed.learning.networks.classifiers import Standardisation
from pate_fed.learning.teachers.network import Teacher, fit_network, train_teacher

MakeStripes = Callable[..., tuple[NDArray[np.uint8], NDArray[np.int64]]]


QUICK = TeacherSettings(name="small-cnn", epochs=6)


@pytest.mark.parametrize(("size", "channels"), [(28, 1), (32, 3), (8, 1), (11, 3)])
def test_a_teacher_beats_chance(stripes: MakeStripes, size: int, channels: int) -> None:
    images, labels = stripes(240, size=size, channels=channels)
    teacher = train_teacher(images, labels, num_classes=4, settings=QUICK, seed=0)
    fresh, truth = stripes(300, size=size, channels=channels, seed=1)
    predicted = teacher.predict(fresh)
    assert predicted.dtype == np.int64 and predicted.shape == (300,)
    assert np.mean(predicted == truth) > 0.6


@pytest.mark.slow
def test_the_deep_network_learns(stripes: MakeStripes) -> None:
    images, labels = stripes(60, size=8)
    settings = TeacherSettings(name="deep-cnn", epochs=8, learning_rate=1e-3)
    teacher = train_teacher(images, labels, num_classes=4, settings=settings, seed=0)
    assert np.mean(teacher.predict(images) == labels) > 0.6


@pytest.mark.parametrize("count", [1, 2, 29, 31])
def test_parts_of_any_size_work(stripes: MakeStripes, count: int) -> None:
    images, labels = stripes(count)
    teacher = train_teacher(images, labels, num_classes=4, settings=QUICK, seed=0)
    assert set(teacher.predict(images)) <= set(range(4))


def test_one_class_alone_is_learnt_as_that_class(stripes: MakeStripes) -> None:
    images, _ = stripes(40)
    labels = np.full(40, 2, dtype=np.int64)
    teacher = train_teacher(images, labels, num_classes=4, settings=QUICK, seed=0)
    assert np.all(teacher.predict(images) == 2)


def test_flat_images_work() -> None:
    images = np.zeros((5, 8, 8, 1), dtype=np.uint8)
    teacher = train_teacher(images, np.zeros(5, dtype=np.int64), num_classes=2, settings=QUICK, seed=0)
    assert np.all(teacher.predict(images) == 0)


def test_read_only_images_are_fine(stripes: MakeStripes) -> None:
    images, labels = stripes(40)
    images.setflags(write=False)
    labels.setflags(write=False)
    teacher = train_teacher(images, labels, num_classes=4, settings=QUICK, seed=0)
    assert len(teacher.predict(images)) == 40


def test_no_images_give_no_classes(stripes: MakeStripes) -> None:
    images, labels = stripes(10)
    teacher = train_teacher(images, labels, num_classes=4, settings=QUICK, seed=0)
    assert teacher.predict(images[:0]).shape == (0,)


def test_training_leaves_the_callers_randomness_alone(stripes: MakeStripes) -> None:
    images, labels = stripes(30)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train_teacher(images, labels, num_classes=4, settings=QUICK, seed=0)
    assert torch.equal(torch.rand(3), expected)


def outcome(noise: str) -> str:
    """What a teacher and a student say, and how the student came about."""
    import hashlib

    import numpy as np
    import torch

    from pate_fed.learning import StudentSettings, TeacherSettings
    from pate_fed.learning.students.train import train_student
    from pate_fed.learning.students.trainer import LabelledPool
    from pate_fed.learning.teachers.network import train_teacher

    torch.set_num_threads(1)
    torch.manual_seed(int(noise))  # the caller's own randomness must not matter
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (40, 8, 8, 1), dtype=np.uint8)
    labels = rng.integers(0, 3, 40)
    settings = TeacherSettings(name="small-cnn", epochs=2)
    teacher = train_teacher(images, labels, num_classes=3, settings=settings, seed=3)
    pool = LabelledPool(images=images, labelled_index=np.arange(20), labels=labels[:20], num_classes=3)
    student = train_student(pool, StudentSettings(epochs=2, batch_size=20), seed=3)
    digests = [hashlib.sha256(model.predict(images).tobytes()).hexdigest() for model in (teacher, student)]
    return f"{digests} {student.history}"


@pytest.mark.processes
def test_two_processes_give_the_same_votes_and_the_same_student() -> None:
    program = f"import sys\n{inspect.getsource(outcome)}\nprint(outcome(sys.argv[1]))"
    there = subprocess.run(
        [sys.executable, "-c", program, "2"], stdout=subprocess.PIPE, text=True, check=True, timeout=120
    )
    assert there.stdout.strip() == outcome("1")


def test_another_seed_gives_another_teacher(stripes: MakeStripes) -> None:
    images, labels = stripes(64)
    one, two = (train_teacher(images, labels, num_classes=4, settings=QUICK, seed=s) for s in (0, 1))
    first, second = (next(each._model.parameters()) for each in (one, two))
    assert not torch.equal(first, second)


def test_saved_and_loaded_teachers_vote_alike(stripes: MakeStripes, tmp_path: Path) -> None:
    images, labels = stripes(64)
    teacher = train_teacher(images, labels, num_classes=4, settings=QUICK, seed=0)
    path = tmp_path / "teacher.pt"
    teacher.save(path)
    again = Teacher.load(path)
    assert np.array_equal(again.predict(images), teacher.predict(images))
    assert again.settings == QUICK and again.num_classes == 4
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["teacher.pt"]


def test_damaged_files_are_refused(stripes: MakeStripes, tmp_path: Path) -> None:
    images, labels = stripes(20)
    path = tmp_path / "teacher.pt"
    train_teacher(images, labels, num_classes=4, settings=QUICK, seed=0).save(path)
    whole = path.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], b"not a model at all"):
        path.write_bytes(damaged)
        with pytest.raises(IntegrityError, match=r"teacher\.pt"):
            Teacher.load(path)
    with pytest.raises(InputError, match="missing"):
        Teacher.load(tmp_path / "missing.pt")


def test_a_file_whose_parts_do_not_fit_is_refused(stripes: MakeStripes, tmp_path: Path) -> None:
    images, labels = stripes(20)
    path = tmp_path / "teacher.pt"
    train_teacher(images, labels, num_classes=4, settings=QUICK, seed=0).save(path)
    content = torch.load(path, weights_only=True)
    content["num_classes"] = 5
    torch.save(content, path)
    with pytest.raises(IntegrityError, match="do not fit"):
        Teacher.load(path)
    content["kind"] = "student"
    torch.save(content, path)
    with pytest.raises(IntegrityError, match="not a teacher"):
        Teacher.load(path)


def test_weights_that_are_not_numbers_do_not_vote(stripes: MakeStripes) -> None:
    images, labels = stripes(20)
    teacher = train_teacher(images, labels, num_classes=4, settings=QUICK, seed=0)
    with torch.no_grad():
        teacher._model.output.bias[1] = float("nan")  # type: ignore[union-attr, index, operator]
    with pytest.raises(PateFedError, match=r"output\.bias"):
        teacher.predict(images)


def test_divergence_is_named(stripes: MakeStripes, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = stripes(60)

    def broken(preprocess: Standardisation, pixels: torch.Tensor) -> None:
        preprocess.std.fill_(float("nan"))

    monkeypatch.setattr(Standardisation, "fit", broken)
    with pytest.raises(PateFedError, match=r"loss is not finite in epoch 1"):
        train_teacher(images, labels, num_classes=4, settings=QUICK, seed=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": np.zeros((4, 8, 8), np.uint8)}, "uint8"),
        ({"images": np.zeros((4, 8, 8, 1), np.float32)}, "float32"),
        ({"images": np.zeros((4, 7, 8, 1), np.uint8)}, "at least 8"),
        ({"labels": np.array([0, 1, 2, 4])}, "0 to 3"),
        ({"labels": np.array([0, 1])}, r"\(4,\)"),
        ({"labels": np.array([0.0, 1, 2, 3])}, "float64"),
        ({"num_classes": 1}, "at least 2"),
        ({"device": "gpu"}, "auto, cpu"),
        ({"device": "cuda:99"}, "CUDA devices"),
    ],
)
def test_bad_input_is_named(change: dict[str, object], message: str) -> None:
    given: dict[str, object] = {
        "images": np.zeros((4, 8, 8, 1), np.uint8),
        "labels": np.arange(4),
        "num_classes": 4,
        "settings": QUICK,
        "seed": 0,
    }
    with pytest.raises(InputError, match=message):
        train_teacher(**(given | change))  # type: ignore[arg-type]


def test_no_records_at_all_is_named() -> None:
    with pytest.raises(InputError, match="0 records"):
        train_teacher(
            np.zeros((0, 8, 8, 1), np.uint8), np.zeros(0, np.int64), num_classes=2, settings=QUICK, seed=0
        )


def test_other_images_than_the_models_are_refused(stripes: MakeStripes) -> None:
    images, labels = stripes(20)
    teacher = train_teacher(images, labels, num_classes=4, settings=QUICK, seed=0)
    with pytest.raises(InputError, match="takes"):
        teacher.predict(stripes(5, size=28)[0])


def test_a_large_part_gets_fewer_passes() -> None:
    """Time for one teacher is bounded, so that few parties with many records do not take for ever."""
    settings = TeacherSettings(name="small-cnn", epochs=50, batch_size=2)
    calls: list[int] = []

    class Counted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1, 2))

        def logits(self, x: torch.Tensor) -> torch.Tensor:
            calls.append(len(x))
            return x.mean(dim=(1, 2, 3))[:, None] * self.weight

    labels = torch.zeros(800, dtype=torch.int64)
    fit_network(Counted(), torch.rand(800, 1, 8, 8), labels, settings)  # type: ignore[arg-type]
    assert len(calls) == 800  # two passes of 400 steps reach the 600
    calls.clear()
    fit_network(Counted(), torch.rand(8, 1, 8, 8), labels[:8], settings)  # type: ignore[arg-type]
    assert len(calls) == 200  # all 50 passes
