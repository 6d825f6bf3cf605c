"""A trained student: its probabilities and its file."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pate_fed.errors import InputError, IntegrityError
from pate_fed.learning import StudentSettings
from pate_fed.learning.students.student import Student
from pate_fed.learning.tensors import to_tensor

MakeStripes = Callable[..., tuple[NDArray[np.uint8], NDArray[np.int64]]]


TrainOn = Callable[..., Student]
Trained = Callable[[str], Student]


def test_probabilities_are_the_discriminators_mean(stripes: MakeStripes, train_on: TrainOn) -> None:
    images, labels = stripes(100)
    settings = StudentSettings(epochs=2, batch_size=50)
    student = train_on(images, labels[:20], settings)  # too few to calibrate it
    found = student.predict_proba(images)
    assert found.dtype == np.float32 and found.shape == (100, 4)
    assert np.allclose(found.sum(axis=1), 1, atol=1e-5)
    with torch.inference_mode():
        each = [network(to_tensor(images, "cpu")).softmax(dim=1).numpy() for network in student._networks]
    assert len(each) == 2 and np.allclose(found, (each[0] + each[1]) / 2, atol=1e-5)
    assert not np.allclose(each[0], each[1], atol=1e-3)


@pytest.mark.parametrize("name", ["pate++", "fixmatch", "encoder-head"])
def test_saved_and_loaded_students_are_alike(
    stripes: MakeStripes, noisy_student: Trained, tmp_path: Path, name: str
) -> None:
    images, _ = stripes(100)
    student, path = noisy_student(name), tmp_path / "student.pt"
    student.save(path)
    again = Student.load(path)
    assert np.array_equal(again.predict_proba(images), student.predict_proba(images))
    assert again.history == student.history and again.settings == student.settings
    made, remade = student.generate(4, seed=1), again.generate(4, seed=1)
    assert (made is None) == (name != "pate++")
    assert made is None or (remade is not None and np.array_equal(made, remade))
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_of_when_networks_were_small_cnns_by_default_is_read(
    stripes: MakeStripes, train_on: TrainOn, tmp_path: Path
) -> None:
    images, labels = stripes(60)
    settings = StudentSettings(name="pate++", network="small-cnn", epochs=1, batch_size=20)
    student, path = train_on(images, labels[:20], settings), tmp_path / "student.pt"
    student.save(path)
    content = torch.load(path, weights_only=True)
    content["settings"] |= {"network": None, "ramp_epochs": 15}
    torch.save(content, path)
    again, made = Student.load(path), student.generate(4)
    assert np.array_equal(again.predict_proba(images), student.predict_proba(images))
    assert made is not None and np.array_equal(again.generate(4), made)  # type: ignore[arg-type]


def test_an_unwritable_folder_is_named(noisy_student: Trained, tmp_path: Path) -> None:
    student = noisy_student("pate++")
    for write in (student.save, student.export):
        with pytest.raises(InputError, match="absent"):
            write(tmp_path / "absent" / "student.pt")
        (tmp_path / "folder").mkdir(exist_ok=True)
        with pytest.raises(InputError, match="folder"):
            write(tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_supervised_student_has_no_generator(noisy_student: Trained, tmp_path: Path) -> None:
    noisy_student("supervised").save(tmp_path / "student.pt")
    assert Student.load(tmp_path / "student.pt").generate(2) is None


def test_damaged_files_are_refused(noisy_student: Trained, tmp_path: Path) -> None:
    path = tmp_path / "student.pt"
    noisy_student("pate++").save(path)
    content = torch.load(path, weights_only=True)
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(IntegrityError, match=r"student\.pt"):
        Student.load(path)
    del content["weights"]["discriminator1"]
    torch.save(content, path)
    with pytest.raises(IntegrityError, match="do not fit"):
        Student.load(path)


def test_files_give_the_same_student(stripes: MakeStripes, train_on: TrainOn, tmp_path: Path) -> None:
    images, labels = stripes(40, size=8, channels=3)
    student = train_on(
        images, labels[:20], StudentSettings(name="gan", network="dense", epochs=1, batch_size=20)
    )
    student.save(tmp_path / "student.pt")
    student.export(tmp_path / "student.ts")
    again = Student.load(tmp_path / "student.pt")
    assert np.array_equal(again.predict_proba(images), student.predict_proba(images))
    made, remade = student.generate(4, seed=1), again.generate(4, seed=1)
    assert made is not None and made.shape == (4, 8, 8, 3) and np.array_equal(made, remade)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch calls TorchScript old
        exported = torch.jit.load(tmp_path / "student.ts")  # type: ignore[no-untyped-call]
        found = exported(torch.from_numpy(images.copy())).numpy()
    assert np.allclose(found, student.predict_proba(images), atol=1e-5)
