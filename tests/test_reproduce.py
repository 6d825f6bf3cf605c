"""The harness behind `pate-fed reproduce`: its ε, its tables, and going on after a stop."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pate_fed import reproduce as harness
from pate_fed.errors import InputError
from pate_fed.learning import StudentSettings
from pate_fed.reproduce import Reproduction, proposition2_epsilon, proposition2_sigma, reproduce


@pytest.mark.parametrize(("asked", "answered", "sigma1"), [(2200, 2200, None), (5000, 2200, 150.0)])
def test_proposition_2_at_its_best_order(asked: int, answered: int, sigma1: float | None) -> None:
    orders = 1 + np.geomspace(1e-3, 1e4, 200_001)
    c = (asked / (2 * sigma1**2) if sigma1 else 0) + answered / 85.0**2
    slow = np.min(orders * c + math.log(1e5) / (orders - 1))
    found = proposition2_epsilon(asked=asked, answered=answered, sigma1=sigma1, sigma2=85.0, delta=1e-5)
    assert found == pytest.approx(slow, rel=1e-6)


@pytest.mark.parametrize("epsilon", [0.5, 4.05, 5.04])
def test_the_noise_costs_what_is_wanted(epsilon: float) -> None:
    sigma = proposition2_sigma(answered=2200, epsilon=epsilon, delta=1e-5)
    again = proposition2_epsilon(asked=2200, answered=2200, sigma1=None, sigma2=sigma, delta=1e-5)
    assert again == pytest.approx(epsilon, rel=1e-12)


def test_the_tables_are_the_papers() -> None:
    plan = Reproduction(data_dir=Path(), out_dir=Path(), seeds=2)
    cells = list(harness._cells(plan))
    assert len(cells) == len(set(cells)) == 2 * len(harness.PAPER)
    assert {cell[:4] for cell in cells} == set(harness.PAPER)
    sizes = [
        sum(1 for _ in harness._cells(Reproduction(data_dir=Path(), out_dir=Path(), seeds=1, tables=(t,))))
        for t in (1, 2, 3)
    ]
    assert sizes == [8, 6, 5]  # β 0.2 and τ 0.318 are already in table I


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Reproduction:
    """Two easy classes, few inputs, few teachers, one epoch."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 200)
    images = (labels[:, None, None, None] * 90 + rng.integers(0, 120, (200, 8, 8, 1))).astype(np.uint8)
    data = SimpleNamespace(
        private_images=images, private_labels=labels, public_images=images, public_labels=labels
    )
    monkeypatch.setattr(harness, "load_dataset", lambda name, data_dir: data)
    for name, value in {"TEACHERS": 5, "LABELS": 40, "TRAINED": 150, "CLASSES": 2}.items():
        monkeypatch.setattr(harness, name, value)
    monkeypatch.setattr(
        harness,
        "_student_settings",
        lambda plan, student, beta, tau: StudentSettings(
            name=student, noise_rate=beta, removal=tau, epochs=1, batch_size=50
        ),
    )
    return Reproduction(data_dir=tmp_path, out_dir=tmp_path / "out", seeds=2, tables=(1,))


def test_a_stopped_call_goes_on_where_it_was(tiny: Reproduction, monkeypatch: pytest.MonkeyPatch) -> None:
    true, count = harness._train, 0

    def failing(*args: object) -> object:
        nonlocal count
        count += 1
        if count == 4:
            raise KeyboardInterrupt
        return true(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(harness, "_train", failing)
    with pytest.raises(KeyboardInterrupt):
        reproduce("pate++-fashion-mnist", tiny)
    lines = reproduce("pate++-fashion-mnist", tiny)
    assert count == 1 + 16  # three before the stop are not trained again
    with tiny.file("runs", "csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 16 and {row["seed"] for row in rows} == {"0", "1"}
    assert any("74.8" in line for line in lines) and any("wrong" in line for line in lines)
    assert tiny.file("tables", "txt").read_text(encoding="utf-8").splitlines() == lines
    assert tiny.file("tables", "png").read_bytes().startswith(b"\x89PNG")
    with tiny.file("tables", "csv").open(encoding="utf-8", newline="") as file:
        summary = list(csv.DictReader(file))
    mean = 100 * np.mean(
        [float(r["accuracy"]) for r in rows if (r["student"], r["epsilon"]) == ("gan", "4.05")]
    )
    assert float(summary[0]["mean"]) == pytest.approx(mean, abs=0.01)


def test_ready_totals_are_used(tiny: Reproduction, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    totals = np.zeros((150, 2), dtype=np.uint8)
    totals[:, 1] = 5
    np.savez(tmp_path / "ready.npz", totals=totals)
    found = harness._totals(
        Reproduction(data_dir=tmp_path, out_dir=tmp_path, totals=tmp_path / "ready.npz"),
        None,  # type: ignore[arg-type]
        print,
    )
    assert found.dtype == np.int64 and found.sum() == 750


def test_what_cannot_be_done_is_named(tiny: Reproduction) -> None:
    with pytest.raises(InputError, match=r"pate\+\+-fashion-mnist"):
        reproduce("pate", tiny)
    tiny.out_dir.mkdir()
    tiny.file("runs", "csv").write_text("something else\n1\n", encoding="utf-8")
    with pytest.raises(InputError, match="remove it"):
        reproduce("pate++-fashion-mnist", tiny)
