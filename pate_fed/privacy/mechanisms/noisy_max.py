"""Noisy max mechanisms (LNMax, GNMax, Confident-, Interactive-GNMax) as frozen values.

Totals go in; labels, a mask of answered queries and the privacy event that was spent come out. P17 is arXiv
1610.05755, P18 is arXiv 1802.08908.

The mechanism that is analysed is the one that runs: integer totals, integer noise, integer comparisons. A tie
of noisy totals is broken uniformly at random. What is charged bounds the outcome, the class that wins under
that rule, and stays below what the noisy totals cost (`pate_fed.privacy.bounds.hockey_stick`).
"""

from __future__ import annotations

import math
from dataclasses import InitVar, dataclass, fields, replace
from fractions import Fraction
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.errors import InputError
from pate_fed.privacy.bounds.cost import Cost, OutcomeCost
from pate_fed.privacy.bounds.noise_law import GAUSSIAN, LAPLACE
from pate_fed.privacy.checks import check_count, check_scale, check_threshold, is_number
from pate_fed.privacy.mechanisms.events import PLAIN, CoordinatorView, Mechanism, PrivacyEvent
from pate_fed.privacy.mechanisms.noise import NoiseSource, as_noise
from pate_fed.privacy.protection import RECORD, Protection

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Scalar = TypeVar("Scalar", bound=np.generic)

