"""Noisy class sums: one release of Σ over records of φ(x)·onehot(y)ᵀ, integers with discrete Gaussian noise.

A unit (a record, or all records of a patient, clipped together) adds one integer vector of non-negative
entries, of squared length at most `squared_norm` in steps of the lattice. Neighbouring sums differ by at most
that where a unit is added or removed; where one is replaced, by twice that, as two such vectors v, w have
|v - w|² = |v|² + |w|² - 2⟨v, w⟩ and ⟨v, w⟩ >= 0.

Theorem (docs/proofs/class-sums.md). Whole numbers of any dimension d whose neighbours are at most Δ apart in
the L2 norm, with independent discrete Gaussian noise of σ on each, have ε(δ) of at most

    2τ + ε_μ(δ e^-τ),   μ = Δ / √(σ² - 2),   τ = 3e-17 d,

where ε_μ is the exact ε of the continuous Gaussian mechanism (Balle and Wang 2018, Theorem 8). The noise is
within a factor e^±τ of continuous Gaussian noise of variance σ² - 2, rounded at random (Peikert 2010, Theorem
3.1), and rounding reads no data. A sum of h discrete Gaussians of σ/√h adds to τ how far it is from one.

In rounds there are more questions, each chosen by the answers before: sums of features by class, and then of
features by residuals, which have signs. Each costs the same, and together they are one Gaussian (theorem 5).

Held-out records are in none of these sums. They are counted once, by class and by what public weights say of
them: non-negative sums as above, which compose with the others in parallel (theorem 7).

INTERFACE for a federation:
    ClassSums(num_classes=, dimension=, squared_norm=, sigma=)             noise at one place, σ in steps
    SharedClassSums(..., sigma_party=, survivors=, colluders=)             noise in shares at the hospitals
    SumsInRounds(..., class_norm=, labels=), SharedSumsInRounds(...)       one of them a round
    ScoreCounts(..., labels=), SharedScoreCounts(...)                      held-out records, after the rounds
    squared_sensitivity(squared_norm, protection) -> int                   in steps
    least_sigma(epsilon, delta, shape, protection) -> float                the least σ, else least_share(...)
The first two are charged once, with `asked` = `answered` = the number of labels that are made of the sums;
those in rounds with `asked` = that number in every round, so that caps on it are caps on rounds; counts too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError
from pate_fed.format import delta_text
from pate_fed.privacy.bounds.cost import Cost, OutcomeCost, epsilon_of, in_parallel, noisy_sums
from pate_fed.privacy.checks import SCALE_LIMITS, check_count, check_delta, check_epsilon, check_scale
from pate_fed.privacy.label_dp import LabelRelease
from pate_fed.privacy.mechanisms.events import hospital_noise, refuse_vanishing_noise, sum_distance, sum_sigma
from pate_fed.privacy.mechanisms.noise import NoiseSource
from pate_fed.privacy.protection import RECORD, Protection

MOST_ENTRIES = 10**8
MOST_SQUARED_NORM = 2**52
LEAST_SIGMA = 2.0  # below, random rounding would take half of the noise
_CLOSE = 1 + 1e-6  # of σ: how near to the least one a search comes


def squared_sensitivity(squared_norm: int, protection: Protection) -> int:
    """Squared L2 sensitivity of the sums, in steps of the lattice.

    `votes_moved` is how many such contributions a unit may make: to so many a hospital's sum is clipped.
    """
    one = squared_norm * protection.votes_moved**2
    # |v - w|² <= |v|² + |w|², as no entry is negative
    return one if protection.adjacency == "add-or-remove-one" else 2 * one


def signed_sensitivity(squared_norm: int, protection: Protection) -> int:
    """The same of sums whose entries have signs: two contributions may be each other's opposite."""
    one = squared_norm * protection.votes_moved**2
    return one if protection.adjacency == "add-or-remove-one" else 4 * one


def class_length(length: int, adjacency: str) -> int:
    """How many times a record's class may count in the first of the rounds, so that it costs no more.

    Contributions of classes have no signs, so `length` may be √2 times as long where a record is replaced.
    """
    return length if adjacency == "add-or-remove-one" else math.isqrt(2 * length**2)


