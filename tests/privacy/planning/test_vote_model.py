"""Votes to plan with: assumed ones, and those of a past study."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pate_fed.errors import InputError
from pate_fed.privacy import plan
from pate_fed.privacy.planning.vote_model import Pool, assumed_votes, past_votes, past_votes_from_file


def test_right_chances_by_sampling() -> None:
    votes = assumed_votes(0.7, 5, 100)
    chances = votes.right_chance(20.0, 100)[:5]
    rng = np.random.default_rng(0)
    for row, chance in zip(votes.shares[:5], chances, strict=True):
        noisy = 100 * row + rng.normal(0, 20, (40_000, 5))
        assert np.mean(noisy.argmax(axis=1) == 0) == pytest.approx(chance, abs=0.012)


@pytest.mark.parametrize("agreement", [0.4, 0.753, 0.95])
def test_assumed_votes_agree_as_assumed(agreement: float) -> None:
    votes = assumed_votes(agreement, 10, 250)
    assert votes.shares[:, 0].mean() == pytest.approx(agreement, abs=0.03)
    assert (votes.shares.sum(axis=1) == pytest.approx(1.0)) and votes.shares.min() >= 0
    plurality = (votes.shares.argmax(axis=1) == 0).mean()
    assert plurality > agreement - 0.03


def test_past_totals_from_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    totals = rng.multinomial(50, [0.7, 0.2, 0.1], size=300)
    np.save(tmp_path / "totals.npy", totals)
    np.savez(tmp_path / "both.npz", totals=totals, labels=np.zeros(300, dtype=int))
    plain, both = (past_votes_from_file(tmp_path / name) for name in ("totals.npy", "both.npz"))
    np.testing.assert_allclose(plain.shares, totals / 50)
    assert "plurality" in plain.origin and "given label" in both.origin
    assert "private votes" in plain.origin
    terms = {"num_teachers": 20, "num_classes": 3, "epsilon": 2.0, "delta": 1e-5}
    made = plan(**terms, pool=Pool(votes=both), aggregator="gnmax")
    assert made.best and made.plurality_right == pytest.approx((totals.argmax(axis=1) == 0).mean())


@pytest.mark.parametrize("content", [b"", b"not an array", b"\x93NUMPY\x01\x00"])
def test_files_that_are_none_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "totals.npy"
    path.write_bytes(content)
    with pytest.raises(InputError, match="totals"):
        past_votes_from_file(path)


def test_missing_files_and_wrong_content_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no file"):
        past_votes_from_file(tmp_path / "none.npy")
    np.save(tmp_path / "negative.npy", np.array([[3, -1]]))
    np.savez(tmp_path / "other.npz", votes=np.array([[3, 1]]))
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object))
    for name in ("negative.npy", "other.npz", "objects.npy"):
        with pytest.raises(InputError, match=name):
            past_votes_from_file(tmp_path / name)


@pytest.mark.parametrize(
    ("totals", "labels"),
    [
        (np.zeros((0, 3)), None),
        ([[0, 0]], None),
        ([[3, 1]], [2]),
        ([[3, 1]], [0, 1]),
        ([[3, 1]], [0.5]),
        ([[3, 1]], [-1]),
    ],
)
def test_past_votes_that_are_none_are_refused(totals: object, labels: object) -> None:
    with pytest.raises(InputError):
        past_votes(totals, labels)  # type: ignore[arg-type]
