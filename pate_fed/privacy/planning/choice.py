"""Votes, class sums, private labels, or alone: the accuracy to expect of each, before any data are touched.

A model of three lines, for choosing and not for reporting. Its constants were set by the measured cases in
docs/plan.md, which the tests hold it against.

1. m records that count in full give A(m) = C - (C - 1/K) / sqrt(1 + m / m0), m0 = 6K (1 - C), with K classes
   and C what no number of records passes: the square root of a parametric model, quicker where it is easy.
2. The noise of class sums is worth lost records. The sum of n wavers by 1/n of its square by which records
   were drawn, and by sigma^2 100 K / n^2 by noise of sigma record lengths in the 100 directions for each
   class that a ridge makes use of. So m = 1 / (1/n + 100 K (sigma / n)^2).
3. A student of votes goes the same way in `effective_labels` to what the plurality is right in, but with
   m0 = K (1 - that): it learns from the public inputs without a label too.

A hospital alone has the curve at its own records; so has a teacher. Where labelled public inputs stood for
records in small (`Trial`), that is the estimate of class sums.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from pate_fed.errors import InputError
from pate_fed.format import counted, delta_text
from pate_fed.privacy.checks import check_count, check_delta, check_epsilon, is_number
from pate_fed.privacy.mechanisms.class_sums import SumShape, least_share
from pate_fed.privacy.planning.search import Offer
from pate_fed.privacy.planning.vote_model import VoteModel, assumed_votes, mean_right
from pate_fed.privacy.protection import LEAST_PARTIES, RECORD, Protection, Shares

ALONE, VOTES, SUMS, LABELS = "alone", "votes", "class-sums", "private labels"

USEFUL_LABELS = 100
"""Labels below which a student learns too little for votes to be worth their ε."""
USUAL_CEILING = 0.9
_GAIN = 0.01  # below which a hospital had better stay alone
FEWER = 4  # times fewer rows than a pilot's, to see what drawing does
_LEAST_GAIN = 0.05  # over a guess at random, below which nothing is learnt at all

_QUICKNESS = 6.0  # of a curve in records: m0 in classes, where nothing is right
_DIRECTIONS = 100
_STUDENT = 1.0  # as _QUICKNESS, of a student that has the public inputs
_FACTOR = 2.0  # by which what counts in full may be estimated wrongly, either way
_BESIDE = 0.03  # by which a curve may be
_ROUNDS = ((2000.0, 10), (900.0, 3))  # a class's records over the noise from which so many rounds pay
_ROUNDS_DRAWN = ((250.0, 3),)  # without public inputs: only rounds tell how columns go together
_OF_WHOLE, _APART = 10, 0.25  # directions, and what of the variance tells classes apart, of a whole hospital
_WHOLE_ROUNDS, _TOLD = 3, 25.0
_ADDED = "add-or-remove-one"
MOST_COUNTED = 14  # times that a record counts in a sum in rounds
_ROOM = 2**30  # of sums in 32 bits with signs: half, as hospitals are not alike
_LATTICE = 1024  # steps in a record's length, as a study has
_HARDEST, _EASIEST = 0.55, 0.995


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A pilot on labelled public inputs: what `rows` as records gave, a quarter of them, and its error.

    Noise was as much less as there were fewer; the map's `pool` held them. With `alike` each class counts
    alike.
    """

    rows: int
    right: float
    fewer: float
    error: float
    pool: int
    alike: bool = False

    def expected(self, records: int, classes: int) -> float:
        """What so many records give that are not of the pool.

        A right class leads in its score by d deviations of the others'. Weights are linear in sums, so 1/d²
        is a line in what these vary by chance, through what all m rows and a quarter gave. A student fits
        sums S by the pool's G: with a variance of V a record, of which scores W tell a part t, S/m - GW has
        V/m - tV/p where the m are of the p, and V/n + tV/p of n others. So n count like m where
        1/m = 1/n + 2t/p. Of probabilities P a class, t is about the mean of P² and accuracy of P, above a
        guess.
        """
        guess = 1 / classes
        told = max(0.0, (self.right - guess) / (1 - guess)) ** 2
        fewer = max(self.fewer, guess + 2 * self.error)  # less says nothing of how steep it is
        most, least = (_lead(each, classes) ** -2 for each in (self.right, fewer))
        slope = min(max(0.0, least - most) / (FEWER - 1), most)  # of m's variance
        chance = self.rows * (1 / records + 2 * told / self.pool)
        return hit_rate((most - slope * (1 - chance)) ** -0.5, classes)

    def margin(self, records: int, classes: int) -> float:
        """How far off that may be: two errors, what is not measured, and what pool and records differ by."""
        return 2 * self.error + abs(self.expected(records, classes) - self.right) + _BESIDE / 3


