"""Students as TorchScript: alone, and fussy about what they take."""

from __future__ import annotations

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


def _load(path: Path) -> torch.jit.ScriptModule:
    """As code that has nothing of this package does."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        for name in [*sys.modules]:
            if name.partition(".")[0] in ("pate_fed", "clients", "server"):
                patch.setitem(sys.modules, name, None)  # an import of it is an error from here on
        warnings.simplefilter("ignore")  # torch calls TorchScript old
        return torch.jit.load(str(path))  # type: ignore[no-any-return, no-untyped-call]


def test_an_exported_student_needs_nothing_of_this_package(
    stripes: MakeStripes, train_on: TrainOn, tmp_path: Path
) -> None:
    images, labels = stripes(60, channels=3)
    for name in ("gan", "co-teaching"):
        student = train_on(images, labels[:30], replace(QUICK, name=name))
        student.export(tmp_path / "student.ts")
        model = _load(tmp_path / "student.ts")
        # Operations of torch alone, none that a package would have to add.
        assert {each.partition("::")[0] for each in torch.jit.export_opnames(model)} == {"aten"}
        with torch.no_grad():
            found = model(torch.from_numpy(images.copy())).numpy()
        assert np.allclose(found, student.predict_proba(images), atol=1e-5)
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
    model = _load(tmp_path / "student.ts")
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