NOT_ANSWERED = -1
MOST_TEACHERS = 10**9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Release:
    """Output of a mechanism on a batch; it depends on the votes through the mechanism only.

    Shapes: `answered` bool (asked,), `label` int64 (asked,) with -1 where not answered, `reinforced` int64
    (asked,) with the student's own label where the mechanism confirmed it without the teachers, else -1. The
    first `asked` queries of the batch were looked at; the others were not, and cost nothing.
    """

    asked: int
    answered: Bools
    label: Ints
    reinforced: Ints
    event: PrivacyEvent

    def __repr__(self) -> str:
        """Counts only: labels are long."""
        return f"Release(asked={self.asked}, answered={self.event.answered}, noise={self.event.noise!r})"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Voting(Mechanism):
    """Base of the mechanisms on totals: counts of teachers and classes, and the release.

    `num_teachers` is the most votes that a query can have; without it 10^9 are taken. `classes` is short for
    `num_classes`.
    """

    num_teachers: int = MOST_TEACHERS
    num_classes: int = 0
    classes: InitVar[int | None] = None

    def __post_init__(self, classes: int | None) -> None:
        if classes is not None:
            if self.num_classes not in (0, classes):
                raise InputError(f"num_classes={self.num_classes}, classes={classes}: give one of them")
            object.__setattr__(self, "num_classes", classes)
        check_count("num_teachers", self.num_teachers, least=1)
        check_count("num_classes", self.num_classes, least=2)
        self._check()

    def _check(self) -> None:
        """Refuse parameters out of range."""

    def __repr__(self) -> str:
        """The parameters, but for a number of teachers that was not given."""
        given = {part.name: getattr(self, part.name) for part in fields(self)}
        if self.num_teachers == MOST_TEACHERS:
            del given["num_teachers"]
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in given.items())})"

    def release(
        self,
        totals: ArrayLike,
        noise: NoiseSource | np.random.Generator,
        *,
        max_answers: int | None = None,
        protection: Protection = RECORD,
        coordinator: CoordinatorView = PLAIN,
    ) -> Release:
        """Answer every query, or those that pass the check, in order; none is asked after `max_answers`.

        Noise of a NumPy generator is for simulation, and its event says that it protects nobody.

        Shapes: `totals` int (queries, classes).
        """
        votes, noise = self._votes(totals, coordinator), as_noise(noise)
        answered, label = self._answer(votes, votes.max(axis=1), noise, max_answers)
        return finish(self, answered, label, noise, protection, coordinator)

    def _votes(self, totals: ArrayLike, coordinator: CoordinatorView) -> Ints:
        """The totals as int64 (queries, classes), once they are known to be ones of this mechanism.

        Where each hospital's votes are seen, each vector was checked, so that no row has more than all votes.
        """
        votes = check_totals(totals, num_teachers=self.num_teachers, num_classes=self.num_classes)
        if coordinator == PLAIN and (votes.sum(axis=1) > self.num_teachers).any():
            raise InputError(f"a query has more votes than the {self.num_teachers} teachers in all")
        return votes

    def _answer(
        self, votes: Ints, top: Ints, noise: NoiseSource, max_answers: int | None
    ) -> tuple[Bools, Ints]:
        """Answered bits and labels of the asked queries; a check, where there is one, is on `top`."""
        raise TypeError(f"{type(self).__name__} answers no exact totals")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AnswerAll(Voting):
    """Noisy max without a threshold: every query is answered."""

    answers_all: ClassVar[bool] = True

    def draw(self, noise: NoiseSource, shape: tuple[int, ...]) -> Ints:
        """The mechanism's noise for totals of this shape, in votes."""
        raise TypeError(f"{type(self).__name__} draws no noise")

    def _answer(
        self, votes: Ints, top: Ints, noise: NoiseSource, max_answers: int | None
    ) -> tuple[Bools, Ints]:
        answered = np.ones(len(votes), dtype=np.bool_)
        answered = answered[: stop_after(answered, max_answers)]
        votes = votes[: len(answered)]
        return answered, noisy_argmax(votes, self.draw(noise, votes.shape), noise)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LNMax(AnswerAll):
    """Noisy max with Laplace noise (P17, section 2.2): argmax of totals + discrete Laplace of `scale` votes.

    One query is (2 k / scale, 0)-DP where a unit moves k votes; P17's γ is 1 / scale.
    """

    name: ClassVar[str] = "lnmax"
    scale: float

    def _check(self) -> None:
        check_scale("scale", self.scale)

    def cost_asked(self, protection: Protection) -> Cost:
        """The winner's RDP; at most the totals' pure ε, L1 sensitivity / scale (P17, Theorem 2)."""
        return winner_cost(LAPLACE, self.scale, protection, totals=protection.l1 / Fraction(self.scale))

    def draw(self, noise: NoiseSource, shape: tuple[int, ...]) -> Ints:
        """The mechanism's noise for totals of this shape, in votes."""
        return noise.discrete_laplace(shape, scale=self.scale)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GNMax(AnswerAll):
    """Noisy max with Gaussian noise (P18, Proposition 8): argmax of totals + discrete N(0, `sigma`²)."""

    name: ClassVar[str] = "gnmax"
    sigma: float

    def _check(self) -> None:
        check_scale("sigma", self.sigma)

    def cost_asked(self, protection: Protection) -> Cost:
        """The winner's RDP; at most the totals' ρ = 1/σ² where one vote moves (P18, Proposition 8)."""
        return winner_cost(GAUSSIAN, self.sigma, protection, totals=_rho(protection.l2_squared, self.sigma))

    def draw(self, noise: NoiseSource, shape: tuple[int, ...]) -> Ints:
        """The mechanism's noise for totals of this shape, in votes."""
        return noise.discrete_gaussian(shape, sigma=self.sigma)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ConfidentGNMax(Voting):
    """Confident-GNMax (P18, Algorithm 1): answer only where the teachers agree.

    A query is answered where max + discrete N(0, `sigma1`²) >= `threshold`, by the argmax of
    totals + discrete N(0, `sigma2`²). All three in votes.
    """

    name: ClassVar[str] = "confident-gnmax"
    threshold: float
    sigma1: float
    sigma2: float

    def _check(self) -> None:
        check_scale("sigma1", self.sigma1)
        check_scale("sigma2", self.sigma2)
        check_threshold(self.threshold)

    def cost_asked(self, protection: Protection) -> Cost:
        """The RDP of the check's bit; at most ρ = 1/(2 σ1²) where one vote moves (P18, section 4.2)."""
        bit = OutcomeCost(
            of="check",
            kind=GAUSSIAN,
            scale=float(self.sigma1),
            votes=protection.top,
            totals=_rho(protection.top**2, self.sigma1),
        )
        return Cost(outcomes=((bit, 1),))

    def cost_answered(self, protection: Protection) -> Cost:
        """The winner's RDP; at most the totals' ρ = 1/σ2² where one vote moves (P18, Proposition 8)."""
        return winner_cost(GAUSSIAN, self.sigma2, protection, totals=_rho(protection.l2_squared, self.sigma2))

    def _answer(
        self, votes: Ints, top: Ints, noise: NoiseSource, max_answers: int | None
    ) -> tuple[Bools, Ints]:
        # The check's noise is drawn for every query, before any of the argmax's: a release that stops early
        # must not differ in what it drew before, and a seeded run must repeat.
        passed = top + noise.discrete_gaussian(top.shape, sigma=self.sigma1) >= math.ceil(self.threshold)
        answered = passed[: stop_after(passed, max_answers)]
        voted = votes[: len(answered)][answered]
        label = np.full(len(answered), NOT_ANSWERED, dtype=np.int64)
        label[answered] = noisy_argmax(voted, noise.discrete_gaussian(voted.shape, sigma=self.sigma2), noise)
        return answered, label


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class InteractiveGNMax(ConfidentGNMax):
    """Interactive-GNMax (P18, Algorithm 2): answer only where the teachers contradict the student.

    The check compares totals with what the student's predictions would be worth in votes, `num_teachers`
    times the probability, rounded to whole votes: predictions are public, so rounding them first keeps the
    sensitivity of the maximum at exactly one vote (rounding the maximum half to even would make it two).
    Where the check fails and the student's highest probability is above `confidence`, its own label is
    confirmed without a look at the votes.
    """

    name: ClassVar[str] = "interactive-gnmax"
    confidence: float

    def _check(self) -> None:
        ConfidentGNMax._check(self)
        if self.num_teachers == MOST_TEACHERS:
            raise InputError("num_teachers is missing: so many votes are the student's predictions worth")
        if not is_number(self.confidence) or not 0 <= self.confidence <= 1:
            raise InputError(f"confidence={self.confidence!r}: must be a probability from 0 to 1")

    def release(  # type: ignore[override]
        self,
        totals: ArrayLike,
        noise: NoiseSource | np.random.Generator,
        *,
        predictions: ArrayLike,
        max_answers: int | None = None,
        protection: Protection = RECORD,
        coordinator: CoordinatorView = PLAIN,
    ) -> Release:
        """Answer the queries on which the teachers contradict the student; see `Voting.release`.

        Shapes: `totals` int (queries, classes), `predictions` float (queries, classes) with the student's
        probabilities.

        Raises:
            InputError: totals that are no vote totals, or predictions that are no probabilities.
        """
        votes, noise = self._votes(totals, coordinator), as_noise(noise)
        top = self.contradiction(votes, predictions)
        answered, label = self._answer(votes, top, noise, max_answers)
        release = finish(self, answered, label, noise, protection, coordinator)
        seen = np.asarray(predictions)[: release.asked]
        return replace(release, reinforced=frozen(self.reinforced(answered, seen)))

    def contradiction(self, votes: Ints, predictions: ArrayLike) -> Ints:
        """Statistic of the check: the most that any class has beyond the student's expectation, in votes.

        It moves by as much as the largest total does. Shapes: (queries, classes) both, to int64 (queries,).

        Raises:
            InputError: predictions that are no probabilities.
        """
        shares = check_predictions(predictions, votes.shape)
        # predictions are rounded first, so that this moves as whole votes do
        most: Ints = (votes - np.rint(self.num_teachers * shares).astype(np.int64)).max(axis=1)
        return most

    def reinforced(self, answered: Bools, predictions: ArrayLike) -> Ints:
        """The student's own labels that an unpassed check confirms; from public things only.

        Shapes: bool (asked,) and float (asked, classes) to int64 (asked,), -1 where none is.
        """
        shares = np.asarray(predictions, dtype=np.float64)
        sure = ~answered & (shares.max(axis=1) > self.confidence)
        return np.where(sure, shares.argmax(axis=1), NOT_ANSWERED).astype(np.int64)