def hit_rate(lead: float, classes: int) -> float:
    """The share that is right where the right class's score leads the others' means by so many deviations."""
    one = VoteModel(np.eye(1, classes), np.zeros(1, dtype=np.int64), "")
    return float(one.right_chance(1 / lead, 1)[0])


def _lead(right: float, classes: int) -> float:
    """The lead at which so much is right."""
    low, high = 1e-3, 10.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if hit_rate(middle, classes) < right else (low, middle)
    return low


@dataclass(frozen=True, slots=True, kw_only=True)
class Sites:
    """What a choice rests on. `records` are one hospital's, `teachers` all hospitals' together.

    `alone` is the accuracy that a hospital's own model has, None: not known; `pilot` what class sums gave in
    small, and `votes` how teachers voted (`pate_fed.kinds.pilot`). `shares` are who is counted on for noise,
    None: a study's default. `epsilon` is all ways', but that of votes where `votes_epsilon` is another.
    """

    hospitals: int
    records: int
    classes: int
    epsilon: float
    delta: float
    teachers: int
    alone: float | None = None
    pilot: Trial | None = None
    protection: Protection = RECORD
    shares: Shares | None = None
    votes: VoteModel | None = None
    public_features: bool = False
    votes_epsilon: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("hospitals", 1), ("records", 1), ("classes", 2), ("teachers", 1)):
            check_count(name, getattr(self, name), least=least)
        check_epsilon(self.epsilon), check_delta(self.delta)
        if self.alone is not None and not (is_number(self.alone) and 1 / self.classes < self.alone <= 1):
            raise InputError(
                f"alone={self.alone!r}: the share that a hospital's own model is right in, above "
                f"1/{self.classes} and at most 1, such as 0.85"
            )

    @property
    def ceiling(self) -> float:
        """What no number of records passes: by the accuracy that a hospital has alone, or as usual."""
        if self.alone is None:
            return USUAL_CEILING
        low, high = _HARDEST, _EASIEST
        while high - low > 1e-4:
            middle = (low + high) / 2
            fits = _curve(self.records, middle, self.classes, _QUICKNESS) < self.alone
            low, high = (middle, high) if fits else (low, middle)
        return low

    @property
    def agreement(self) -> float:
        """The accuracy of one teacher."""
        if self.votes is not None:
            labels = self.votes.right
            own = np.take_along_axis(self.votes.shares, labels[:, None], axis=1)[:, 0]
            return self._kept(mean_right(own, labels, alike=self.alike))
        return self._kept(self.accuracy(self.hospitals * self.records / self.teachers))

    def _kept(self, share: float) -> float:
        """It as `agreement` may be."""
        return min(0.999, max(1.001 / self.classes, share))

    @property
    def alike(self) -> bool:
        """Whether all figures count each class alike, as one is rare."""
        return self.pilot is not None and self.pilot.alike

    def accuracy(self, records: float) -> float:
        """What so many records that count in full are expected to give."""
        return _curve(records, self.ceiling, self.classes, _QUICKNESS)


def _curve(count: float, ceiling: float, classes: int, quickness: float) -> float:
    soon = max(quickness * classes * (1 - ceiling), 1e-3)
    return ceiling - (ceiling - 1 / classes) / math.sqrt(1 + count / soon)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to a model: the accuracy to expect on all hospitals' patients, its range, and what it rests on.

    `serves` says whether it is worth its `epsilon` at all; `worth` is how many records, or labels, count in
    full.
    """

    name: str
    epsilon: float
    expected: float
    low: float
    high: float
    worth: float
    serves: bool
    rests: str

    def line(self) -> str:
        """It as a row of text."""
        return (
            f"{self.name:<16}{100 * self.expected:5.0f} %   {100 * self.low:3.0f} to {100 * self.high:3.0f} %"
            f"{self.epsilon:6g}   {self.rests}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What to run, why, and what each way is expected to give.

    `together` is the best way of several hospitals, None where none serves; `best` is "alone" where a
    hospital's own model is about as good. `command` runs class sums, where these are best and a replaced
    record is protected. With `alike` all figures count each class alike, as one is rare.
    """

    together: str | None
    best: str
    why: str
    ways: tuple[Way, ...]
    command: str | None
    alike: bool = False

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {**asdict(self), "ways": [asdict(way) for way in self.ways]}

    def lines(self) -> list[str]:
        """As text, one line each."""
        rare = "a class is rare, so each counts alike: the mean of their recall, of a hospital alone, too"
        return [
            "expected on all hospitals' patients: an estimate before any data, see docs/plan.md",
            *([rare] if self.alike else []),
            f"{'':<16}{'right':>7}   {'range':>11}{'ε':>6}   rests on",
            *(way.line() for way in self.ways),
            f"best: {'stay ' * (self.best == ALONE)}{self.best}, as {self.why}",
            *([] if self.command is None else [f"run it: {self.command}"]),
        ]


