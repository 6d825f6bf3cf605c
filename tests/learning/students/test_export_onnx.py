"""Students as ONNX: what another runtime, which knows nothing of us, makes of the same images."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pate_fed.errors import InputError
from pate_fed.learning import StudentSettings
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
    ("name", "network"), [("co-teaching", "encoder"), ("supervised", "small-cnn"), ("encoder-head", None)]
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
    assert json.loads(told["image_shape"]) == list(images.shape[1:])
    assert b".py" not in (tmp_path / "student.onnx").read_bytes()  # no path of this machine


def test_without_the_package_the_error_says_what_to_install(
    stripes: MakeStripes, train_on: TrainOn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, labels = stripes(40, channels=1)
    student = train_on(images, labels[:20], StudentSettings(name="encoder-head"))
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(InputError, match=r"pip install 'pate-fed\[onnx\]'"):
        student.export_onnx(tmp_path / "student.onnx")
    assert not (tmp_path / "student.onnx").exists()
