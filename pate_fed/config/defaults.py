"""What a study takes that says nothing of it: votes or class sums and why, then noise, threshold and counts.

For its number of teachers and its budget, before any data are read. A setting that only one way has chooses
that one; `pate_fed.privacy.planning` has the models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from pate_fed.config.backend import AUTO
from pate_fed.config.registry import find_part
from pate_fed.config.sections import CLASS_SUMS, INTERACTIVE, VOTES, Aggregation, Privacy, Queries
from pate_fed.config.trust import AT_HOSPITALS, TrustModel
from pate_fed.data import Schema
from pate_fed.errors import InputError
from pate_fed.format import counted
from pate_fed.learning import RIDGE, TABLE_STUDENTS, TABLE_TEACHERS, StudentSettings, TeacherSettings
from pate_fed.learning.features.feature_map import BINS, DIRECTIONS, KERNEL, LINEAR, FeatureSettings
from pate_fed.privacy.protection import HOSPITAL_UNIT, LEAST_PARTIES, Protection, Shares
from pate_fed.structure import PART_NAME, check, refusal, same_as, setting

if TYPE_CHECKING:
    from pate_fed.config.study import Study
    from pate_fed.privacy.planning.choice import Sites, Way
    from pate_fed.privacy.planning.search import Offer, OfferSearch


MOST_BY_DEFAULT = 4.0
"""ε above which noise in proportion to the teachers is no default any more: the planner spends this instead.

250 teachers stay below it with the default of the PATE papers; at 8 the chance of an outcome may change by a
factor of 3,000 already, and below 2 fewer than a hundred teachers get no labels to learn from.
"""

USEFUL_LABELS = 100
"""Labels below which a student learns too little for a study to be worth its ε."""

_CLASSES = 10  # of a known data set; ε does not depend on it, and the best noise little
_AGREEMENT = 0.85  # of teachers with the right class, as `pate-fed plan` assumes
_MOST_QUERIES = 2000
_NEARLY = 0.8  # of the useful labels, by an estimate that errs by less
_WITHIN = 0.97  # of the budget, by the same estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Ensemble:
    """Who votes, on what and how: what noise, threshold and counts are chosen for.

    `shares` says who is counted on where the hospitals add the noise; None where the coordinator does.
    """

    num_teachers: int
    num_classes: int
    aggregator: str
    privacy: Privacy
    protection: Protection
    shares: Shares | None = None

    @classmethod
    def of(cls, study: Study, shares: Shares | None = None) -> Ensemble:
        """Of a study, with the unit that its data imply."""
        parties, privacy = study.parties, study.with_unit(study.data.names_patients).privacy
        return cls(
            num_teachers=parties.num_teachers,
            num_classes=study.data.num_classes or _CLASSES,
            aggregator=study.aggregation.aggregator,
            privacy=privacy,
            protection=privacy.protection(parties.teachers_per_client),
            shares=shares,
        )

    @property
    def budget(self) -> float:
        """ε that is planned for."""
        return MOST_BY_DEFAULT if self.privacy.epsilon is None else self.privacy.epsilon

    @property
    def planned_as(self) -> str:
        """The aggregator that is planned: a student's part in the votes is not known beforehand."""
        return VOTES if self.aggregator in (AUTO, INTERACTIVE) else self.aggregator


def with_defaults(
    ensemble: Ensemble, aggregation: Aggregation, queries: Queries
) -> tuple[Aggregation, Queries]:
    """The aggregation and the queries with T, σ1, σ2, labels and queries from the planner, or as they are.

    As they are where one of these is given, where the mechanism is the user's own, where noise in proportion
    to the teachers keeps to the budget (ε 4 where none is given), and where no noise buys enough labels.
    Where the hospitals add the noise the budget is held against the coordinator, which sees noisy totals.
    """
    given = (
        aggregation.threshold,
        aggregation.sigma1,
        aggregation.sigma2,
        queries.labels,
        queries.max_queries,
    )
    if given != (None,) * len(given) or aggregation.own:
        return aggregation, queries
    offer = None if keeps_in_proportion(ensemble) else useful_offer(ensemble)
    if offer is None:
        return aggregation, queries
    planned = replace(aggregation, threshold=offer.threshold, sigma1=offer.sigma1, sigma2=offer.sigma2)
    return planned, replace(queries, labels=offer.answered, max_queries=offer.asked)


