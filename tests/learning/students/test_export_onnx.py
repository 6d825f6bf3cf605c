"""Students as ONNX: what another runtime, which knows nothing of us, makes of the same images."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pate_fed.errors import InputError
from pate_fed.learning import StudentSettings
from pate_fed.learning.students.export import write_onnx, write_torchscript
from pate_fed.learning.students.student import Student

MakeStripes = Callable[..., tuple[NDArray[np.uint8], NDArray[np.int64]]]
TrainOn = Callable[..., Student]

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

ALONE = """
import sys
import numpy as np
import onnxruntime
session = onnxruntime.InferenceSession("student.onnx")
np.save("found.npy", session.run(None, {"images": np.load("images.npy")})[0])
print(__import__("json").dumps(session.get_modelmeta().custom_metadata_map))
assert not any(name.split(".")[0] in ("pate_fed", "torch") for name in sys.modules)
"""


@pytest.mark.parametrize(
    ("name", "network"),
    [
        pytest.param("co-teaching", "encoder", marks=pytest.mark.slow),
        ("supervised", "small-cnn"),
        ("encoder-head", None),
    ],
)
def test_another_runtime_gives_the_same(
    stripes: MakeStripes, train_on: TrainOn, tmp_path: Path, name: str, network: str | None
) -> None:
    images, labels = stripes(60, channels=1)
    settings = StudentSettings(name=name, network=network, epochs=1, batch_size=50, noise_rate=0.2)
    student = train_on(images, labels[:30], settings)
    student.class_names, student.sharpness = ("flat", "ütterly steep"), 1.7
    student.export_onnx(tmp_path / "student.onnx", about={"epsilon": "2.758"})
    np.save(tmp_path / "images.npy", images[:7])
    done = subprocess.run(
        [sys.executable, "-c", ALONE], check=True, cwd=tmp_path, capture_output=True, text=True
    )
    assert np.allclose(np.load(tmp_path / "found.npy"), student.predict_proba(images[:7]), atol=1e-4)
    told = json.loads(done.stdout)
    assert json.loads(told["class_names"]) == ["flat", "ütterly steep"] and told["epsilon"] == "2.758"
    assert json.loads(told["image_shape"]) == list(images.shape[1:]) and json.loads(told["sharpness"]) == 1.7
    assert b".py" not in (tmp_path / "student.onnx").read_bytes()  # no path of this machine


class Branching(nn.Module):
    """Answers dark images otherwise than bright ones, which the operations of one image do not show."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(28 * 28, 2)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.linear(images.flatten(1))
        return logits if images.max() > 0 else -100 * logits


def test_a_network_that_branches_on_its_inputs_is_refused(
    tmp_path: Path,
) -> None:
    for write in (write_onnx, write_torchscript):
        with pytest.raises(InputError, match="branches on its inputs"):
            write([Branching()], (28, 28, 1), tmp_path / "student")
    assert not list(tmp_path.iterdir())


class Sorting(nn.Module):
    """An operation that ONNX has not."""

    def forward(self, images: Tensor) -> Tensor:
        return torch.special.bessel_j0(images.flatten(1)[:, :2])


def test_a_network_without_a_form_as_onnx_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no form as ONNX \(.*bessel"):
        write_onnx([Sorting()], (28, 28, 1), tmp_path / "student.onnx")


def test_without_the_package_the_error_says_what_to_install(
    stripes: MakeStripes, train_on: TrainOn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, labels = stripes(40, channels=1)
    student = train_on(images, labels[:20], StudentSettings(name="encoder-head"))
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(InputError, match=r"pip install 'pate-fed\[onnx\]'"):
        student.export_onnx(tmp_path / "student.onnx")
    assert not (tmp_path / "student.onnx").exists()
