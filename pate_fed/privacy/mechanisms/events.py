"""Privacy events as frozen values: a mechanism, how much was asked, and what each adversary learns.

To and from events of Google's dp-accounting, which is imported when it is needed: a DpEvent knows no outcome
of a noisy max, so an event becomes that of its noisy totals, an upper bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

from pate_fed.errors import InputError
from pate_fed.privacy.bounds.cost import NOTHING, ROUNDED, Cost, epsilon_of, noisy_sums
from pate_fed.privacy.bounds.intervals import Interval
from pate_fed.privacy.checks import check_count, check_delta, is_number
from pate_fed.privacy.protection import Protection

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """Base of the mechanisms: parameters, fixed before the first vote, and what a release costs.

    `name` is the mechanism's in a study and in the ledger; `answers_all` says that every query is answered,
    `held_out` that it is of records that no other release of the study has a part of.
    """

    name: ClassVar[str]
    held_out: ClassVar[bool] = False
    answers_all: ClassVar[bool] = False

    if TYPE_CHECKING:  # fields of the mechanisms, each in the order of its own parameters

        @property
        def num_teachers(self) -> int:
            """Most votes that a query can have."""

        @property
        def num_classes(self) -> int:
            """Classes that are voted on."""

    def parameters(self) -> dict[str, Any]:
        """All parameters, as plain numbers by name."""
        # One spelling for 40, 40.0 and NumPy's 40, so that equal mechanisms give equal text.
        given = {part.name: (str(part.type), getattr(self, part.name)) for part in fields(self)}
        return {
            name: int(value) if kind == "int" else value if value is None else float(value)
            for name, (kind, value) in given.items()
        }

    def cost(self, asked: int, answered: int, protection: Protection) -> Cost:
        """Cost of a release of so many queries."""
        return self.cost_asked(protection) * asked + self.cost_answered(protection) * answered

    def cost_asked(self, protection: Protection) -> Cost:
        """Cost of each query that is looked at, answered or not."""
        raise TypeError(f"{type(self).__name__} states no cost")

    def cost_answered(self, protection: Protection) -> Cost:
        """Further cost of each answered query."""
        return Cost()


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorView:
    """The coordinator's view of the votes, and so the bound that holds against it.

    `kind` is "plain" (every hospital's votes), "secure-sum" (exact totals) or "hospital-noise" (noisy totals:
    every hospital adds discrete Gaussian noise of `sigma_party` votes, at least `survivors` hospitals are in
    the sum and at most `colluders` of them tell the coordinator their noise). Where labels are what is
    private: "labels" (they lie with it), "noisy-labels" and "noisy-counts" (what is released, and no more).
    Of class sums: "exact-sums" and "noisy-sums" (what is released, and no more). "noisy-totals": those for
    which a mechanism of somebody's own claims its curve.

    Raises:
        InputError: an unknown kind, or parameters that do not go with it.
    """

    kind: str = "plain"
    sigma_party: float | None = None
    survivors: int | None = None
    colluders: int = 0

    def __post_init__(self) -> None:
        if self.kind not in _SEEN:
            raise InputError(f"coordinator={self.kind!r}: must be one of {', '.join(_SEEN)}")
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
        """Cost of `asked` queries against the coordinator; None where no bound holds.

        It sees the noisy totals of every asked query, so the threshold saves nothing: noisy sums, by Gaussian
        DP where nothing else is added (docs/proofs/class-sums.md, theorem 4). Where there is too little noise
        for that it is ρ = Δ²/(2 s²) each, and τ d/4 for the distance between a sum of discrete Gaussians and
        one (arXiv 2102.06387, Proposition 14, with ρ = ε²/2).

        Raises:
            InputError: a whole hospital that joins or leaves, whose noise would come and go with its votes.
        """
        variance = self.variance
        if variance is None or self.sigma_party is None or self.survivors is None:
            return None
        refuse_vanishing_noise(protection)
        totals = noisy_sums(
            squared=protection.l2_squared,
            variance=max(variance, Fraction(ROUNDED)),
            entries=num_classes,
            distance=sum_distance(self.sigma_party, self.survivors - self.colluders),
        )
        return Cost(outcomes=((totals, 1),)) * asked if variance > ROUNDED else Cost(totals.totals) * asked

    @property
    def sees_release(self) -> bool:
        """Whether it sees what is released and no more, so that one ε holds against it and the public."""
        return self.kind in ("noisy-labels", "noisy-counts", "noisy-sums", "noisy-totals")

    def text(self) -> str:
        """What the coordinator sees and what hides the rest, as the end of "the coordinator sees"."""
        return _SEEN[self.kind]


_SEEN = {
    "plain": "every hospital's votes",
    "secure-sum": "the exact totals of every query; masks hide each hospital's own votes",
    "hospital-noise": "only noisy totals of every query; the hospitals' own noise and masks hide the rest",
    "labels": "the labels themselves, which are in one place: its own",
    "noisy-labels": "labels after each hospital's own noise",
    "noisy-counts": "noisy counts of all hospitals together; masks hide each one's own",
    "exact-sums": "the exact class sums of all hospitals together; masks hide each one's own",
    "noisy-sums": "noisy class sums of all hospitals together; masks hide each one's own",
    "noisy-totals": "noisy totals of all hospitals together; masks hide each one's own answers",
}

PLAIN = CoordinatorView()
SECURE_SUM = CoordinatorView(kind="secure-sum")
IN_ONE_PLACE = CoordinatorView(kind="labels")
NOISY_LABELS, NOISY_COUNTS = CoordinatorView(kind="noisy-labels"), CoordinatorView(kind="noisy-counts")
EXACT_SUMS, NOISY_SUMS = CoordinatorView(kind="exact-sums"), CoordinatorView(kind="noisy-sums")
NOISY_TOTALS = CoordinatorView(kind="noisy-totals")


def hospital_noise(*, sigma_party: float, survivors: int, colluders: int = 0) -> CoordinatorView:
    """The view of a coordinator to whom only noisy totals come; see `CoordinatorView`."""
    return CoordinatorView(
        kind="hospital-noise", sigma_party=sigma_party, survivors=survivors, colluders=colluders
    )


def refuse_vanishing_noise(protection: Protection) -> None:
    """Refuse a hospital that joins or leaves where its own noise would come and go with it: InputError."""
    if protection.votes_vanish:
        raise InputError(
            "a hospital that is added or removed takes its noise along: with noise at the hospitals "
            "there is no bound for adjacency add-or-remove-one of a hospital; replace-one has one"
        )


def sum_distance(sigma: float, parties: int) -> Fraction:
    """Upper bound of τ = 10 Σ exp(-2 π² σ² k/(k+1)) over k = 1..parties-1, in O(1): terms fall with k.

    A sum of so many discrete Gaussians has chances within a factor e^τ of one's with the same variance.
    """
    if parties == 1:
        return Fraction(0)
    first = [math.exp(-2 * math.pi**2 * sigma**2 * k / (k + 1)) for k in range(1, min(parties, 100))]
    total = 10 * (math.fsum(first) + max(0, parties - 100) * first[-1])
    # An exponent above -746 is right to 1e-12, which the factor covers many times; what underflows is added.
    return Fraction(total) * (1 + Fraction(1, 2**20)) + Fraction(1, 2**1000)


def sum_sigma(sigma: float, parties: int) -> float:
    """σ of the sum of so many, rounded down."""
    return Interval.of(Fraction(sigma) ** 2 * parties).root().down()


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyEvent:
    """One release: a mechanism that looked at `asked` queries and answered `answered` of them.

    `noise` is the source's kind as text, `private` whether it protects anyone; `coordinator` is what the
    coordinator saw of the votes.
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
        """Realised cost against the student and the public, a function of the answered bits."""
        return self.mechanism.cost(self.asked, self.answered, self.protection)

    def coordinator_cost(self) -> Cost | None:
        """Cost against the coordinator; None where no bound holds."""
        if self.coordinator.sees_release:
            return self.cost()
        return self.coordinator.cost(self.asked, self.protection, num_classes=self.mechanism.num_classes)


