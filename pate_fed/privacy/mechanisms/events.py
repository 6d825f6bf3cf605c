"""What a release costs, as frozen values: who is protected, how much was asked, what each adversary learns.

All costs here are independent of the votes. They are kept as exact fractions, so that nothing is lost when a
small cost is added to a large one, and a total does not depend on the order of its parts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

from pate_fed.errors import InputError
from pate_fed.privacy.checks import check_count, is_number

__all__ = [
    "ADJACENCIES",
    "IN_ONE_PLACE",
    "LABEL",
    "NOISY_COUNTS",
    "NOISY_LABELS",
    "NOTHING",
    "PLAIN",
    "RECORD",
    "SECURE_SUM",
    "UNITS",
    "CoordinatorView",
    "Cost",
    "Mechanism",
    "PrivacyEvent",
    "Protection",
    "hospital_noise",
]

UNITS = ("record", "hospital")
ADJACENCIES = ("replace-one", "add-or-remove-one")


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """Whose presence is protected: what two neighbouring data sets differ in, and how many votes that moves.

    `votes_moved` is the number of teachers that one unit can sway: 1 for a record in one teacher's part, K
    for a hospital with K teachers, k for a patient present in k parts, K too for a record whose coming or
    going deals all of a hospital's records to its K teachers anew. Where it is above 1 Gaussian RDP grows
    by its square and pure ε by itself.

    The unit "label" is for features that are public: one record's label is replaced (label DP).

    Raises:
        InputError: an unknown unit or adjacency, or `votes_moved` below 1.
    """

    unit: str = "record"
    adjacency: str = "replace-one"
    votes_moved: int = 1

    def __post_init__(self) -> None:
        if self.unit not in (*UNITS, "label"):
            raise InputError(f"unit={self.unit!r}: must be one of {', '.join(UNITS)}")
        if self.adjacency not in ADJACENCIES:
            raise InputError(f"adjacency={self.adjacency!r}: must be one of {', '.join(ADJACENCIES)}")
        moved = check_count("votes_moved", self.votes_moved, least=1)
        if moved > 10**9:
            raise InputError(f"votes_moved={moved}: must be at most 10^9")
        if self.unit == "label" and (self.adjacency, moved) != ("replace-one", 1):
            raise InputError("unit='label': one label is replaced, and moves one vote")
        # A NumPy number would be spelt differently in the ledger.
        object.__setattr__(self, "votes_moved", moved)

    @property
    def votes_vanish(self) -> bool:
        """Whether the unit's votes may appear or disappear whole, instead of moving from class to class.

        Only a hospital that joins or leaves takes its teachers along. A record that is added or removed
        changes the teachers that saw it, which go on voting.
        """
        return self.unit == "hospital" and self.adjacency == "add-or-remove-one"

    @property
    def l1(self) -> int:
        """L1 sensitivity of the totals, in votes."""
        return self.votes_moved if self.votes_vanish else 2 * self.votes_moved

    @property
    def l2_squared(self) -> int:
        """Squared L2 sensitivity of the totals: all moved votes may go from one class to one other."""
        return self.votes_moved**2 if self.votes_vanish else 2 * self.votes_moved**2

    @property
    def top(self) -> int:
        """Sensitivity of the largest total, in votes."""
        return self.votes_moved

    def words(self) -> str:
        """The unit and the adjacency in a sentence's part."""
        if self.unit == "label":
            return "one record's label replaced, where features are public"
        verb = "replaced" if self.adjacency == "replace-one" else "added or removed"
        votes = "one vote" if self.votes_moved == 1 else f"up to {self.votes_moved} votes"
        if self.votes_moved == 1:
            effect = "appears or disappears" if self.votes_vanish else "moves"
        else:
            effect = "appear or disappear" if self.votes_vanish else "move"
        return f"one {self.unit} {verb} ({votes} of a query {effect})"


RECORD = Protection()
LABEL = Protection(unit="label")


