"""Settings say which key is wrong, what it was and what is allowed."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError

import pytest

from pate_fed.errors import InputError
from pate_fed.learning import STUDENTS, StudentSettings, TeacherSettings


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "small-cn"}, ("name", "small-cn", "did you mean small-cnn")),
        ({"epochs": 0}, ("epochs", "0", "from 1 to 100,000")),
        ({"epochs": True}, ("epochs", "True", "whole number")),
        ({"batch_size": 2.0}, ("batch_size", "2.0", "whole number")),
        ({"learning_rate": 0.0}, ("learning_rate", "0.0", "above 0")),
        ({"learning_rate": float("nan")}, ("learning_rate", "nan")),
        ({"trees": 10**9}, ("trees", "from 1 to 100,000")),
        ({"weight_decay": -1.0}, ("weight_decay", "-1.0", "at least 0")),
        ({"label_smoothing": 1.0}, ("label_smoothing", "1.0", "below 1")),
    ],
)
def test_bad_teacher_settings(change: dict[str, object], words: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as caught:
        TeacherSettings(**change)  # type: ignore[arg-type]
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "coteaching"}, ("name", "co-teaching")),
        ({"network": "resnet"}, ("network", "encoder, small-cnn, deep-cnn, dense")),
        ({"noise_rate": 1.0}, ("noise_rate", "below 1")),
        ({"noise_rate": "high"}, ("noise_rate", "'high'")),
        ({"ema_decay": 1.0}, ("ema_decay", "below 1")),
        ({"ramp_epochs": 0}, ("ramp_epochs", "from 1 to")),
        ({"batch_size": 1}, ("batch_size", "from 2 to")),
        ({"test_every": 0}, ("test_every", "from 1 to")),
    ],
)
def test_bad_student_settings(change: dict[str, object], words: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as caught:
        StudentSettings(**change)  # type: ignore[arg-type]
    assert all(word in str(caught.value) for word in words)


def test_settings_are_frozen_and_beta_has_a_default() -> None:
    settings = StudentSettings()
    assert settings.noise_rate is None and settings.beta == StudentSettings.DEFAULT_NOISE_RATE
    assert StudentSettings(noise_rate=0.0).beta == 0.0
    with pytest.raises(FrozenInstanceError):
        settings.epochs = 3  # type: ignore[misc]


def test_what_a_student_is_built_on() -> None:
    on_pixels = {name for name in STUDENTS if StudentSettings(name=name).built_on == "small-cnn"}
    assert on_pixels == {"supervised", "vat"}
    assert StudentSettings().built_on == "encoder" and StudentSettings().co_teaching
    assert StudentSettings(name="fixmatch", network="small-cnn").built_on == "small-cnn"


@pytest.mark.parametrize(
    ("name", "network", "epochs"),
    [("co-teaching", None, 10), ("pate++", None, 20), ("pate++", "small-cnn", 20), ("supervised", None, 10)],
)
def test_every_stage_has_ten_epochs(name: str, network: str | None, epochs: int) -> None:
    assert StudentSettings(name=name, network=network).stage_epochs == 10
    assert StudentSettings(name=name, network=network).total_epochs == epochs


@pytest.mark.parametrize(
    ("name", "network", "ema_decay", "told"),
    [
        ("co-teaching", None, 0.998, True),
        ("pate++", "small-cnn", 0.998, True),
        ("pate++", "small-cnn", 0.0, False),  # the paper's
        ("gan", None, 0.998, True),
        ("gan", "small-cnn", 0.998, False),  # the improved GAN's
        ("supervised", None, 0.998, False),
    ],
)
def test_averaged_weights_tell_what_unlabelled_images_are(
    name: str, network: str | None, ema_decay: float, told: bool
) -> None:
    assert StudentSettings(name=name, network=network, ema_decay=ema_decay).adds("peers") is told


@pytest.mark.parametrize(("epochs", "ramp"), [(1, 1), (5, 3), (10, 5), (30, 15), (400, 15)])
def test_the_ramp_ends_within_a_stage(epochs: int, ramp: int) -> None:
    assert StudentSettings(epochs=epochs).ramp == ramp
    assert StudentSettings(epochs=epochs, ramp_epochs=7).ramp == 7


def test_the_room_imports_without_torch() -> None:
    code = "import sys, pate_fed.learning; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
