"""Teachers: they learn, repeat themselves, survive small parts, and their files are safe."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pate_fed.errors import InputError, IntegrityError, PateFedError
from pate_fed.learning import Teacher, TeacherSettings, teachers, train_teacher

QUICK = TeacherSettings(epochs=6)


def stripes(
    count: int, *, classes: int = 4, size: int = 16, channels: int = 1, seed: int = 0
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Noisy images whose class is the angle of a grating."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count)
    angle = labels[:, None, None] * np.pi / classes
    rows, columns = np.meshgrid(np.arange(size), np.arange(size), indexing="ij")
    wave = np.sin(1.2 * (rows * np.cos(angle) + columns * np.sin(angle)) + rng.uniform(0, 6, (count, 1, 1)))
    noisy = 127 + 60 * wave + rng.normal(0, 30, wave.shape)
    images = np.repeat(noisy.clip(0, 255).astype(np.uint8)[..., None], channels, axis=3)
    return images, labels.astype(np.int64)


@pytest.mark.parametrize(("size", "channels"), [(28, 1), (32, 3), (8, 1), (11, 3)])
def test_a_teacher_beats_chance(size: int, channels: int) -> None:
    images, labels = stripes(240, size=size, channels=channels)
    teacher = train_teacher(images, labels, num_classes=4, settings=QUICK, seed=0)
    fresh, truth = stripes(300, size=size, channels=channels, seed=1)
    predicted = teacher.predict(fresh)
    assert predicted.dtype == np.int64 and predicted.shape == (300,)
    assert np.mean(predicted == truth) > 0.6


def test_the_deep_network_learns() -> None:
    images, labels = stripes(60, size=8)
    settings = TeacherSettings(name="deep-cnn", epochs=8, learning_rate=1e-3)
    teacher = train_teacher(images, labels, num_classes=4, settings=settings, seed=0)
    assert np.mean(teacher.predict(images) == labels) > 0.6


@pytest.mark.parametrize("count", [1, 2, 29, 31])
def test_parts_of_any_size_work(count: int) -> None:
    images, labels = stripes(count)
    teacher = train_teacher(images, labels, num_classes=4, settings=QUICK, seed=0)
    assert set(teacher.predict(images)) <= set(range(4))


def test_one_class_alone_is_learnt_as_that_class() -> None:
    images, _ = stripes(40)
    labels = np.full(40, 2, dtype=np.int64)
    teacher = train_teacher(images, labels, num_classes=4, settings=QUICK, seed=0)
    assert np.all(teacher.predict(images) == 2)


def test_flat_images_work() -> None:
    images = np.zeros((5, 8, 8, 1), dtype=np.uint8)
    teacher = train_teacher(images, np.zeros(5, dtype=np.int64), num_classes=2, settings=QUICK, seed=0)
    assert np.all(teacher.predict(images) == 0)


def test_read_only_images_are_fine() -> None:
    images, labels = stripes(40)
    images.setflags(write=False)
    labels.setflags(write=False)
    teacher = train_teacher(images, labels, num_classes=4, settings=QUICK, seed=0)
    assert len(teacher.predict(images)) == 40


def test_no_images_give_no_classes() -> None:
    images, labels = stripes(10)
    teacher = train_teacher(images, labels, num_classes=4, settings=QUICK, seed=0)
    assert teacher.predict(images[:0]).shape == (0,)


def test_training_leaves_the_callers_randomness_alone() -> None:
    images, labels = stripes(30)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train_teacher(images, labels, num_classes=4, settings=QUICK, seed=0)
    assert torch.equal(torch.rand(3), expected)


PROGRAM = """
import hashlib, runpy, sys
import torch
torch.set_num_threads(1)
torch.manual_seed(int(sys.argv[2]))
helpers = runpy.run_path(sys.argv[1])
print(helpers["votes_digest"]())
"""


def votes_digest() -> str:
    """A digest of one teacher's votes, for another process to compare."""
    images, labels = stripes(64)
    teacher = train_teacher(images, labels, num_classes=4, settings=QUICK, seed=3)
    return hashlib.sha256(teacher.predict(stripes(500, seed=9)[0]).tobytes()).hexdigest()


def test_two_processes_give_the_same_votes() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM, __file__, noise], check=True, capture_output=True, text=True
        ).stdout
        for noise in ("1", "2")
    }
    assert len(found) == 1


def test_another_seed_gives_another_teacher() -> None:
    images, labels = stripes(64)
    one, two = (train_teacher(images, labels, num_classes=4, settings=QUICK, seed=s) for s in (0, 1))
    first, second = (next(each._model.parameters()) for each in (one, two))
    assert not torch.equal(first, second)


def test_saved_and_loaded_teachers_vote_alike(tmp_path: Path) -> None:
    images, labels = stripes(64)
    teacher = train_teacher(images, labels, num_classes=4, settings=QUICK, seed=0)
    path = tmp_path / "teacher.pt"
    teacher.save(path)
    again = Teacher.load(path)
    assert np.array_equal(again.predict(images), teacher.predict(images))
    assert again.settings == QUICK and again.num_classes == 4
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["teacher.pt"]


def test_damaged_files_are_refused(tmp_path: Path) -> None:
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


def test_a_file_whose_parts_do_not_fit_is_refused(tmp_path: Path) -> None:
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


def test_a_file_cannot_run_code(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (tmp_path / "ran",))  # type: ignore[return-value]

    path = tmp_path / "teacher.pt"
    torch.save({"kind": "teacher", "weights": Evil()}, path)
    with pytest.raises(IntegrityError):
        Teacher.load(path)
    assert not (tmp_path / "ran").exists()


def test_weights_that_are_not_numbers_do_not_vote() -> None:
    images, labels = stripes(20)
    teacher = train_teacher(images, labels, num_classes=4, settings=QUICK, seed=0)
    with torch.no_grad():
        teacher._model.output.bias[1] = float("nan")  # type: ignore[union-attr, index, operator]
    with pytest.raises(PateFedError, match=r"output\.bias"):
        teacher.predict(images)


def test_divergence_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = stripes(60)

    def broken(model: teachers.Classifier, pixels: torch.Tensor) -> None:
        model.std.fill_(float("nan"))

    monkeypatch.setattr(teachers.Classifier, "fit_scale", broken)
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


def test_other_images_than_the_models_are_refused() -> None:
    images, labels = stripes(20)
    teacher = train_teacher(images, labels, num_classes=4, settings=QUICK, seed=0)
    with pytest.raises(InputError, match="takes"):
        teacher.predict(stripes(5, size=28)[0])