def choose(sites: Sites, offer: Offer | None) -> Choice:
    """The way to run; `offer` is what the budget buys of votes of teachers that agree as `agreement` says."""
    alone, *others = ways = _ways(sites, offer)
    together, why = _together(others)
    best = together or ALONE
    way = next((each for each in others if each.name == together), None)
    if way is not None:
        points = 100 * (way.expected - alone.expected)
        if points < 100 * _GAIN:
            best = ALONE
            why = f"{together} would be {points:+.0f} points beside it, and alone nothing is given away"
        else:
            why += f"; {points:+.0f} points beside a hospital alone"
            if way.low <= alone.high:
                why += ", within the estimate's error (--alone and --pilot make it smaller)"
    command = (
        f"flower-simulation --num-clients {sites.hospitals} --aggregator {SUMS} --secure-sum "
        f"--noise-at hospitals --epsilon {sites.epsilon:g} --delta {delta_text(sites.delta)} "
        f"--records {sites.records}"
    )
    return Choice(
        together=together,
        best=best,
        why=why,
        ways=ways,
        command=command if best == SUMS and sites.protection == RECORD else None,
        alike=sites.alike,
    )


def _ways(sites: Sites, offer: Offer | None) -> tuple[Way, ...]:
    ways = (_alone(sites), votes_way(sites, offer), sums_way(sites))
    return (*ways, _labels_way(sites)) if sites.public_features else ways


def _together(ways: list[Way]) -> tuple[str | None, str]:
    """The name of the best way of several hospitals, or None, and why."""
    serving = [way for way in ways if way.serves]
    if not serving:
        return None, "no way of hospitals together serves: " + "; ".join(
            f"{way.name}: {way.rests}" for way in ways
        )
    best = max(serving, key=lambda way: way.expected)
    return best.name, f"{best.name} is expected to be the most accurate"


def _alone(sites: Sites) -> Way:
    way = _way(ALONE, 0.0, sites.records, sites.accuracy, rests=counted(sites.records, "record"))
    stated = way.expected if sites.alone is None else sites.alone  # also where it is below all curves
    return replace(way, expected=stated, low=min(way.low, stated), high=max(way.high, stated))


def sums_way(sites: Sites) -> Way:
    """Class sums with the noise at the hospitals."""
    if sites.hospitals < LEAST_PARTIES:
        return _none(SUMS, sites, f"a sum under masks needs {LEAST_PARTIES} hospitals")
    if sites.protection.votes_vanish:
        return _none(SUMS, sites, "a hospital that leaves takes its noise along")
    try:
        sigma = sums_noise(sites)
    except InputError:
        return _none(SUMS, sites, "no noise of a usual size keeps this budget")
    n, whole = sites.hospitals * sites.records, sites.protection.unit == "hospital"
    directions = _OF_WHOLE if whole else _DIRECTIONS
    worth = 1 / (1 / n + directions * sites.classes * (sigma / n) ** 2)
    rests = f"{n:,} records with noise of {sigma:.3g}, worth {_count(worth)} without it"
    rounds = useful_rounds(n, sites.classes, sigma)
    if whole:
        rounds = rounds_of_whole(sites.hospitals, sites.records, sites.classes, sigma)
    if rounds and (whole or room_for_rounds(n)):
        rests += f"; asked {rounds} times more, by what is unexplained"
    if whole:
        rests += f"; --aggregator {SUMS} --secure-sum asks for them"
    way = _way(SUMS, sites.epsilon, worth, sites.accuracy, rests=rests)
    if sites.pilot is not None:
        expected, error = (say(n, sites.classes) for say in (sites.pilot.expected, sites.pilot.margin))
        rests = f"a pilot of {sites.pilot.rows:,} labelled public inputs; {rests}"
        low, high = max(0.0, expected - error), min(1.0, expected + error)
        way = replace(way, expected=expected, low=low, high=high, rests=rests)
    if way.high < 1 / sites.classes + _LEAST_GAIN:
        hidden = f"the noise of {sigma:.3g} records hides the sums of {n:,}"
        return replace(way, rests=hidden, serves=False)
    return way


