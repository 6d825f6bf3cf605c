"""Settings say which key is wrong, what it was and what is allowed."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError

import pytest

from pate_fed.errors import InputError
from pate_fed.learning import ADDITIONS, STUDENTS, StudentSettings, TeacherSettings


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


# arXiv 2211.01628: section IV-A for batch, η and α; R(e), its 15 and β of Tables I and III; τ of Table III;
# epochs of section III-C. The authors' train_mnist_fm_custom_labels.py, and vat_tf's README and defaults.
PAPERS = {
    "co-teaching": {"batch_size": 100, "rate": 0.01, "beta": 0.2, "ramp": 15, "total_epochs": 400},
    "pate+": {"batch_size": 100, "rate": 0.01, "beta": 0.2, "ramp": 15, "total_epochs": 400},
    "pate++": {"rate": 0.01, "beta": 0.2, "ramp": 15, "tau": 0.318, "count_decay": 0.9, "total_epochs": 800},
    "gan": {"batch_size": 100, "rate": 0.003, "averaging": 1 - 0.0001, "total_epochs": 300},
    "vat": {"rate": 0.001, "averaging": 0.0, "total_epochs": 533},
}


@pytest.mark.parametrize("name", PAPERS)
def test_as_published_is_what_the_paper_says(name: str) -> None:
    preset = StudentSettings(name=name, as_published=True)
    assert {key: getattr(preset, key) for key in PAPERS[name]} == pytest.approx(PAPERS[name])
    assert preset.built_on == ("dense" if name == "gan" else "deep-cnn")
    assert not any(preset.adds(each) for each in ADDITIONS) and preset.said == f"{name} as published"
    rates = [preset.rate_in(epoch) / preset.rate for epoch in (1, preset.stage_epochs)]
    assert rates == pytest.approx([1, 1 if name != "vat" else 0.105], abs=2e-3)
    if name in ("co-teaching", "pate+", "pate++"):
        assert preset.averaging == 0 and preset.chosen("dropout") == preset.chosen("input_noise") == 0
    if name == "vat":  # 80 of 120 epochs, each of 400 steps
        assert preset.chosen("decay_start") == pytest.approx(80 / 120)
        assert preset.stage_epochs * 9000 / preset.batch_size == pytest.approx(120 * 400, rel=1e-3)


def test_what_is_given_stands_beside_as_published_even_if_it_is_our_default() -> None:
    given = StudentSettings(name="pate++", as_published=True, epochs=10, ema_decay=0.998, network="small-cnn")
    assert (given.stage_epochs, given.averaging, given.built_on, given.rate) == (10, 0.998, "small-cnn", 0.01)
    assert given.said == "pate++ as published, but for network small-cnn, epochs 10, ema_decay 0.998"
    assert StudentSettings(name="gan", as_published=True, dropout=0.3).said.endswith("but for dropout 0.3")
    with pytest.raises(InputError, match="false is meant beside fixmatch"):
        StudentSettings(name="fixmatch", as_published=True)
    with pytest.raises(InputError, match="peers are meant beside head"):
        StudentSettings(additions=("head",))


@pytest.mark.parametrize(("epochs", "ramp"), [(1, 1), (5, 3), (10, 5), (30, 15), (400, 15)])
def test_the_ramp_ends_within_a_stage(epochs: int, ramp: int) -> None:
    assert StudentSettings(epochs=epochs).ramp == ramp
    assert StudentSettings(epochs=epochs, ramp_epochs=7).ramp == 7


def test_the_room_imports_without_torch() -> None:
    code = "import sys, pate_fed.learning as room; assert 'torch' not in sys.modules"
    code += "; [getattr(room, name) for name in room.__all__]; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
