"""What mechanisms of others say that they cost: as ours where they are ours, by their textbook ε else."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import foreign_mechanisms as foreign
import numpy as np
import pytest

from pate_fed.errors import InputError, IntegrityError
from pate_fed.privacy import Accountant, GNMax, LNMax, Protection, SeededNoise, SystemNoise, TotalsNoise
from pate_fed.privacy.bounds.conversion import pure_epsilon
from pate_fed.privacy.bounds.cost import epsilon_of
from pate_fed.privacy.mechanisms.own import OwnMechanism, check_claim, own_mechanism
from pate_fed.privacy.mechanisms.prices import Heard, Sensitivity
from pate_fed.structure.parts import part_identity

HOSPITAL = Protection(unit="hospital", adjacency="add-or-remove-one", votes_moved=3)


def claimed(made: Any, **more: Any) -> OwnMechanism:
    """The mechanism, as a study has it."""
    name = f"foreign_mechanisms:{type(made).__name__}"
    return own_mechanism(
        made, classes=3, num_teachers=250, identity=part_identity(name, "aggregator"), **more
    )


def spent(mechanism: Any, queries: int) -> float:
    accountant = Accountant()
    accountant.spend(mechanism, queries=queries, labels=queries)
    return accountant.epsilon(1e-5)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (foreign.ForeignGNMax(40.0), GNMax(classes=3, sigma=40)),
        (foreign.ForeignLNMax(40.0), LNMax(classes=3, scale=40)),
    ],
)
def test_a_foreign_mechanism_costs_what_the_built_in_does(theirs: Any, ours: Any) -> None:
    mechanism = claimed(theirs)
    assert mechanism.answers_all and spent(mechanism, 500) == spent(ours, 500)
    assert mechanism.cost(100, 100, Protection()) == ours.cost(100, 100, Protection())
    accountant = Accountant()
    accountant.spend(mechanism, queries=500)
    assert "claimed by mechanisms of one's own, not proven" in repr(accountant)
    check_claim(mechanism)


def test_of_units_that_move_several_votes_too() -> None:
    for protection in (HOSPITAL, Protection(votes_moved=3)):
        theirs = claimed(foreign.ForeignGNMax(40.0), protection=protection)
        ours = GNMax(classes=3, num_teachers=250, sigma=40)
        assert theirs.cost_asked(protection) == ours.cost_asked(protection)


@pytest.mark.parametrize(
    ("theirs", "epsilon", "zcdp"),
    [
        (foreign.ExponentialMechanism(40.0), 2 / 40, 2 / 40),
        (foreign.GumbelMax(40.0), 2 / 40, 2 / 40),
        (foreign.ExponentialMax(40.0), 2 / 40, math.inf),
        (foreign.RandomisedWinner(0.05), 0.05, math.inf),
    ],
)
@pytest.mark.parametrize("queries", [1, 40, 1000])
def test_what_is_pure_dp_costs_its_textbook_epsilon_composed(
    theirs: Any, epsilon: float, zcdp: float, queries: int
) -> None:
    """The exact composition of ε-DP, or RDP of α ε²/8 where losses have that range; a table costs 0.4 %."""
    rho = queries * zcdp**2 / 8
    order = 1 + np.geomspace(1e-2, 1e4, 20_000)
    narrow = rho * order + np.log1p(-1 / order) - (math.log(1e-5) + np.log(order)) / (order - 1)
    best = min(pure_epsilon(epsilon, queries, 1e-5), float(narrow.min()))
    assert best * (1 - 1e-6) <= spent(claimed(theirs), queries) <= best * 1.006


def test_a_count_that_follows_from_labels_is_charged_by_what_is_known_without_caps() -> None:
    mechanism = claimed(foreign.RandomisedWinner(0.05))
    cost = mechanism.cost(3, 3, mechanism.protection)
    assert 0.1499 < epsilon_of(cost, 1e-5) <= 0.15 * (1 + 1e-12)
    assert spent(mechanism, 500) < epsilon_of(cost * 500, 1e-5) / 1.1
    both = cost + claimed(foreign.ExponentialMax(40.0)).cost(2, 2, mechanism.protection)
    assert 0.2497 < epsilon_of(both, 1e-5) <= 0.25 * (1 + 1e-12)


def test_an_exponential_mechanism_s_worst_ratio_is_what_is_claimed() -> None:
    """All neighbours of all small votes: the exact chances of Gumbel noise and of exponential noise."""
    scale, votes = 2.0, [(a, b, 6 - a - b) for a in range(7) for b in range(7 - a)]
    said = TotalsNoise(law="gumbel", scale=scale)
    sensitivity = Sensitivity.of(Protection(), num_teachers=6, num_classes=3)
    worst, divergence = 0.0, 0.0
    for one in votes:
        for two in votes:
            if sum(abs(x - y) for x, y in zip(one, two, strict=True)) == 2:
                p, q = (np.exp(np.array(each) / scale) for each in (one, two))
                p, q = p / p.sum(), q / q.sum()
                worst = max(worst, float(np.log(p / q).max()))
                divergence = max(divergence, float(np.log((p**4 * q**-3.0).sum()) / 3))
    assert 0.8 * 2 / scale < worst <= 2 / scale
    assert divergence <= said.rdp(4, sensitivity) <= 1.3 * divergence


@dataclass(frozen=True)
class Broken(foreign.ForeignGNMax):
    """Says what it does not do."""

    fault: str = ""

    def release(self, totals: Any, noise: Any) -> Any:
        drawn = 0 if self.fault == "none" else noise.discrete_gaussian(totals.shape, sigma=self.sigma)
        if self.fault == "half":
            drawn = noise.discrete_gaussian(totals.shape, sigma=self.sigma / 2)
        if self.fault == "own":
            drawn = np.random.default_rng(0).normal(0, self.sigma, totals.shape)
        if self.fault == "keys until it fits":
            while foreign.argmax(totals + drawn, noise) != 0:
                pass
            return 0
        if self.fault == "first of equals":
            return int((totals + drawn).argmax())
        if self.fault == "twice":
            drawn = noise.discrete_gaussian(totals.shape, sigma=self.sigma)
        if self.fault == "weighted" and totals.max() - totals.min() == 7:
            drawn = drawn // 2
        return foreign.argmax(totals + drawn, noise)


@pytest.mark.parametrize("fault", ["none", "half", "own", "twice"])
def test_other_noise_than_is_claimed_is_refused_before_a_vote_is_asked(fault: str) -> None:
    with pytest.raises(InputError, match=r"another class than wins by one draw of the gaussian noise of 40"):
        own_mechanism(Broken(fault=fault), classes=3, num_teachers=250)


@pytest.mark.parametrize(
    ("fault", "sigma"), [("first of equals", 0.3), ("keys until it fits", 1e-6), ("weighted", 5.0)]
)
def test_labels_are_held_to_the_noise_that_was_drawn(fault: str, sigma: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pate_fed.privacy.mechanisms.own._try_release", lambda *_, **__: None)
        mechanism = own_mechanism(Broken(sigma, fault), classes=3, num_teachers=250)
    code, votes = Broken(sigma, fault), np.array([9, 9, 2])
    for seed in range(20):  # right where it does not matter
        mechanism.label(code, np.array([200, 50, 0]), SeededNoise(seed))
    with pytest.raises(IntegrityError, match="nothing of this batch was released"):
        for seed in range(200):
            mechanism.label(code, votes, SeededNoise(seed))


def test_a_right_one_is_never_refused_ties_and_all() -> None:
    mechanism, code = claimed(foreign.ForeignLNMax(1.5)), foreign.ForeignLNMax(1.5)
    labels = [mechanism.label(code, np.array([4, 4, 4]), SeededNoise(seed)) for seed in range(600)]
    assert np.bincount(labels, minlength=3).min() > 150
    made = mechanism.release(np.tile([[4, 4, 4], [9, 2, 1]], (50, 1)), SystemNoise())
    assert made.answered.all() and made.event.private


def test_noise_that_was_heard_is_a_copy() -> None:
    heard = Heard(SeededNoise(0))
    heard.discrete_gaussian((3,), sigma=40.0)[:] = 0
    assert heard.winner(np.zeros(3, dtype=np.int64), TotalsNoise(law="gaussian", scale=40.0)) in (0, 1, 2)
    assert heard.winner(np.zeros(3, dtype=np.int64), TotalsNoise(law="laplace", scale=40.0)) is None
    assert heard.winner(np.zeros(4, dtype=np.int64), TotalsNoise(law="gaussian", scale=40.0)) is None


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("noise_on_totals", "gaussian", "gives a str; a TotalsNoise is meant"),
        ("pure_dp", -1.0, "claims to be -1.0-DP; nats above 0"),
        ("pure_dp", math.nan, "claims to be nan-DP"),
        ("pure_dp", math.inf, "claims an RDP at 0 orders"),
    ],
)
def test_a_price_that_is_none_is_one_sentence(name: str, value: Any, said: str) -> None:
    part = type("Odd", (), {"release": lambda *_: 0, name: lambda *_: value})
    with pytest.raises(InputError, match=said):
        own_mechanism(part, classes=3, num_teachers=250, name="theirs:Odd")


def test_a_law_is_one_of_four_and_its_scale_is_votes() -> None:
    with pytest.raises(InputError, match="law='cauchy': gaussian, laplace, gumbel or exponential is meant"):
        TotalsNoise(law="cauchy", scale=1.0)
    with pytest.raises(InputError, match="scale=0"):
        TotalsNoise(law="gumbel", scale=0)


def test_code_that_claims_more_than_was_charged_is_told() -> None:
    mechanism = claimed(foreign.ForeignGNMax(40.0))
    wide = replace(mechanism, claim=replace(mechanism.claim, scale=60.0))
    for lower in (wide, replace(mechanism, claim=replace(mechanism.claim, pure=1e-3, noise="", scale=0.0))):
        with pytest.raises(IntegrityError, match="claims a larger curve than the one that was charged"):
            check_claim(lower)
    with pytest.raises(InputError, match="noise on totals of votes is claimed of what is no vote"):
        replace(mechanism, num_teachers=0)
    again = OwnMechanism.from_parameters(mechanism.name, mechanism.parameters())
    assert again == mechanism and again.cost_asked(Protection()) == mechanism.cost_asked(Protection())