def total_cost(events: Iterable[PrivacyEvent]) -> Cost:
    """Total cost of the events against the student and the public, in any order."""
    return sum((event.cost() for event in events), Cost())


def odometer(events: Iterable[PrivacyEvent], delta: float, *, reserved: Cost = NOTHING) -> list[float]:
    """Privacy odometer: ε at δ after each event, for display; it stops nothing and never decreases.

    `reserved` is what was paid before the first event.
    """
    check_delta(delta)
    cost, shown = reserved, [0.0]
    for event in events:
        cost += event.cost()
        # Each search may end a hair beside the best order, which must not look like a refund.
        shown.append(max(shown[-1], epsilon_of(cost, delta)))
    return shown[1:]


def is_dp_event(value: object) -> bool:
    """Whether the value is a DpEvent; without the library nothing is."""
    return any(kind.__module__ == "dp_accounting.dp_event" for kind in type(value).__mro__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainNoise:
    """So many releases with noise of a law that other libraries know, as `event` of dp-accounting has it.

    `noise_multiplier` is the noise by the sensitivity, rounded down: less noise is never too little of a
    charge.
    """

    event: str
    noise_multiplier: float
    count: int


def plain_noise(event: PrivacyEvent) -> list[PlainNoise]:
    """A release as its noisy totals: Gaussian or Laplace noise, an upper bound on what outcomes tell.

    Raises:
        InputError: a release that is known by its outcome's own law or as (ε, δ)-DP.
    """
    cost, found = event.cost(), []
    if cost != Cost(outcomes=cost.outcomes):
        raise InputError(f"{event.mechanism}: has no DpEvent, as its cost is not that of noisy totals")
    for outcome, times in cost.outcomes:
        one = outcome.as_totals(1)
        law, multiplier = (
            ("LaplaceDpEvent", Interval.of(1 / one.pure[0][0]).down())
            if one.pure
            else ("GaussianDpEvent", Interval.of(1 / (2 * one.rho)).root().down())
        )
        found.append(PlainNoise(event=law, noise_multiplier=multiplier, count=times))
    return found


def to_dp_event(events: Iterable[PrivacyEvent | Any]) -> DpEvent:
    """The events as one composed DpEvent of their noisy totals.

    Discrete Gaussian noise becomes a GaussianDpEvent, whose RDP is the same bound; a DpEvent stays as it is.

    Raises:
        InputError: no dp-accounting, or a release that is known by its outcome's own law or as (ε, δ)-DP.
    """
    library = _library()
    made = []
    for event in events:
        if is_dp_event(event):
            made.append(event)
            continue
        for noise in plain_noise(event):
            single = getattr(library, noise.event)(noise.noise_multiplier)
            made.append(library.SelfComposedDpEvent(single, noise.count))
    composed: DpEvent = library.ComposedDpEvent(made)
    return composed


def cost_of_dp_event(event: Any) -> Cost:
    """Cost of a DpEvent under the accountant's own neighbours; InputError: one that is not known here.

    Known are Gaussian, Laplace, zero-concentrated, nothing, and compositions of these.
    """
    kind = type(event).__name__
    if kind == "NoOpDpEvent":
        return NOTHING
    if kind == "ComposedDpEvent":
        return sum((cost_of_dp_event(part) for part in event.events), NOTHING)
    if kind == "SelfComposedDpEvent":
        return cost_of_dp_event(event.event) * int(event.count)
    if kind == "GaussianDpEvent" and event.noise_multiplier > 0:
        return Cost(rho=1 / (2 * Fraction(event.noise_multiplier) ** 2))
    if kind == "LaplaceDpEvent" and event.noise_multiplier > 0:
        return Cost(pure=((1 / Fraction(event.noise_multiplier), 1),))
    if kind == "ZCDpEvent" and event.rho >= 0 and event.xi >= 0:
        return Cost(rho=Fraction(event.rho), flat=Fraction(event.xi))
    raise InputError(f"{event!r}: only Gaussian, Laplace and ZC events and their compositions are known here")


def _library() -> Any:
    try:
        from dp_accounting import dp_event
    except ImportError as error:
        raise InputError("DpEvents need the package dp-accounting (pip install dp-accounting)") from error
    return dp_event
