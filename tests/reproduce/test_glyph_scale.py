"""Glyph at the size of P18: its parts, and all in small."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from pate_fed.data import GlyphSettings
from pate_fed.privacy import RECORD, GNMax, LNMax, epsilon_of
from pate_fed.reproduce import Reproduction, glyph_scale, reproduce


@pytest.mark.parametrize("kind", ["LNMax", "GNMax"])
def test_the_noise_at_equal_epsilon_costs_that_and_a_tenth_less_more(kind: str) -> None:
    noise = glyph_scale.noise_for(kind, queries=4000, epsilon=2.0)

    def cost(value: float) -> float:
        size = {"num_teachers": 1, "num_classes": 150}
        one = GNMax(**size, sigma=value) if kind == "GNMax" else LNMax(**size, scale=value)
        return epsilon_of((one.cost_asked(RECORD) * 4000).as_totals, 1e-8)

    assert cost(noise) <= 2.0 < cost(noise - 0.1)


def test_simulated_teachers_vote_by_the_real_ones_shares() -> None:
    totals = np.array([[200, 50, 0], [0, 0, 250]])
    drawn = glyph_scale.simulated_totals(totals, teachers=5000, seed=1, queries=600)
    assert drawn.shape == (600, 3) and (drawn.sum(axis=1) == 5000).all()
    shares = drawn[::2].mean(axis=0) / 5000
    assert shares == pytest.approx([0.8, 0.2, 0.0], abs=0.01)
    assert drawn[1::2, 2].mean() > 4950


def test_glyph_in_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "CLASSES": 5,
        "PRIVATE": 300,
        "ASKED": 100,
        "REAL": (10, 20, 1000),
        "SIMULATED": (100, 400),
        "BASIS": 20,
        "SHARES": (0.02, 0.1),
        "QUERIES": 150,
        "EPSILONS": (1.0, 4.0),
    }.items():
        monkeypatch.setattr(glyph_scale, name, value)
    monkeypatch.setenv("PATE_FED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(glyph_scale, "GlyphSettings", lambda **given: GlyphSettings(**given, public=200))
    true = glyph_scale.ensemble_totals
    monkeypatch.setattr(
        glyph_scale, "ensemble_totals", lambda plan, data, count, log: true(plan, data, min(count, 30), log)
    )
    plan = Reproduction(data_dir=None, out_dir=tmp_path / "out")
    said: list[str] = []
    lines = reproduce("scalable-glyph", plan, on_progress=said.append)
    assert any("DO NOT PUBLISH" in line for line in lines)
    shares = [float(line.split("(")[-1].split()[0]) for line in lines if line.endswith("%)")]
    assert shares[0] == 100 and shares[0] > shares[1] > shares[2]
    with (plan.out_dir / "scalable-glyph-figure-4.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["mechanism"] for row in rows} == {"LNMax", "GNMax"}
    assert {line.split()[0] for line in lines} >= {"10", "20", "1000", "100", "400"}
    assert (plan.out_dir / "scalable-glyph.png").read_bytes().startswith(b"\x89PNG")
    count = len(said)
    assert reproduce("scalable-glyph", plan, on_progress=said.append) == lines and len(said) == count + 1