@lru_cache(maxsize=64)
def keeps_in_proportion(ensemble: Ensemble) -> bool:
    """Whether the usual noise and counts keep to the budget, nearly: by an estimate, on the safe side."""
    from pate_fed.privacy import epsilon_of
    from pate_fed.privacy.bounds.cost import Cost
    from pate_fed.privacy.mechanisms.events import Mechanism
    from pate_fed.privacy.planning.search import about_rho, gaussian_room

    teachers, shares = ensemble.num_teachers, ensemble.shares
    usual = Aggregation(aggregator=ensemble.planned_as).resolve(teachers, shares)
    labels = Queries().resolve(interactive=False).labels or 0
    asked = min(
        _MOST_QUERIES, math.ceil(labels * usual.queries_a_label(teachers, noise_at_hospitals=bool(shares)))
    )
    sigma2 = usual.fixed()[2]
    budget, delta, protection = ensemble.budget, ensemble.privacy.delta, ensemble.protection
    if shares is not None:
        totals = Cost(rho=Fraction(protection.l2_squared * asked) / (2 * Fraction(sigma2) ** 2))
        return epsilon_of(totals, delta) <= _WITHIN * budget
    size: dict[str, Any] = {"num_teachers": teachers, "num_classes": 2}
    mechanism: Mechanism = find_part(usual.aggregator, "aggregator")(size, usual)
    asked = labels if mechanism.answers_all else asked
    return about_rho(mechanism.cost(asked, labels, protection)) <= gaussian_room(_WITHIN * budget, delta)


def useful_offer(ensemble: Ensemble) -> Offer | None:
    """What the budget buys, where that is enough labels to learn from; else None."""
    if _is_too_small(ensemble):
        return None
    offer = affordable_offer(ensemble)
    return None if offer is None or offer.answered < USEFUL_LABELS else offer


def _is_too_small(ensemble: Ensemble) -> bool:
    """Whether the budget buys so few teachers far less than the useful labels, by the estimate."""
    if ensemble.protection.votes_moved > ensemble.num_teachers:
        return True
    # The hospitals' own noise buys fewer labels than the coordinator's.
    guess = _search(ensemble).guess(ensemble.planned_as, ensemble.budget)
    return guess is None or guess.answered < _NEARLY * USEFUL_LABELS


@lru_cache(maxsize=64)
def affordable_offer(ensemble: Ensemble) -> Offer | None:
    """The most effective labels that the budget, or ε 4, buys so many teachers; None where none.

    ε is what a study with these caps guarantees; where the hospitals add the noise, against the coordinator.
    None too where nothing bounds it: a hospital that joins or leaves takes its noise along.
    """
    from pate_fed.privacy.planning.hospital_noise import SharesSearch, refused_shares

    if ensemble.protection.votes_moved > ensemble.num_teachers:
        return None
    search, shares = _search(ensemble), ensemble.shares
    if shares is None:
        return search.offer(ensemble.planned_as, ensemble.budget)
    if refused_shares(search, shares.num_clients, ensemble.aggregator) is not None:
        return None
    found = SharesSearch(search, shares).best(ensemble.budget, (ensemble.planned_as,))
    return None if found is None else found.offer


@lru_cache(maxsize=64)
def _search(ensemble: Ensemble) -> OfferSearch:
    from pate_fed.privacy.planning.search import OfferSearch
    from pate_fed.privacy.planning.vote_model import assumed_votes

    size = ensemble.num_classes, ensemble.num_teachers
    return OfferSearch(
        assumed_votes(_AGREEMENT, *size),
        ensemble.num_teachers,
        _MOST_QUERIES,
        ensemble.protection,
        ensemble.privacy.delta,
    )


SUMS_EPSILON = 1.0
"""What class sums cost where a study says nothing: more buys them little, and less would be a gift."""