@dataclass(frozen=True, slots=True, kw_only=True)
class SumShape:
    """What hospitals add up: a matrix (`dimension`, `num_classes`), and a contribution's `squared_norm`.

    With a `class_norm`, that of the first of the `questions`, they are asked in rounds and may have signs.
    `counts` are rows of counts of held-out records, and the steps of a count, where these follow.
    """

    num_classes: int
    dimension: int
    squared_norm: int
    questions: int = 1
    class_norm: int | None = None
    counts: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        _check_shape(self.num_classes, self.dimension, self.squared_norm)
        check_count("questions", self.questions, least=1)

    def cost(self, protection: Protection, **noise: Any) -> Cost:
        """What all questions cost with noise of `sigma`, or of shares as `SharedClassSums` has them."""
        given = {**asdict(self), **noise}
        questions, class_norm, counts = (given.pop(name) for name in ("questions", "class_norm", "counts"))
        if class_norm is None:
            kind: type[LabelRelease] = SharedClassSums if "survivors" in noise else ClassSums
            return kind(**given).cost_asked(protection)
        kind = SharedSumsInRounds if "survivors" in noise else SumsInRounds
        found = kind(**given, class_norm=class_norm, labels=1).cost(questions, 0, protection)
        if counts is None:
            return found
        kind = SharedScoreCounts if "survivors" in noise else ScoreCounts
        rows, steps = counts
        more = kind(**given | {"dimension": rows, "squared_norm": steps**2}, labels=1)
        return in_parallel(found, more.cost_asked(protection))

    @property
    def length(self) -> int:
        """A record's squared length: that of its residual where there is one, else of its class."""
        return self.squared_norm if self.questions > 1 else max(self.squared_norm, self.class_norm or 0)

    def steps_of_count(self, protection: Protection) -> int:
        """How large a count may be, in steps, so that under equal noise it costs what all questions do."""
        first = squared_sensitivity(self.class_norm or 0, protection)
        most = max(first, signed_sensitivity(self.squared_norm, protection))
        return math.isqrt(self.questions * most // squared_sensitivity(1, protection))


def _check_shape(num_classes: int, dimension: int, squared_norm: int) -> None:
    check_count("num_classes", num_classes, least=2)
    check_count("dimension", dimension, least=1)
    if num_classes * dimension > MOST_ENTRIES:
        raise InputError(f"dimension={dimension}: must be at most {MOST_ENTRIES // num_classes:,}")
    if check_count("squared_norm", squared_norm, least=1) > MOST_SQUARED_NORM:
        raise InputError(f"squared_norm={squared_norm}: must be at most 2^52")


@dataclass(frozen=True, slots=True, kw_only=True)
class SumsRelease(LabelRelease):
    """One release of all hospitals' sum with noise on every entry: one Gaussian, charged by its exact δ.

    Raises:
        InputError: a parameter out of range; σ below 2 steps.
    """

    dimension: int
    squared_norm: int

    def __post_init__(self) -> None:
        _check_shape(self.num_classes, self.dimension, self.squared_norm)
        self.cost_asked(RECORD)

    def squared_sensitivity(self, protection: Protection) -> int:
        """How far neighbours' sums are apart, squared, in steps."""
        return squared_sensitivity(self.squared_norm, protection)

    def _once(self, protection: Protection, *, sigma: float, distance: Fraction = Fraction(0)) -> Cost:
        """The whole release; it is the same for any number of records."""
        squared, entries = self.squared_sensitivity(protection), self.dimension * self.num_classes
        sums = sums_cost(squared=squared, sigma=sigma, entries=entries, distance=distance)
        return Cost(outcomes=((sums, 1),))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassSums(SumsRelease):
    """Discrete Gaussian noise of `sigma` steps of the lattice on every entry, added in one place."""

    name: ClassVar[str] = "class-sums"
    sigma: float

    def cost_asked(self, protection: Protection) -> Cost:
        """The whole release, once."""
        return self._once(protection, sigma=self.sigma)

    def noisy(self, total: NDArray[np.int64], noise: NoiseSource) -> NDArray[np.int64]:
        """The exact sum with noise on every entry, int64 (dimension, classes); InputError: another shape."""
        shape = self.dimension, self.num_classes
        if total.shape != shape or total.dtype.kind not in "iu":
            raise InputError(f"the sum is {total.dtype} {total.shape}: whole numbers {shape} are meant")
        return total.astype(np.int64) + noise.discrete_gaussian(shape, sigma=self.sigma)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedClassSums(SumsRelease):
    """The same with noise of `sigma_party` steps, at least √2, added by each hospital before it masks.

    At least `survivors` hospitals are in the sum, and at most `colluders` of them tell their noise. Further
    shares are independent of the records: post-processing.
    """

    name: ClassVar[str] = "class-sums-shares"
    sigma_party: float
    survivors: int
    colluders: int

    def __post_init__(self) -> None:
        hospital_noise(sigma_party=self.sigma_party, survivors=self.survivors, colluders=self.colluders)
        SumsRelease.__post_init__(self)

    @property
    def sigma(self) -> float:
        """σ of the noise that nobody knows, in steps, rounded down."""
        return sum_sigma(self.sigma_party, self.survivors - self.colluders)

    def cost_asked(self, protection: Protection) -> Cost:
        """The whole release, once, by the noise that nobody knows.

        Raises:
            InputError: a whole hospital that joins or leaves, whose noise would come and go with its sum.
        """
        refuse_vanishing_noise(protection)
        distance = sum_distance(self.sigma_party, self.survivors - self.colluders)
        return self._once(protection, sigma=self.sigma, distance=distance)


class AboutInputs(LabelRelease):
    """A question about `labels` public inputs, which it need not label: so many count as one question."""

    __slots__ = ()
    answers_all: ClassVar[bool] = False
    labels: int

    def __post_init__(self) -> None:
        check_count("labels", self.labels, least=1)
        super().__post_init__()


class InRounds(AboutInputs):
    """Questions one after the other, each chosen by what was released before; all of them are charged alike.

    `squared_norm` bounds a contribution of residuals, which has signs, `class_norm` one of a record's class,
    which has none, in the first question.
    """

    __slots__ = ()
    squared_norm: int
    class_norm: int

    def __post_init__(self) -> None:
        check_count("class_norm", self.class_norm, least=1)
        super().__post_init__()

    def squared_sensitivity(self, protection: Protection) -> int:
        """How far neighbours' sums are apart at most, squared, in steps; of any question."""
        first = squared_sensitivity(self.class_norm, protection)
        return max(first, signed_sensitivity(self.squared_norm, protection))

    def cost(self, asked: int, answered: int, protection: Protection) -> Cost:
        """What the questions cost of which so many labels are asked, rounded up to whole ones."""
        return self.cost_asked(protection) * -(-asked // self.labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class SumsInRounds(InRounds, ClassSums):
    """The same as `ClassSums` in every one of several rounds."""

    name: ClassVar[str] = "sums-in-rounds"
    class_norm: int
    labels: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSumsInRounds(InRounds, SharedClassSums):
    """The same as `SharedClassSums` in every one of several rounds."""

    name: ClassVar[str] = "sums-in-rounds-shares"
    class_norm: int
    labels: int


class HeldOutCounts(AboutInputs):
    """Counts of held-out records, once in a study: charged as one question, in parallel to all sums.

    What a unit adds at a hospital has no signs and is at most √`squared_norm` long: one count of so many
    steps, or parts of one.
    """

    __slots__ = ()
    held_out: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreCounts(HeldOutCounts, ClassSums):
    """`dimension` rows of counts by class, with noise in one place."""

    name: ClassVar[str] = "score-counts"
    labels: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedScoreCounts(HeldOutCounts, SharedClassSums):
    """The same with noise in shares of hospitals."""

    name: ClassVar[str] = "score-counts-shares"
    labels: int


_KINDS = ClassSums, SharedClassSums, SumsInRounds, SharedSumsInRounds, ScoreCounts, SharedScoreCounts
CLASS_SUM_MECHANISMS: dict[str, type[LabelRelease]] = {kind.name: kind for kind in _KINDS}


@lru_cache(maxsize=256)  # asked again by each who reads the terms
def least_sigma(epsilon: float, delta: float, shape: SumShape, protection: Protection = RECORD) -> float:
    """The least σ in steps that keeps ε at δ, to a millionth, for noise that is added in one place.

    Raises:
        InputError: ε or δ out of range, or so small that σ would pass 10^9 steps.
    """
    return _least(lambda sigma: shape.cost(protection, sigma=sigma), epsilon, delta)


@lru_cache(maxsize=256)
def least_share(
    epsilon: float,
    delta: float,
    shape: SumShape,
    protection: Protection = RECORD,
    *,
    survivors: int,
    colluders: int = 0,
) -> float:
    """The least noise of one hospital in steps, to a millionth, that keeps ε at δ.

    Of at least `survivors` hospitals in the sum `colluders` may tell their noise.

    Raises:
        InputError: ε, δ or the hospitals out of range, or so much noise that it would pass 10^9 steps.
    """
    check_count("survivors", survivors, least=1)
    if check_count("colluders", colluders) >= survivors:
        raise InputError(f"colluders={colluders}: must be fewer than the {survivors} hospitals in the sum")
    given = {"survivors": survivors, "colluders": colluders}
    return _least(lambda share: shape.cost(protection, sigma_party=share, **given), epsilon, delta)


def _least(charged: Callable[[float], Cost], epsilon: float, delta: float) -> float:
    """The least noise whose cost is within ε at δ, as a cost falls where its noise grows.

    From 2 steps on, where even one honest hospital has noise enough for the theorem.
    """
    epsilon, delta, low = check_epsilon(epsilon), check_delta(delta), LEAST_SIGMA

    def suffices(sigma: float) -> bool:
        return epsilon_of(charged(sigma), delta) <= epsilon

    if suffices(low):
        return low
    high = low
    while not suffices(high):
        if high > SCALE_LIMITS[1] / 2:
            raise InputError(
                f"epsilon={epsilon:g}, delta={delta_text(delta)}: noise of more than {SCALE_LIMITS[1]:g} "
                "steps would be needed; larger ones, or a coarser lattice, are meant"
            )
        low, high = high, 2 * high
    while high / low > _CLOSE:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high


def sums_cost(*, squared: int, sigma: float, entries: int, distance: Fraction = Fraction(0)) -> OutcomeCost:
    """Cost of one release of whole numbers, `entries` of them, with noise of `sigma` on each.

    `squared` and `distance` are those of `noisy_sums`.

    Raises:
        InputError: a sensitivity or a number of entries below 1, or σ below 2.
    """
    check_count("squared", squared, least=1), check_count("entries", entries, least=1)
    if check_scale("sigma", sigma) < LEAST_SIGMA:
        raise InputError(f"sigma={sigma!r}: must be at least {LEAST_SIGMA:g} of the lattice's steps")
    variance = Fraction(sigma) ** 2  # exact: the float is a fraction
    return noisy_sums(squared=squared, variance=variance, entries=entries, distance=distance)
