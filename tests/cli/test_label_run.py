"""What `pate-fed label-dp` learns from and tests with: parts that do not fit are told before ε is spent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pate_fed.flower import prepare_environment

prepare_environment()

from pate_fed.cli.label_run import Records
from pate_fed.cli.main import main


def _command(records: Path, *more: str) -> list[str]:
    files = [
        word
        for option, part in (("", "train"), ("test-", "test"))
        for kind in ("images", "labels")
        for word in (f"--{option}{kind}", str(records / f"{part}-{kind}.npy"))
    ]
    return ["label-dp", "--dataset", "files", *files, "--classes", "3", "--epochs", "8", *more]


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("labels", lambda labels: labels[:-1], "--test-labels: 59 labels for 60 images"),
        ("labels", lambda labels: labels + 1, "--test-labels: a label is outside the classes: 0 to 2"),
        ("images", lambda images: images[:, :-1], "--test-images are 15×16×1 pixels and channels: 16×16×1"),
        ("images", lambda images: images[:-1], "--test-labels: 60 labels for 59 images"),
    ],
)
def test_a_test_part_that_does_not_fit_is_refused_before_labels_are_asked(
    records: Path,
    part: str,
    change: Callable[[np.ndarray], np.ndarray],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def spent(*_: object) -> None:
        raise AssertionError("labels were privatised")

    monkeypatch.setattr("pate_fed.kinds.label_dp.RandRes.release", spent)
    path = records / f"test-{part}.npy"
    np.save(path, change(np.load(path)))
    assert main(_command(records, "--epsilon", "1", "--method", "lp-1st")) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ") and message in error


def test_private_labels_do_not_tell_how_many_classes_there_are(
    records: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = _command(records, "--epsilon", "1")
    place = command.index("--classes")
    assert main(command[:place] + command[place + 2 :]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "give --classes K too" in error and "must not tell it" in error


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--insecure"], "--insecure: give --num-clients N too"),
        (["--hospitals", "4", "--insecure", "--seed", "1", "--out", "o"], "--seed 1 with --insecure"),
        (["--hospitals", "4", "--insecure", "--labels", "l.npy", "--out", "o"], "--labels l.npy with"),
        (["--hospitals", "4", "--tls-dir", "none", "--out", "o"], "none"),
        (["--hospitals", "4", "--address", "127.0.0.1:0", "--out", "o"], "--address"),
        (["--hospitals", "4", "--address", "10.1.2.3:900", "--insecure", "--out", "o"], "unprotected"),
        (["--hospitals", "4", "--init", "keys"], "--init keys: give --address HOST:PORT too"),
        (["--hospitals", "4", "--init", "keys", "--address", "localhost"], "give --address HOST:PORT too"),
        (["--hospitals", "4", "--init", "keys", "--method", "alibi"], "--num-clients with --method alibi"),
    ],
)
def test_what_hospitals_connect_to_must_be_clear(
    records: Path,
    more: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(records)
    command = ["label-dp", "--dataset", "files", "--images", "train-images.npy", "--epsilon", "1"]
    assert main([*command, "--method", "lp-1st", *more, "--classes", "3"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ") and message in error
    assert not (records / "keys").exists()


def test_missing_files_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["label-dp", "--epsilon", "1", "--dataset", "files"]) == 2
    assert "needs --images FILE" in capsys.readouterr().err
    folder = tmp_path / "file"
    folder.write_text("")
    assert main(["label-dp", "--epsilon", "1", "--dataset", "cifar100", "--data-dir", str(folder)]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_classes_without_records_are_for_their_owner_alone_and_stop_nothing() -> None:
    images = np.zeros((4, 8, 8, 1), dtype=np.uint8)
    full = Records(images=images, labels=np.array([0, 1, 2, 0]), num_classes=3)
    assert full.doubt is None
    assert Records(images=images, labels=None, num_classes=3).doubt is None
    one = Records(images=images, labels=np.array([0, 1, 1, 0]), num_classes=3)
    assert one.doubt is not None and one.doubt.startswith("class 2 has no records")
    two = Records(images=images, labels=np.array([1, 1, 1, 1]), num_classes=3)
    assert two.doubt is not None and two.doubt.startswith("classes 0, 2 have no records")