def _cuts(value: Any) -> Any:
    """Columns with their knots as pairs, where they are a table too."""
    return list(value.items()) if isinstance(value, Mapping) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """What is summed where the aggregator is "class-sums": the public feature map. None: its own defaults.

    `features` is "linear-and-kernel" for a table, "kernel" for images; "directions" of either with the unit
    hospital, where it is known how many records one has.
    `cuts` are declared knots of a table's numbers, by column; those of the others are the public pool's
    quantiles. With `balanced` the ridge student counts each class alike, however many records it has; None:
    where the released sums say that one is rare. After the first question so many `rounds` follow, each with
    weights made of the answers so far; None: as many as pay for the records that are known of
    (`fixed_rounds`). With the unit hospital `most_records` is to how many records' length a hospital's sum is
    cut. With `scores` each hospital keeps a share `held_out` of its records, whole patients where these are
    named, out of all sums; they are counted once, with noise, to tell how good the student is. None: where
    there are no public inputs, which could tell it, and records enough (`fixed_scores`).
    """

    features: str | None = same_as(FeatureSettings, "name", None)
    lattice: int | None = same_as(FeatureSettings, "lattice", None)
    dimension: int | None = same_as(FeatureSettings, "dimension", None)
    whitening: float | None = same_as(FeatureSettings, "whitening", None)
    bins: int | None = same_as(FeatureSettings, "bins", None)
    cuts: tuple[tuple[str, tuple[float, ...]], ...] = setting(
        (), read=_cuts, allowed="a table of columns with rising numbers"
    )
    balanced: bool | None = setting(
        None,
        "each class counts alike for the ridge student, however few records it has "
        "(default: where the released sums say that one is rare, below 0.4 of an even share)",
    )
    rounds: int | None = setting(
        None,
        "more questions after the first, by what the sums so far leave unexplained; ε is of all "
        "(default: 0, 3 or 10 by records and noise, where --records or the data say how many there are)",
        low=0,
        high=100,
    )
    most_records: int | None = setting(
        None,
        "with unit = hospital: cut a hospital's sums to the length of so many records",
        unit="records",
        low=1,
        high=10**6,
    )

    scores: bool | None = setting(
        None,
        "keep some records out of the sums and count them once, with noise, for figures on hospitals' "
        "own records (default: where rows drawn from declared ranges stand for public inputs)",
    )
    held_out: float = setting(0.2, "share of the records that scores are counted of", low=0.01, high=0.5)

    def __post_init__(self) -> None:
        check(self)
        if any(list(knots) != sorted(set(knots)) for _, knots in self.cuts):
            raise refusal(self, "cuts", "rising numbers for each column")

    @property
    def own(self) -> bool:
        """Whether the feature map is code of the user's own."""
        return self.features is not None and PART_NAME.fullmatch(self.features) is not None

    def of_inputs(self, schema: Schema | None, *, numbers: int = 0) -> FeatureSettings:
        """The feature map's settings, of a table with this schema, of rows of `numbers`, or of images.

        Raises:
            InputError: settings of the other kind, or knots of a column that has no numbers.
        """
        given = {name: getattr(self, name) for name in ("lattice", "dimension", "whitening", "bins")}
        found = {name: value for name, value in given.items() if value is not None}
        drawn = schema is not None and bool(schema.ranges)
        own = BINS if drawn else KERNEL if schema is None and not numbers else LINEAR
        found |= {"name": own if self.features is None else self.features}
        if drawn:
            if found["name"] != BINS:
                raise refusal(self, "features", f'"{BINS}", the map that needs no public inputs, is meant')
            found.setdefault("lattice", LATTICE_WITHOUT_POOL)
        if schema is None:
            if self.cuts:
                raise refusal(self, "cuts", "none: knots are meant for a table, and this is none")
            return FeatureSettings(columns=(1,) * numbers, **found)
        cuts, named = dict(self.cuts), [name for name, values in schema.columns if not values]
        if strange := sorted(set(cuts) - set(named)):
            raise refusal(self, "cuts", f"{strange[0]!r} is no column of numbers in the table's schema")
        knots = self.bins or FeatureSettings().bins
        even = {name: tuple(np.linspace(*ends, knots).tolist()) for name, ends in schema.ranges}
        cuts = even | cuts
        return FeatureSettings(
            columns=tuple(max(1, len(values)) for _, values in schema.columns),
            cuts=tuple(cuts.get(name, ()) for name, _ in schema.columns) if cuts else (),
            **found,
        )