def _rho(l2_squared: int, sigma: float) -> Fraction:
    """ρ of totals with this noise (for integers arXiv 2004.00010)."""
    return l2_squared / (2 * Fraction(sigma) ** 2)


def winner_cost(
    kind: str, scale: float, protection: Protection, *, totals: Fraction, distance: Fraction = Fraction(0)
) -> Cost:
    """Cost of the class that wins, once; see `OutcomeCost`."""
    winner = OutcomeCost(
        of="one-total" if protection.votes_vanish else "argmax",
        kind=kind,
        scale=float(scale),
        votes=protection.votes_moved,
        totals=totals,
        distance=distance,
    )
    return Cost(outcomes=((winner, 1),))


def finish(
    mechanism: Mechanism,
    answered: Bools,
    label: Ints,
    noise: NoiseSource,
    protection: Protection,
    coordinator: CoordinatorView,
) -> Release:
    """Release of these bits and labels, with the event that it is charged as."""
    event = PrivacyEvent(
        mechanism=mechanism,
        asked=len(answered),
        answered=int(answered.sum()),
        protection=protection,
        noise=noise.kind,
        private=noise.private,
        coordinator=coordinator,
    )
    nobody = np.full(len(answered), NOT_ANSWERED, dtype=np.int64)
    return Release(
        asked=event.asked,
        answered=frozen(answered.copy()),
        label=frozen(label),
        reinforced=frozen(nobody),
        event=event,
    )