def sums_noise(sites: Sites) -> float:
    """The noise in all hospitals' sums, in records' lengths, where they are asked for once.

    Raises:
        InputError: it would be of no usual size.
    """
    whole = sites.protection.unit == "hospital"
    moved = whole_length(sites.records, sites.classes) if whole else sites.protection.hospitals
    # Sums of residuals have signs: a replaced hospital moves them twice their length, and not √2 times.
    moved = math.ceil(math.sqrt(2) * moved) if whole and sites.protection.adjacency != _ADDED else moved
    shares = sites.shares or Shares.usual(sites.hospitals)
    share = least_share(
        sites.epsilon,
        sites.delta,
        SumShape(num_classes=sites.classes, dimension=1, squared_norm=_LATTICE**2),
        replace(sites.protection, votes_moved=moved),
        survivors=shares.least_voters,
        colluders=shares.colluders,
    )
    return share * math.sqrt(sites.hospitals) / _LATTICE


def useful_rounds(records: int, classes: int, sigma: float, *, drawn: bool = False) -> int:
    """Rounds after the first question that pay for so many records of all hospitals (docs/class-sums.md).

    By a class's records over the noise of `sigma` records' lengths on its sums; `drawn`: rows that are drawn
    from the first sums stand for a pool.
    """
    told = records / classes / sigma
    return next((rounds for least, rounds in (_ROUNDS_DRAWN if drawn else _ROUNDS) if told >= least), 0)


def whole_length(records: int, classes: int) -> int:
    """About how many records' lengths the sum of a hospital of so many is cut to (`DirectionFeatures`)."""
    return round(math.sqrt(_APART * records**2 / classes + records * (1 - 1 / classes))) or 1


def rounds_of_whole(hospitals: int, records: int, classes: int, sigma: float) -> int:
    """The same as `useful_rounds` where the sum of a whole hospital is cut: its length over the noise."""
    told = hospitals * whole_length(records, classes) / sigma
    return _WHOLE_ROUNDS if told >= _TOLD else 0


def room_for_rounds(records: int, lattice: int = _LATTICE) -> bool:
    """Whether sums in rounds over so many records are sure to fit into 32 bits."""
    return records * MOST_COUNTED * lattice <= _ROOM


def votes_way(sites: Sites, offer: Offer | None) -> Way:
    """The votes that `offer` is about; None where the budget buys none."""
    model = sites.votes or assumed_votes(sites.agreement, sites.classes, sites.teachers)
    labels, worth = (offer.answered, offer.effective_labels) if offer else (0, 0.0)
    right = model.shares.argmax(axis=1) == model.right
    plurality = mean_right(right, model.right, alike=sites.alike and sites.votes is not None)
    rests = f"{counted(labels, 'label')} of {counted(sites.teachers, 'teacher')}"
    if offer:
        rests += f", {100 * offer.right_share:.0f} % right, worth {_count(worth)}"
    return _way(
        VOTES,
        sites.votes_epsilon or sites.epsilon,
        worth,
        lambda count: _curve(count, min(plurality, _EASIEST), sites.classes, _STUDENT),
        rests=rests if labels >= USEFUL_LABELS else f"{rests}: fewer than {USEFUL_LABELS} teach little",
        serves=labels >= USEFUL_LABELS,
    )


def _labels_way(sites: Sites) -> Way:
    """Labels after randomised response: a lower bound for what `pate-fed label-dp` gets from them."""
    n, classes = sites.hospitals * sites.records, sites.classes
    kept = math.expm1(sites.epsilon) / (math.exp(sites.epsilon) + classes - 1)
    worth = n * kept**2
    return _way(
        LABELS,
        sites.epsilon,
        worth,
        sites.accuracy,
        rests=f"{n:,} labels after randomised response, worth {_count(worth)} true ones",
        serves=sites.accuracy(_FACTOR * worth) >= 1 / classes + _LEAST_GAIN,
    )


def _way(name: str, epsilon: float, worth: float, curve: Any, *, rests: str, serves: bool = True) -> Way:
    low, high = curve(worth / _FACTOR) - _BESIDE, curve(worth * _FACTOR) + _BESIDE
    return Way(
        name=name,
        epsilon=epsilon,
        expected=curve(worth),
        low=max(0.0, low),
        high=min(1.0, high),
        worth=worth,
        serves=serves,
        rests=rests,
    )


def _none(name: str, sites: Sites, why: str) -> Way:
    return _way(name, sites.epsilon, 0.0, lambda _: 1 / sites.classes, rests=why, serves=False)


def _count(worth: float) -> str:
    return f"{worth:,.0f}" if worth >= 10 else f"{worth:.1f}"
