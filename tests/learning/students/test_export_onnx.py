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
from pate_fed.learning.features.build import build_feature_map
from pate_fed.learning.features.feature_map import FeatureSettings
from pate_fed.learning.students.class_sums import SumsStudent
from pate_fed.learning.students.export import write_onnx, write_sums_onnx, write_torchscript
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


@pytest.mark.parametrize("name", ["linear-and-kernel", "bins"])
def test_class_sums_of_a_table_are_the_same_there_whatever_is_missing(name: str, tmp_path: Path) -> None:
    import onnxruntime

    rng, columns = np.random.default_rng(0), (1, 3, 1)
    codes = np.eye(3)[rng.integers(0, 3, 200)]
    rows = np.column_stack([rng.normal(50, 20, 200), codes, rng.normal(0, 1, 200)])
    rows[::7, 0], rows[::5, 1:4] = np.nan, 0
    features = build_feature_map(FeatureSettings(name=name, columns=columns, dimension=30), rows[:100])
    student = SumsStudent(features, rng.normal(size=(features.dimension, 2)), sharpness=3.0)
    student.offset[:] = 0.2, -0.1
    told = [("age", ()), ("ward", ("A", "B", "C")), ("dose", ())]
    write_sums_onnx(student, tmp_path / "s.onnx", columns=told, class_names=("no", "yes"), about={"ε": "1"})
    session = onnxruntime.InferenceSession(tmp_path / "s.onnx")
    asked = np.vstack([rows, [[1e9, 0, 0, 0, np.nan], [-1e9, 1, 0, 0, 1e9]]])
    found = session.run(None, {"rows": asked})[0]
    assert found.dtype == np.float32 and np.abs(found - student.predict_proba(asked)).max() < 2e-3
    assert np.ptp(found[:, 0]) > 0.2
    known = session.get_modelmeta().custom_metadata_map
    assert json.loads(known["columns"])[1] == ["ward", ["A", "B", "C"]] and known["ε"] == "1"
    student.several = 1
    with pytest.raises(InputError, match="no form as ONNX"):
        write_sums_onnx(student, tmp_path / "other.onnx", columns=told)
    assert not (tmp_path / "other.onnx").exists()
