"""Accuracy against ε: the noise, and all in small."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pate_fed.errors import InputError
from pate_fed.reproduce import Reproduction, frontier, reproduce, votes


def test_the_frontier_in_small(small: Reproduction, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {
        "LABELS": {2.0: 50, 6.0: 60},
        "SLOW_EPSILONS": (6.0,),
        "SLOW_STUDENTS": ("co-teaching",),
        "EPOCHS": 1,
    }
    for name, value in changes.items():
        monkeypatch.setattr(frontier, name, value)
    monkeypatch.setattr(frontier, "affordable_sigma2", lambda labels, epsilon, **named: 1 / epsilon)
    plan = replace(small, seeds=2)
    lines = reproduce("fashion-mnist-frontier", plan)
    shown = [line.split() for line in lines if line.startswith("encoder-head")]
    assert [line[1:3] for line in shown] == [
        ["encoder-head", "2"],
        ["encoder-head", "6"],
        ["co-teaching", "6"],
    ]
    assert "single, %" in lines[0] and sum(line.startswith("single: ") for line in lines) == 1
    assert any("79.6 % at ε 4.05" in line for line in lines)
    assert (plan.out_dir / "frontier.png").read_bytes().startswith(b"\x89PNG")
    assert reproduce("fashion-mnist-frontier", plan) == lines


def test_totals_may_not_change_under_the_rows(small: Reproduction, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontier, "affordable_sigma2", lambda labels, epsilon, **named: 1 / epsilon)
    reproduce("fashion-mnist-frontier", small)
    kept = small.out_dir / "totals-encoder-head.npz"
    np.savez(kept, totals=np.roll(votes.read_totals(kept), 1, axis=1))
    with pytest.raises(InputError, match="totals of encoder-head"):
        reproduce("fashion-mnist-frontier", small)
