"""Checks of parts of one's own: the broken ones are told in words, right ones are not accused."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import foreign_mechanisms as foreign
import numpy as np
import own_parts
import pytest
from sklearn.linear_model import LogisticRegression

from pate_fed.errors import InputError
from pate_fed.privacy import Protection, Sensitivity
from pate_fed.testing import Check, audit_study, check_feature_map, check_kind, check_mechanism, check_teacher

RIGHT = [
    foreign.ForeignGNMax(40.0),
    foreign.ForeignLNMax(1.0),
    foreign.GumbelMax(1.0),
    foreign.ExponentialMax(40.0),
    foreign.ExponentialMechanism(5.0),
    foreign.RandomisedWinner(1.5),
    own_parts.Picky(3.0),
    own_parts.GeometricMax,
]
GLOBAL = np.random.default_rng(0)


@dataclass(frozen=True)
class Broken(own_parts.GeometricMax):
    """Says that its noise has 20 votes, on both counts."""

    scale: float = 20.0
    fault: str = ""
    seen: list[Any] = field(default_factory=list, repr=False)

    def parameters(self) -> dict[str, Any]:
        return {"scale": self.scale, "fault": self.fault}

    def rdp(self, order: float, sensitivity: Sensitivity) -> float:
        given = super().rdp(order, sensitivity)
        return given / 4 if self.fault == "sensitivity" and order < 1e4 else given

    def release(self, totals: Any, noise: Any) -> Any:
        kept = noise.discrete_laplace(totals.shape, scale=self.scale / (2 if self.fault == "half" else 1))
        drawn = {
            "own": lambda: GLOBAL.laplace(0, self.scale, len(totals)),
            "own, seeded": lambda: np.random.default_rng(1).laplace(0, self.scale, len(totals)),
            "kept": lambda: (self.seen.append(kept), self.seen[0])[1],
            "small votes": lambda: kept * (totals.sum() > 2),
        }.get(self.fault, lambda: kept)()
        if self.fault == "bit" and totals.max() < 100:
            return None
        rounded = totals // 10 * 10 if self.fault == "rounded" else totals
        return foreign.argmax(rounded + drawn, noise)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("half", "leaks more than it is charged for, one record replaced"),
        ("sensitivity", "leaks more than it is charged for, one record replaced"),
        ("bit", "leaks more than it is charged for, one record replaced (one vote"),
        ("small votes", "leaks more than it is charged for, one record replaced (one vote"),
        ("own", "has randomness of its own"),
        ("own, seeded", "leaks more than it is charged for"),
        ("kept", "remembers: other queries before change the label"),
    ],
)
def test_a_broken_mechanism_is_told_in_words(fault: str, said: str) -> None:
    found = check_mechanism(Broken(fault=fault))
    assert not found.passed and any(said in each for each in found.faults), str(found)
    assert "FAULT: " in str(found) and "no fault found" not in str(found)
    with pytest.raises(InputError, match="Broken: "):
        found.require()


def test_rounding_that_makes_a_vote_ten_is_found() -> None:
    found = check_mechanism(Broken(scale=4.0, fault="rounded"))
    assert any("leaks more than it is charged for" in each for each in found.faults), str(found)
    assert check_mechanism(Broken(scale=4.0), trials=1_500).passed


@pytest.mark.parametrize("part", RIGHT, ids=lambda part: getattr(part, "__name__", type(part).__name__))
def test_right_ones_are_not_accused(part: Any) -> None:
    found = check_mechanism(part, trials=1_500)
    assert found.passed, str(found)
    assert len(found.tried) in (2, 3) and "no fault found, which proves nothing" in str(found)
    found.require()


def test_of_other_units_too_and_what_claims_nothing_is_said() -> None:
    hospital = Protection(unit="hospital", adjacency="add-or-remove-one", votes_moved=3)
    assert check_mechanism(foreign.ExponentialMax(5.0), protection=hospital).passed
    found = check_mechanism(own_parts.Free)
    assert not found.passed and "claims an RDP of 0.0" in str(found)
    assert "wins by one draw of the gaussian noise" in str(check_mechanism(Liar()))


class Liar(foreign.ForeignGNMax):
    """Draws less than it says."""

    def release(self, totals: Any, noise: Any) -> int:
        return foreign.argmax(totals + noise.discrete_gaussian(totals.shape, sigma=self.sigma / 2), noise)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["half", "sensitivity", "bit", "small votes", "own", "own, seeded", "kept"])
def test_a_broken_one_is_caught_whatever_the_seed(fault: str) -> None:
    found = [check_mechanism(Broken(fault=fault), seed=seed) for seed in range(10)]
    assert sum(each.passed for each in found) == 0


@pytest.mark.slow
def test_many_checks_accuse_no_right_one() -> None:
    """One in 500 is accused at most: of 160, three would be by chance once in 200."""
    found = [check_mechanism(part, seed=seed, trials=2_000) for part in RIGHT for seed in range(20)]
    assert sum(not each.passed for each in found) < 3


def test_teachers() -> None:
    assert check_teacher(LogisticRegression(max_iter=50)).passed
    wrong = {
        "remembers": lambda *_: np.random.default_rng().integers(0, 3, 24),
        "gives": lambda *_: np.zeros((24, 3)),
    }
    for name, said in (("remembers", "has randomness of its own"), ("gives", "one class each")):
        part = type("Wrong", (), {"fit": lambda *_: None, "predict": staticmethod(wrong[name])})
        found = check_teacher(part)
        assert not found.passed and said in str(found)


def test_feature_maps() -> None:
    assert check_feature_map(own_parts.brightness).passed
    seen: list[int] = []

    def remembering(public: Any) -> Any:
        def encode(inputs: Any) -> Any:
            seen.append(len(inputs))
            return np.full((len(inputs), 2), min(0.7, len(seen) / 200))

        return encode

    found = check_feature_map(remembering)
    assert not found.passed and ("other features each time" in str(found) or "remembers" in str(found))


def test_kinds() -> None:
    sys.path.append(str(Path(__file__).parents[1] / "examples"))
    import own_kind

    rows = np.random.default_rng(0).normal(50, 10, size=(40, 1))
    labels = np.arange(40) % 2
    assert check_kind(own_kind.Median(high=100.0, bins=8, scale=3.0), rows, labels, trials=200).passed
    bare = type(
        "Bare", (own_kind.Median,), {"noise": lambda self, shape, *_: np.zeros(shape, dtype=np.int64)}
    )
    found = check_kind(bare(high=100.0, bins=8, scale=3.0), rows[:3], labels[:3], trials=200)
    assert not found.passed and "leaks more than it is charged for, one record replaced" in str(found)


def test_a_check_is_words() -> None:
    found = Check(name="mine", faults=("is wrong",), tried=("this",))
    assert str(found) == "mine:\n  FAULT: is wrong\n  tried: this" and not found.passed


def test_a_study_is_audited_from_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {"noise_at": "hospitals", "trials": 2_000, "seed": 1}
    found = audit_study(**given)
    assert found.passed and 0.4 < found.measured < found.charged == 2.0 and found.delta == 1e-6
    assert found.line().endswith("no fault found (so few trials find only large ones)")
    monkeypatch.setattr("clients.kinds.base.add_noise_share", lambda answer, draw, sigma_party: answer)
    found = audit_study(**given)
    assert not found.passed and found.measured > 3
    assert "200 of 200 guesses about 20000 canaries right" in found.line() and "FAULT" in found.line()
    for wrong in ({"trials": 99}, {"confidence": 1.0}):
        with pytest.raises(InputError):
            audit_study(**wrong)