LATTICE_WITHOUT_POOL = 256  # every column has a length of its own: sums need room in 32 bits
_MASKS = "they leave hospitals under masks and with noise (--secure-sum --noise-at hospitals)"
_RECORDS = {"mnist": 60_000, "fashion-mnist": 60_000, "cifar10": 50_000, "cifar100": 50_000}
_MANY_CLASSES = {"cifar100": 100}
_NOISE = ("threshold", "sigma1", "sigma2")


def fixed_way(study: Study, *, keep_student: bool = False) -> Study:
    """The study with its aggregator fixed, what that implies, and the reason.

    Class sums imply masks and noise at the hospitals and, with a default student that is not to be kept, the
    ridge student.

    Raises:
        InputError: neither way serves; the message says what would.
    """
    setting = _telling(study)
    name, why = _chosen(study) if setting is None else (setting[0], f"{setting[1]} is a setting of it")
    aggregation = replace(study.aggregation, aggregator=name)
    reason = f"aggregator {name}: {why}"
    if name == VOTES:
        return replace(study, aggregation=aggregation, reason=reason)
    secrecy = TrustModel(secure_sum=True, noise_at=AT_HOSPITALS, colluders=study.secrecy.colluders)
    if study.parties.teachers_per_client > 1:
        reason += "; no teachers are trained for it"
    student = study.student
    if not keep_student and student in (StudentSettings(), StudentSettings(name=TABLE_STUDENTS[0])):
        student = StudentSettings(name=RIDGE)
    return replace(study, aggregation=aggregation, secrecy=secrecy, student=student, reason=reason)


def _telling(study: Study) -> tuple[str, str] | None:
    """The way that a setting belongs to, and the setting; None where there is none."""
    parties, queries, aggregation = study.parties, study.queries, study.aggregation
    usual = TeacherSettings(), TeacherSettings(name=TABLE_TEACHERS[0])
    given = (
        (CLASS_SUMS, f"student {RIDGE}", study.student.name == RIDGE),
        (CLASS_SUMS, "[sums]", study.sums != Sums()),
        (CLASS_SUMS, "data.table.ranges", study.data.drawn),
        (CLASS_SUMS, "data.table.target_range", study.data.target_range is not None),
        (CLASS_SUMS, "data.table.labels", study.data.several > 0),
        *((VOTES, name, getattr(aggregation, name) is not None) for name in _NOISE),
        (VOTES, "labels", queries.labels is not None),
        (VOTES, "max_queries", queries.max_queries is not None),
        (VOTES, "strategy", queries.strategy != "random"),
        (VOTES, "rounds", queries.rounds is not None),
        (VOTES, "[teacher]", study.teacher not in usual),
        (VOTES, "records_per_teacher", parties.records_per_teacher is not None),
        (VOTES, "sanitise", study.privacy.sanitise),
    )
    return next(((way, what) for way, what, there in given if there), None)


def _chosen(study: Study) -> tuple[str, str]:
    """The way that suits the numbers, and why."""
    ensemble = study.ensemble()
    teachers = counted(ensemble.num_teachers, "teacher")
    if keeps_in_proportion(ensemble):
        return VOTES, f"{teachers} are enough, and no statistic of records leaves a hospital"
    offer, records = useful_offer(ensemble), known_records(study)
    refused, expected = _no_sums(study), None
    if records:
        from pate_fed.privacy.planning.choice import sums_way, votes_way

        sites = _sites(study, ensemble, records)
        votes, expected = None if offer is None else votes_way(sites, offer), sums_way(sites)
        refused = refused or (None if expected.serves else expected.rests)
        if refused is None and votes is not None and expected.expected > votes.expected:
            return CLASS_SUMS, f"right in {_share(expected)}, votes in {_share(votes)}, by estimate; {_MASKS}"
    if offer is not None:
        return VOTES, (
            f"{teachers} buy {counted(offer.answered, 'label')} at ε {ensemble.budget:g}, which is enough, "
            "and no statistic of records leaves a hospital"
        )
    few = f"{teachers} buy fewer than {USEFUL_LABELS} labels by votes at ε {ensemble.budget:g}"
    if refused is None:
        known = "how many records there are is not known yet"
        estimate = known if expected is None else f"sums are right in {_share(expected)} by estimate"
        return CLASS_SUMS, f"{few}; {estimate}; {_MASKS}"
    raise InputError(
        f"--aggregator auto: nothing serves {counted(study.parties.num_clients, 'hospital')}: {few}, too few "
        f"to learn from, and no class sums: {refused}. Find more hospitals or more records, give a larger "
        "--epsilon, or let each hospital use its own model (`pate-fed plan` compares). --aggregator gnmax "
        "votes all the same"
    )


