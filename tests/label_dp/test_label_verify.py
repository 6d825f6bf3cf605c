"""A run directory of private labels from hospitals: ε is computed again, and what does not fit is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate_fed.cli.main import main
from pate_fed.protocol.label_verify import verify_labels

Figures = dict[str, Any]


def _learn(folder: Path, method: str, *more: str) -> Path:
    out = folder / method
    command = ["label-dp", "--dataset", "files", "--images", str(folder / "images.npy"), "--classes", "2"]
    command += [
        "--labels",
        str(folder / "labels.npy"),
        "--epsilon",
        "2",
        "--method",
        method,
        "--out",
        str(out),
    ]
    command += ["--epochs", "1"] if method == "lp-1st" else ["--clusters", "4"]
    assert main([*command, *more]) == 0
    return out


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of 80 images whose bright half tells the class: responses, counts, and labels in one place."""
    folder = tmp_path_factory.mktemp("runs")
    labels = np.arange(80) % 2
    images = np.random.default_rng(0).integers(0, 50, (80, 16, 16, 1))
    images[labels == 1, :8] += 150
    np.save(folder / "images.npy", images.astype(np.uint8))
    np.save(folder / "labels.npy", labels)
    _learn(folder, "lp-1st", "--hospitals", "5")
    _learn(folder, "noise-cluster", "--hospitals", "5", "--seed", "1")
    (folder / "one").mkdir()
    for name in ("images.npy", "labels.npy"):
        shutil.copy(folder / name, folder / "one")
    _learn(folder / "one", "lp-1st")
    return folder


def test_epsilon_follows_from_the_terms(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    responded, counted = verify_labels(runs / "lp-1st"), verify_labels(runs / "noise-cluster")
    assert (responded.epsilon, responded.terms.delta, responded.answered) == (2.0, 0.0, 5)
    assert 1.9 < counted.epsilon <= 2 and counted.terms.delta == 1e-5 and counted.labels == 80
    capsys.readouterr()
    for action in ("show", "verify"):
        assert main(["ledger", action, str(runs / "noise-cluster")]) == 0
        said = capsys.readouterr().out
        assert counted.terms.digest in said and "ε=2 δ=1e-05 computed again" in said
        assert "not private: seeded noise" in said and "5 of 5 hospitals, 4 were needed; 80 of 80" in said
    assert main(["ledger", "verify", str(runs / "lp-1st"), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == responded.to_dict()


def test_what_has_no_terms_is_said(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger", "verify", str(runs / "one" / "lp-1st")]) == 2
    assert "the labels were in one place" in capsys.readouterr().err
    assert main(["ledger", "verify", str(runs / "lp-1st"), "--head", "ab" * 32]) == 2
    assert "goes with a ledger" in capsys.readouterr().err
    assert main(["ledger", "verify", str(runs)]) == 2
    assert "holds no ledger.sqlite" in capsys.readouterr().err


def _more_noise(figures: Figures) -> None:
    """The ε of twice the noise, as if the terms had said so."""
    figures["privacy"]["epsilon"] = figures["hospitals"]["coordinator"]["epsilon"] = 0.9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_more_noise, "more than was told"),
        (lambda f: f["hospitals"]["coordinator"].update(epsilon=0.5), "more than was told"),
        (lambda f: f["privacy"].update(epsilon=float("nan")), "more than was told"),
        (lambda f: f["privacy"].update(delta=1e-9), "δ: 1e-09, by the terms 1e-05"),
        (lambda f: f["privacy"].update(private=True), "whether the noise protects: True"),
        (lambda f: f["privacy"].update(adjacency="add-or-remove-one"), "unit and adjacency"),
        (lambda f: f["hospitals"].update(answered=3), "3 hospitals answered, 4 to 5"),
        (lambda f: f["hospitals"].update(asked=50), "the hospitals that were asked"),
        (lambda f: f["hospitals"]["terms"].update(pool_size=81), "the terms' digest"),
        (lambda f: f["hospitals"]["terms"].update(sigma_party=1.5), "sigma_party=1.5: more noise is meant"),
        (lambda f: f["hospitals"]["terms"].update(more=1), "missing or unknown"),
        (lambda f: f["hospitals"].pop("terms"), "missing or none"),
        (lambda f: f["hospitals"].update(answered="all"), "missing or none"),
    ],
)
def test_figures_that_do_not_follow_are_named(
    change: Callable[[Figures], None],
    message: str,
    runs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = shutil.copytree(runs / "noise-cluster", tmp_path / "run")
    figures = json.loads((run / "metrics.json").read_text())
    change(figures)
    (run / "metrics.json").write_text(json.dumps(figures))
    assert main(["ledger", "verify", str(run)]) == 6
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (None, "not there or damaged"),
        (np.zeros(79, dtype=np.int64), r"int64 (79,): int (80,)"),
        (np.zeros(80), "float64"),
        (np.full(80, 2), "outside the 2 classes"),
        (np.full(80, -2), "outside the 2 classes"),
    ],
)
def test_labels_that_the_terms_cannot_give_are_named(
    label: np.ndarray | None, message: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(runs / "lp-1st", tmp_path / "run")
    (run / "labels.npz").unlink()
    if label is not None:
        np.savez(run / "labels.npz", label=label)
    assert main(["ledger", "verify", str(run)]) == 6
    assert message in capsys.readouterr().err