def check_totals(totals: ArrayLike, *, num_teachers: int, num_classes: int) -> Ints:
    """The totals as int64 (queries, classes).

    A row may sum to less than `num_teachers`, as hospitals may fail, and to more, where one of them lies
    under masks: to refuse that would tell it about the others' votes. No count passes `num_teachers`.

    Raises:
        InputError: not rectangular, not whole numbers, another number of classes, or a count that is negative
            or above `num_teachers`. The message carries no votes.
    """
    try:
        array = np.asarray(totals)
    except ValueError as error:
        raise InputError("totals are not rectangular: every query needs one count for each class") from error
    if array.dtype.kind not in "iu":
        raise InputError(f"totals are {array.dtype}, not whole numbers: counts of votes are meant")
    if array.ndim != 2 or array.shape[1] != num_classes:
        raise InputError(f"totals have the shape {array.shape}, not (queries, {num_classes})")
    if array.size and array.min() < 0:
        raise InputError("totals hold a negative count")
    if array.size and array.max() > num_teachers:
        raise InputError(f"a query has more votes than the {num_teachers} teachers")
    return array.astype(np.int64, copy=False)


def check_predictions(predictions: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """The student's probabilities as float64 (queries, classes).

    Raises:
        InputError: another shape than the totals, or rows that are no probabilities.
    """
    try:
        shares = np.asarray(predictions, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError("predictions are not a rectangular array of numbers") from error
    if shares.shape != shape:
        raise InputError(f"predictions have the shape {shares.shape}, not {shape} as the totals")
    if not ((shares >= 0) & (shares <= 1)).all():
        raise InputError("predictions hold a value that is not a probability from 0 to 1")
    if (np.abs(shares.sum(axis=1) - 1) > 1e-3).any():
        raise InputError("predictions of a query do not sum to 1")
    return shares


def noisy_argmax(votes: Ints, noise: Ints, source: NoiseSource) -> Ints:
    """The class with the largest noisy total of every query; ties are broken uniformly at random.

    Shapes: `votes` and `noise` int64 (queries, classes); the result int64 (queries,).
    """
    noisy = votes + noise
    best = noisy == noisy.max(axis=1, keepdims=True)
    # The largest of independent keys, drawn anew where the largest are equal: each tied class exactly alike.
    keys = np.where(best, source.tie_keys(noisy.shape), 0)
    while (equal := (keys == keys.max(axis=1, keepdims=True)).sum(axis=1) > 1).any():
        keys[equal] = np.where(best[equal], source.tie_keys(keys[equal].shape), 0)
    label: Ints = keys.argmax(axis=1)
    return label


def stop_after(passed: NDArray[np.bool_], max_answers: int | None) -> int:
    """How many queries are asked: up to and with the one that gives the last answer, or all."""
    if max_answers is None:
        return len(passed)
    most = check_count("max_answers", max_answers)
    where = np.flatnonzero(passed)
    if len(where) < most:
        return len(passed)
    return int(where[most - 1]) + 1 if most else 0


def frozen(array: NDArray[Scalar]) -> NDArray[Scalar]:
    """The array, made read-only."""
    array.setflags(write=False)
    return array