@dataclass(frozen=True, slots=True)
class Cost:
    """An RDP curve that bounds a release whatever the votes were, in exact arithmetic.

    `rho` is the ρ of all Gaussian parts (ρ-zCDP: RDP `a * rho` at every order a); `pure` lists pure-DP parts
    as (ε, times), each worth min(ε, ε² a / 2) at order a (Bun and Steinke 2016, Proposition 3.3; P17, Theorem
    2). `flat` is RDP at every order up to `most_order` (RDP grows with the order, so one order bounds those
    below it); beyond, nothing is known. None: there is no such limit. `epsilon` and `delta` are of parts that
    are known as (ε, δ)-DP only; they add up by themselves (basic composition), at δ = 0 too.
    """

    rho: Fraction = Fraction(0)
    pure: tuple[tuple[Fraction, int], ...] = ()
    flat: Fraction = Fraction(0)
    most_order: Fraction | None = None
    epsilon: Fraction = Fraction(0)
    delta: Fraction = Fraction(0)

    def __add__(self, other: Cost) -> Cost:
        times: dict[Fraction, int] = {}
        for epsilon, count in (*self.pure, *other.pure):
            times[epsilon] = times.get(epsilon, 0) + count
        limits = [cost.most_order for cost in (self, other) if cost.most_order is not None]
        return Cost(
            self.rho + other.rho,
            tuple(sorted(times.items())),
            self.flat + other.flat,
            min(limits, default=None),
            self.epsilon + other.epsilon,
            self.delta + other.delta,
        )

    def __mul__(self, times: int) -> Cost:
        if times == 0:
            return Cost()
        pure = tuple((epsilon, count * times) for epsilon, count in self.pure)
        pair = self.epsilon * times, self.delta * times
        return Cost(self.rho * times, pure, self.flat * times, self.most_order, *pair)

    def rdp(self, order: Fraction) -> Fraction:
        """Exact Rényi divergence bound at `order` > 1, in nats.

        Raises:
            InputError: an order above `most_order`, or parts that are known as (ε, δ)-DP only.
        """
        if self.epsilon:
            raise InputError("a cost that is known as (ε, δ)-DP only has no Rényi divergence")
        if self.most_order is not None and order > self.most_order:
            raise InputError(f"order={float(order):g}: this cost is known up to {float(self.most_order):g}")
        laplace = (count * min(epsilon, epsilon * epsilon * order / 2) for epsilon, count in self.pure)
        return order * self.rho + self.flat + sum(laplace, Fraction(0))

    def rdp_float(self, order: float) -> float:
        """The bound at `order` in floating point, for searches; not rounded up; ∞ where none is known."""
        if self.most_order is not None and order > self.most_order:
            return math.inf
        total = order * float(self.rho) + float(self.flat)
        for epsilon, count in self.pure:
            total += count * min(float(epsilon), float(epsilon) ** 2 * order / 2)
        return total


NOTHING = Cost()