def _no_sums(study: Study) -> str | None:
    """Why there can be no class sums, whatever the records are; None where there can."""
    if study.parties.num_clients < LEAST_PARTIES:
        return f"a sum under masks needs {LEAST_PARTIES} hospitals"
    if study.privacy.unit == HOSPITAL_UNIT and known_records(study) is None:
        return "the unit hospital needs --records, or most_records under [sums]"
    return None


def _sites(study: Study, ensemble: Ensemble, records: int) -> Sites:
    from pate_fed.privacy.planning.choice import Sites

    return Sites(
        hospitals=study.parties.num_clients,
        teachers=ensemble.num_teachers,
        records=records,
        classes=ensemble.num_classes,
        epsilon=study.privacy.epsilon or SUMS_EPSILON,
        votes_epsilon=ensemble.budget,
        delta=study.privacy.delta,
        protection=ensemble.protection,
    )


def _share(way: Way) -> str:
    return f"{100 * way.low:.0f} to {100 * way.high:.0f} % at ε {way.epsilon:g}"


def known_records(study: Study) -> int | None:
    """Records of one hospital, as far as the study says; of files of hospitals' own only what it states."""
    data = study.data
    if study.parties.records is not None:
        return study.parties.records
    whole = data.glyph.private if data.dataset == "glyph" else _RECORDS.get(data.dataset)
    return None if whole is None else whole // study.parties.num_clients


_LEAST_SCORED = 50  # held-out records times ε: below, noise leaves no figure, and sums miss every record


def fixed_scores(study: Study) -> bool:
    """Whether held-out records are counted where a study does not say: where nothing else tells figures."""
    if not study.data.drawn or study.data.no_class or study.privacy.unit == HOSPITAL_UNIT:
        return False
    records, epsilon = known_records(study), study.privacy.epsilon
    if records is None or epsilon is None:
        return True
    return study.sums.held_out * records * study.parties.num_clients * epsilon >= _LEAST_SCORED


def fixed_rounds(study: Study) -> tuple[int, str]:
    """How many rounds follow the first question of class sums where the study does not say, and why."""
    from pate_fed.privacy.planning.choice import room_for_rounds, rounds_of_whole, sums_noise, useful_rounds

    records, clients = known_records(study), study.parties.num_clients
    whole = study.privacy.unit == HOSPITAL_UNIT
    if whole and study.sums.features != DIRECTIONS:
        return 0, f"a whole hospital's sum is asked for in rounds with the map {DIRECTIONS} alone"
    if study.data.no_class:
        return 0, f"the sums of {study.data.no_class} are asked for once"
    if study.aggregation.sigma2 is not None:
        return 0, "--sigma2 is given, and each round costs as much again"
    table = study.data.table
    settings = FeatureSettings() if table is None else study.sums.of_inputs(table)
    longest = lattice = study.sums.lattice or settings.lattice
    if settings.name == BINS:  # of each column
        longest = math.ceil(lattice * math.sqrt(len(settings.columns) + 1))
    full = f"sums in 32 bits have no room for them at lattice {lattice} (sums.lattice)"
    if records is None:
        return 0, "the study does not say how many records a hospital has (--records)"
    ensemble = study.ensemble()
    classes = _MANY_CLASSES.get(study.data.dataset, ensemble.num_classes)
    shares = ensemble.shares or Shares(num_clients=clients, least_voters=clients, colluders=0)
    try:
        sigma = sums_noise(replace(_sites(study, ensemble, records), classes=classes, shares=shares))
    except InputError:
        return 0, "no noise of a usual size keeps this budget"
    if whole:
        found = rounds_of_whole(clients, records, classes, sigma)
        few = "enough" if found else "few"
        return found, f"{clients} hospitals under noise of {sigma:.3g} records' lengths are {few} for them"
    found = useful_rounds(clients * records, classes, sigma, drawn=study.data.drawn)
    if found and not room_for_rounds(clients * records, longest):
        return 0, full
    pays = "are enough for them" if found else "are too few for them"
    return found, f"{clients * records:,} records under noise of {sigma:.3g} in {classes} classes {pays}"
