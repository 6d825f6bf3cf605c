"""Students as TorchScript: alone, and fussy about what they take."""

from __future__ import annotations

import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pate_fed.learning import StudentSettings
from pate_fed.learning.students.student import Student

MakeStripes = Callable[..., tuple[NDArray[np.uint8], NDArray[np.int64]]]


TrainOn = Callable[..., Student]
QUICK = StudentSettings(epochs=1, batch_size=50, noise_rate=0.2)


ALONE = """
import sys, warnings
import numpy as np
import torch
warnings.simplefilter("ignore")
images = torch.from_numpy(np.load("images.npy"))
for name in sys.argv[1:]:
    with torch.no_grad():
        np.save(f"{name}.npy", torch.jit.load(f"{name}.ts")(images).numpy())
assert not any(name.startswith("pate_fed") for name in sys.modules)
"""


def test_an_exported_student_needs_nothing_of_this_package(
    stripes: MakeStripes, train_on: TrainOn, tmp_path: Path
) -> None:
    images, labels = stripes(60, channels=3)
    names = ("gan", "co-teaching")
    students = [train_on(images, labels[:30], replace(QUICK, name=name)) for name in names]
    np.save(tmp_path / "images.npy", images)
    for name, student in zip(names, students, strict=True):
        student.export(tmp_path / f"{name}.ts")
    subprocess.run([sys.executable, "-c", ALONE, *names], check=True, cwd=tmp_path)
    for name, student in zip(names, students, strict=True):
        assert np.allclose(np.load(tmp_path / f"{name}.npy"), student.predict_proba(images), atol=1e-5)
        # And the student itself is as before.
        student.save(tmp_path / "student.pt")
        assert np.array_equal(Student.load(tmp_path / "student.pt").predict(images), student.predict(images))


def test_an_exported_student_says_what_it_takes_and_refuses_anything_else(
    stripes: MakeStripes, train_on: TrainOn, tmp_path: Path
) -> None:
    images, labels = stripes(60)
    student = train_on(images, labels[:30], QUICK)
    student.class_names = ("a", "b", "c", "d")
    student.export(tmp_path / "student.ts")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls TorchScript old
        model = torch.jit.load(str(tmp_path / "student.ts"))  # type: ignore[no-untyped-call]
    pixels = torch.from_numpy(images.copy())
    assert tuple(model.image_shape) == images.shape[1:] and model.class_names == list(student.class_names)
    assert model.sharpness == student.sharpness
    assert not model(pixels).requires_grad
    # A traced network would take the first two, and answer: a pooled row more or less is no error to it.
    for wrong in (pixels / 255, pixels[:, :-1], pixels[..., 0], pixels.expand(-1, -1, -1, 3)):
        with pytest.raises(torch.jit.Error, match="uint8 values from 0 to 255"):
            model(wrong)
    # Its folders are this machine's affair.
    content = zipfile.ZipFile(tmp_path / "student.ts")
    assert not any(
        str(Path(__file__).parents[3]).encode() in content.read(name) for name in content.namelist()
    )