class Mechanism(Protocol):
    """A frozen value: the parameters of a release, fixed before the first vote is seen."""

    @property
    def name(self) -> str:
        """The mechanism's name in a study and in the ledger."""

    @property
    def num_teachers(self) -> int:
        """Most votes that a query can have."""

    @property
    def num_classes(self) -> int:
        """Classes that are voted on."""

    @property
    def answers_all(self) -> bool:
        """Whether every query that is asked is answered."""

    def parameters(self) -> dict[str, Any]:
        """All parameters, as plain numbers by name."""

    def cost(self, asked: int, answered: int, protection: Protection) -> Cost:
        """What a release of so many queries costs."""

    def cost_asked(self, protection: Protection) -> Cost:
        """What each query costs that is looked at, answered or not."""

    def cost_answered(self, protection: Protection) -> Cost:
        """What each answered query costs besides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorView:
    """What the coordinator gets to see of the votes, and so which bound holds against it.

    `kind` is "plain" (every hospital's votes), "secure-sum" (exact totals) or "hospital-noise" (noisy totals:
    every hospital adds discrete Gaussian noise of `sigma_party` votes, at least `survivors` hospitals are in
    the sum and at most `colluders` of them tell the coordinator their noise). Where labels are what is
    private: "labels" (they lie with it), "noisy-labels" and "noisy-counts" (what is released, and no more).

    Raises:
        InputError: an unknown kind, or parameters that do not go with it.
    """

    kind: str = "plain"
    sigma_party: float | None = None
    survivors: int | None = None
    colluders: int = 0

    def __post_init__(self) -> None:
        if self.kind not in _SIGHTS:
            raise InputError(f"coordinator={self.kind!r}: must be one of {', '.join(_SIGHTS)}")
        if self.kind != "hospital-noise":
            if (self.sigma_party, self.survivors, self.colluders) != (None, None, 0):
                raise InputError(
                    f"coordinator={self.kind!r}: hospitals add no noise here, so it has no parameters"
                )
            return
        sigma = self.sigma_party
        if sigma is None or not is_number(sigma) or not math.isfinite(sigma) or sigma**2 < 2:
            raise InputError(
                f"sigma_party={sigma!r}: must be finite with a square of at least 2; below that the sum of "
                "discrete Gaussians is too far from one"
            )
        survivors = check_count("survivors", self.survivors if self.survivors is not None else 0, least=1)
        if check_count("colluders", self.colluders) >= survivors:
            raise InputError(
                f"colluders={self.colluders}: must be fewer than the {survivors} hospitals in the sum"
            )
        plain = {"sigma_party": float(sigma), "survivors": survivors, "colluders": int(self.colluders)}
        for name, value in plain.items():
            object.__setattr__(self, name, value)

    @property
    def variance(self) -> Fraction | None:
        """Variance of the noise that the coordinator cannot subtract; None where there is none."""
        if self.sigma_party is None or self.survivors is None:
            return None
        return Fraction(self.sigma_party) ** 2 * (self.survivors - self.colluders)

    def cost(self, asked: int, protection: Protection, *, num_classes: int) -> Cost | None:
        """What the coordinator learns from `asked` queries; None where no bound holds.

        It sees the noisy totals of every asked query, so the threshold saves nothing: ρ = Δ²/(2 s²) each, and
        τ d/4 for the distance between a sum of discrete Gaussians and one (arXiv 2102.06387, Proposition 14,
        with ρ = ε²/2).

        Raises:
            InputError: a whole hospital that joins or leaves, whose noise would come and go with its votes.
        """
        variance = self.variance
        if variance is None or self.sigma_party is None or self.survivors is None:
            return None
        if protection.votes_vanish:
            raise InputError(
                "a hospital that is added or removed takes its noise along: with noise at the hospitals "
                "there is no bound for adjacency add-or-remove-one of a hospital; replace-one has one"
            )
        slack = _sum_distance(self.sigma_party, self.survivors - self.colluders) * num_classes / 4
        return Cost(Fraction(protection.l2_squared) / (2 * variance) + slack) * asked

    @property
    def sees_release(self) -> bool:
        """Whether it sees what is released and no more, so that one ε holds against it and the public."""
        return self.kind in ("noisy-labels", "noisy-counts")

    def words(self) -> str:
        """What the coordinator sees and what hides the rest, as the end of "the coordinator sees"."""
        return _SIGHTS[self.kind]


_SIGHTS = {
    "plain": "every hospital's votes",
    "secure-sum": "the exact totals of every query; masks hide each hospital's own votes",
    "hospital-noise": "only noisy totals of every query; the hospitals' own noise and masks hide the rest",
    "labels": "the labels themselves, which are in one place: its own",
    "noisy-labels": "labels after each hospital's own noise",
    "noisy-counts": "noisy counts of all hospitals together; masks hide each one's own",
}

PLAIN = CoordinatorView()
SECURE_SUM = CoordinatorView(kind="secure-sum")
IN_ONE_PLACE = CoordinatorView(kind="labels")
NOISY_LABELS, NOISY_COUNTS = CoordinatorView(kind="noisy-labels"), CoordinatorView(kind="noisy-counts")


def hospital_noise(*, sigma_party: float, survivors: int, colluders: int = 0) -> CoordinatorView:
    """The sight of a coordinator to whom only noisy totals come; see `CoordinatorView`."""
    return CoordinatorView(
        kind="hospital-noise", sigma_party=sigma_party, survivors=survivors, colluders=colluders
    )


def _sum_distance(sigma: float, parties: int) -> Fraction:
    """Upper bound of τ = 10 Σ exp(-2 π² σ² k/(k+1)) over k = 1..parties-1, in O(1): terms fall with k."""
    first = [math.exp(-2 * math.pi**2 * sigma**2 * k / (k + 1)) for k in range(1, min(parties, 100))]
    rest = max(0, parties - 100) * (first[-1] if first else 0.0)
    total = 10 * (math.fsum(first) + rest)
    # Exponents beyond 745 give 0; below, they are right to 1e-12, which the factor covers many times.
    return Fraction(total) * Fraction(1 + 2**-20) if total else Fraction(int(parties > 1), 2**1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyEvent:
    """One release: a mechanism that looked at `asked` queries and answered `answered` of them.

    `noise` is the source's kind in words, `private` whether it protects anyone; `coordinator` is what the
    coordinator saw on the way.

    Raises:
        InputError: counts that are negative, or more answers than queries.
    """

    mechanism: Mechanism
    asked: int
    answered: int
    protection: Protection
    noise: str
    private: bool
    coordinator: CoordinatorView = PLAIN

    def __post_init__(self) -> None:
        object.__setattr__(self, "asked", check_count("asked", self.asked))
        object.__setattr__(self, "answered", check_count("answered", self.answered))
        if self.answered > self.asked:
            raise InputError(
                f"answered={self.answered}: must not be more than the {self.asked} queries asked"
            )

    def cost(self) -> Cost:
        """What the student, and so the public, learns: the realised cost, a function of the answered bits."""
        return self.mechanism.cost(self.asked, self.answered, self.protection)

    def coordinator_cost(self) -> Cost | None:
        """What the coordinator learns; None where no bound holds."""
        if self.coordinator.sees_release:
            return self.cost()
        return self.coordinator.cost(self.asked, self.protection, num_classes=self.mechanism.num_classes)
