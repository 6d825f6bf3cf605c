"""The sections of a study: frozen values whose settings are declared once, with type, range, help and flag.

Nothing here touches data or imports anything heavy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pate_fed.config.backend import AUTO
from pate_fed.config.trust import MOST_PARTIES, fit_noise
from pate_fed.data import DATASETS, GlyphSettings, InputSpec, Schema, is_scheme
from pate_fed.errors import InputError
from pate_fed.learning import STRATEGIES
from pate_fed.privacy.protection import (
    ADJACENCIES,
    HOSPITAL_UNIT,
    LABEL,
    PATIENT_UNIT,
    QUORUM,
    RECORD_UNIT,
    UNITS,
    Protection,
    Shares,
)
from pate_fed.structure import PART_NAME, check, entries, refusal, setting

_MOST_SAID = 500  # characters of one text


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Who asks hospitals, what for, and who may use the student: for people, who read it before they accept.

    Empty: not stated.
    """

    requester: str = setting("", "who asks: a person or an institution", most=_MOST_SAID)
    purpose: str = setting("", "what the student will be used for", most=_MOST_SAID)
    legal_basis: str = setting("", "the consent, law or approval that allows it", most=_MOST_SAID)
    contact: str = setting("", "whom to ask, and who is told of a withdrawal", most=_MOST_SAID)
    retention: str = setting("", "how long labels, student and ledger are kept", most=_MOST_SAID)
    licence: str = setting("the hospitals that took part", "who may use the student", most=_MOST_SAID)

    def __post_init__(self) -> None:
        check(self)
        for entry in entries(About):
            if not getattr(self, entry.name).isprintable():
                raise refusal(
                    self, entry.name, f"one line of at most {_MOST_SAID} printable characters is meant"
                )


EPSILON_ALARM = 10.0
"""Guaranteed ε above which a study promises almost nothing: a chance may change by a factor of 22,000."""

INTERACTIVE = "interactive-gnmax"
CLASS_SUMS = "class-sums"
VOTES = "confident-gnmax"
AGGREGATORS = (AUTO, VOTES, "gnmax", "lnmax", INTERACTIVE, CLASS_SUMS)
FROM_FILES = ("table", "images")
_LABELS = 500
_OWN_PARTITION = re.compile(rf"(?!dirichlet:){PART_NAME.pattern}")
_LEAST_A_LABEL, _MOST_A_LABEL = 1.5, 4.0  # queries

# What goes beyond these is a slip of the hand, or an attack on whoever would allocate it.
MOST_IN_PARTY = 100_000  # teachers
MOST_TEACHERS = 1_000_000_000  # noise in proportion to them stays within its own limits
MOST_INPUTS = 100_000_000
MOST_CLASSES = 100_000
_COUNT: dict[str, Any] = {"low": 1, "high": MOST_INPUTS}
_NOISE: dict[str, Any] = {"unit": "votes", "low": 1e-6, "high": 1e9}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parties:
    """Who takes part. `quorum` is the least share of `num_clients` that must answer a batch.

    With `records_per_teacher` a hospital itself says, before its records are read, how many teachers it has,
    at least one and at most `teachers_per_client`; it is proposed one for so many. The noise and T are set
    for the most that there can be.
    """

    num_clients: int = setting(
        250, "parties in the federation", "--num-clients --num-supernodes", low=1, high=MOST_PARTIES
    )
    records: int | None = setting(
        None,
        "of one party, about, where it is known: what auto and rounds of class sums are chosen by",
        "--records",
        **_COUNT,
    )
    teachers_per_client: int = setting(
        1, "teachers a party trains on disjoint parts", "--teachers-per-client", low=1, high=MOST_IN_PARTY
    )
    records_per_teacher: int | None = setting(
        None,
        "hospitals choose up to teachers_per_client; one for so many records (or patients) is proposed",
        **_COUNT,
    )
    partition: str = setting(
        "iid",
        "how private records are dealt out: iid, dirichlet:ALPHA, or module:attribute of your own",
        "--partition",
        holds=lambda value: is_scheme(value) or bool(_OWN_PARTITION.fullmatch(value)),
        allowed="iid, dirichlet:ALPHA with ALPHA a number above 0 (dirichlet:0.5), or module:attribute",
    )
    quorum: float = setting(QUORUM, "least share of parties that must answer", "--quorum", above=0, high=1)

    def __post_init__(self) -> None:
        check(self)
        if self.num_teachers > MOST_TEACHERS:
            most = MOST_TEACHERS // self.num_clients
            raise refusal(
                self, "teachers_per_client", f"with {self.num_clients:,} parties at most {most:,} is meant"
            )

    @property
    def own_partition(self) -> bool:
        """Whether records are dealt out by code of the user's own."""
        return PART_NAME.fullmatch(self.partition) is not None

    @property
    def num_teachers(self) -> int:
        """Teachers in the whole federation, the most that there can be."""
        return self.num_clients * self.teachers_per_client

    def proposed_teachers(self, units: int) -> int:
        """Teachers that are proposed to a hospital with so many records, or patients.

        A proposal alone: were it followed unasked, one patient more could change every teacher.
        """
        if self.records_per_teacher is None:
            return self.teachers_per_client
        return max(1, min(self.teachers_per_client, units // self.records_per_teacher))


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Where the inputs come from: a known data set, files of hospitals' own ("table" or "images"), or code.

    Code is module:attribute, a data set of the user's own (`pate_fed.data.own`).
    For files `pool` is the public inputs' file, of which `num_queries` may be asked about, or none
    where rows drawn from a table's declared ranges stand for them. `table` is a table's schema, `classes` the
    images' classes, `window` the values of DICOM images that are shown black and white.
    `private` are the parties' files, for a simulation alone.
    """

    dataset: str = setting(
        "glyph", "what is learnt", "--dataset", choices=DATASETS, also=FROM_FILES, part=True
    )
    data_dir: str | None = setting(None, "folder of the data files (else PATE_FED_DATA)", "--data-dir")
    download: bool = setting(False, "let torchvision fetch the data set", "--download")
    pool: str | None = setting(None, "file of the public inputs")
    private: tuple[str, ...] = setting((), "the parties' own files, for a simulation alone")
    classes: tuple[str, ...] = setting((), "the classes' names, for images")
    window: tuple[float, float] | None = setting(
        None, low=-1e9, high=1e9, allowed="[black, white] in DICOM images' own units, the first the smaller"
    )
    num_queries: int | None = setting(None, "inputs of the pool that may be asked about", **_COUNT)
    table: Schema | None = None
    glyph: GlyphSettings = field(default_factory=GlyphSettings)

    def __post_init__(self) -> None:
        check(self)
        lacking = {}
        if self.from_files and self.pool is None and not self.drawn:
            lacking["pool"] = "the file of the public inputs"
        if self.dataset == "table" and self.table is None:
            lacking["table"] = "label, classes and columns (`pate-fed study new --csv FILE` writes them)"
        elif self.dataset != "table" and self.table and self.table.patient:  # read by nothing, told with ε
            raise InputError(f'data.table.patient = {self.table.patient!r}: goes with data.dataset = "table"')
        if self.dataset == "images" and len(self.classes) < 2:
            lacking["classes"] = "the classes' names, two or more"
        if self.window is not None and (self.dataset != "images" or self.window[0] >= self.window[1]):
            raise refusal(
                self, "window", 'with dataset = "images" [black, white], the first the smaller, is meant'
            )
        if lacking:  # all at once: each alone would be one more attempt
            (name, what), *others = lacking.items()
            rest = "".join(f", and as data.{key} {other}" for key, other in others)
            raise refusal(self, name, f"{what}{rest}, is meant" if rest else f"{what} is meant")

    @property
    def num_classes(self) -> int | None:
        """Classes, as far as the study says; None where the data set does."""
        if self.from_files:
            return len(self.kind().classes)
        return self.glyph.classes if self.dataset == "glyph" else None

    @property
    def target_range(self) -> tuple[float, float] | None:
        """What a table's label can be where it is a number; None where there are classes."""
        return None if self.table is None or self.dataset != "table" else self.table.target_range

    @property
    def several(self) -> int:
        """How many labels each record has, where these are several; else 0."""
        return 0 if self.table is None or self.dataset != "table" else len(self.table.labels)

    @property
    def no_class(self) -> str:
        """What a label is where it is no class, in words; empty where it is one."""
        return "" if self.table is None or self.dataset != "table" else self.table.no_class

    @property
    def from_files(self) -> bool:
        """Whether the study names files of its own rather than a known data set."""
        return self.dataset in FROM_FILES

    @property
    def drawn(self) -> bool:
        """Whether there are no public inputs: rows drawn from declared ranges stand for them."""
        return self.dataset == "table" and self.table is not None and bool(self.table.ranges)

    @property
    def names_patients(self) -> bool | None:
        """Whether the data say which records are one patient's; None where only the records can tell."""
        if self.table is not None:
            return self.table.patient is not None
        return None if self.own or self.from_files else False

    @property
    def own(self) -> bool:
        """Whether the data set is code of the user's own."""
        return PART_NAME.fullmatch(self.dataset) is not None

    def kind(self) -> InputSpec:
        """What the inputs in the study's own files are."""
        classes = self.table.class_names if self.table is not None else self.classes
        return InputSpec(classes=classes, schema=self.table, window=self.window)


def _by_name(value: Any) -> Any:
    """Parameters as pairs, by name, where they are a table too."""
    return sorted(value.items()) if isinstance(value, Mapping) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation:
    """The mechanism; σ and T in votes. None: see `pate_fed.config.defaults`.

    "auto" is fixed before any data are read (`pate_fed.config.defaults`).

    With "class-sums" nothing is voted on: hospitals sum features of their records by class, once, and
    `sigma2` is the noise of these sums in records.

    module:attribute is a mechanism of the user's own (`pate_fed.privacy.mechanisms.own`), made of
    `parameters`; it has none of the values below. `kind` is a kind of question of the user's own
    (`pate_fed.kinds.own`), made of them too, in place of votes and sums.
    """

    aggregator: str = setting(
        AUTO,
        "the noisy vote, or sums of features by class that few hospitals give once; auto: what suits",
        "--aggregator",
        choices=AGGREGATORS,
        part=True,
    )
    parameters: tuple[tuple[str, bool | int | float | str], ...] = setting(
        (),
        "of a mechanism or kind of your own, by name",
        read=_by_name,
        allowed="a table of numbers, truth values and texts",
    )
    kind: str | None = setting(
        None,
        "a kind of question of your own in place of votes and sums, as module:attribute",
        "--kind",
        pattern=PART_NAME,
        allowed="module:attribute",
    )
    threshold: float | None = setting(
        None,
        "votes the winner must reach, T (default 0.8 per teacher, fewer teachers: planned)",
        "--threshold",
        unit="votes",
        low=-1e9,
        high=1e9,
    )
    sigma1: float | None = setting(
        None,
        "noise of the threshold check, votes (default 0.6 per teacher, or planned)",
        "--sigma1",
        **_NOISE,
    )
    sigma2: float | None = setting(
        None,
        "noise of the vote, votes; lnmax: its scale; class-sums: in records (default 0.16 per teacher, "
        "or planned)",
        "--sigma2",
        **_NOISE,
    )

    def __post_init__(self) -> None:
        check(self)
        if self.parameters and not (self.own or self.aggregator == AUTO):
            raise refusal(self, "parameters", f"none: {self.aggregator} has threshold, sigma1 and sigma2;")
        if self.kind is not None and self.aggregator != AUTO:
            raise refusal(self, "kind", "either a kind of your own or an aggregator")
        for name in ("threshold", "sigma1", "sigma2"):
            if (self.own or self.kind) and getattr(self, name) is not None:
                raise refusal(self, name, "nothing: a mechanism of your own has [aggregation.parameters];")

    @property
    def own(self) -> bool:
        """Whether it is a mechanism of the user's own."""
        return PART_NAME.fullmatch(self.aggregator) is not None

    @property
    def sums(self) -> bool:
        """Whether features are summed by class, once, and nothing is voted on."""
        return self.aggregator == CLASS_SUMS

    @property
    def votes(self) -> bool:
        """Whether teachers vote."""
        return not self.sums and self.kind is None

    @property
    def open(self) -> bool:
        """Whether the way is still to be chosen."""
        return self.aggregator == AUTO and self.kind is None

    @property
    def has_threshold(self) -> bool:
        """Whether a noisy check decides first which queries are answered; else all are."""
        return self.aggregator in ("confident-gnmax", INTERACTIVE)

    def queries_a_label(self, num_teachers: int, *, noise_at_hospitals: bool = False) -> float:
        """Queries that are allowed for each label, unless a study says how many there may be.

        As many as the check answers one of where winners hold two thirds of the votes on average, evenly from
        a third to all: E Φ((n_max - T)/σ1). That is 2.5 with the default's T and σ1; of the votes published
        with P18 and of our data sets' 1.8 to 2.3 are asked. At most 4. Where the check looks at a student too
        that is not known, and noise at the hospitals makes a query cost as much as a label.
        """
        if noise_at_hospitals:
            return 2.0
        if self.aggregator != "confident-gnmax":
            return _MOST_A_LABEL
        threshold, sigma1, _ = self.fixed()
        low, high = ((part * num_teachers - threshold) / sigma1 for part in (1 / 3, 1))
        share = (_answered_up_to(high) - _answered_up_to(low)) / (high - low)
        asked = math.ceil(10 / max(share, 1e-9) - 1e-9) / 10
        return min(_MOST_A_LABEL, max(_LEAST_A_LABEL, asked))

    def fixed(self) -> tuple[float, float, float]:
        """T, σ1 and σ2, in votes; an InputError where one is open still (`resolve`)."""
        if self.threshold is None or self.sigma1 is None or self.sigma2 is None:
            raise InputError("aggregation: threshold, sigma1 and sigma2 are open still: votes are meant")
        return self.threshold, self.sigma1, self.sigma2

    def resolve(self, num_teachers: int, shares: Shares | None = None) -> Aggregation:
        """The same with every open value set in proportion to the teachers; "auto" is a vote here.

        Raises:
            InputError: noise of the vote that cannot be added in so many hospitals' `shares`.
        """
        if self.sums or self.own:
            return self  # its one σ follows from the budget, or its noise is its own affair
        if self.aggregator == AUTO:
            return replace(self, aggregator=VOTES).resolve(num_teachers, shares)
        n, sigma2 = num_teachers, self.sigma2
        usual = round(0.16 * n, 6)
        if shares is not None:
            sigma2 = fit_noise(shares, sigma2, usual)
        return replace(
            self,
            threshold=round(0.8 * n, 6) if self.threshold is None else self.threshold,
            sigma1=round(0.6 * n, 6) if self.sigma1 is None else self.sigma1,
            sigma2=usual if sigma2 is None else sigma2,
        )


def _answered_up_to(z: float) -> float:
    """The integral of Φ up to z."""
    return z * (1 + math.erf(z / math.sqrt(2))) / 2 + math.exp(-z * z / 2) / math.sqrt(2 * math.pi)


@dataclass(frozen=True, slots=True, kw_only=True)
class Queries:
    """How much is asked. `evaluate` lets simulated parties also vote where nothing is released.

    With `evaluate` the teachers' and the ensemble's accuracy are measured on the test inputs as well, not
    only on those that were asked; hospitals outside a simulation refuse it.

    `strategy` chooses what is asked in the second of `rounds` and later, from what a student learnt of the
    labels so far.
    """

    labels: int | None = setting(
        None,
        "stop after so many answered queries (default 500, fewer teachers: planned)",
        "--labels",
        **_COUNT,
    )
    max_queries: int | None = setting(
        None,
        "ask at most so many queries (default: by the threshold, 2.5 a label with its default)",
        "--max-queries",
        **_COUNT,
    )
    batch_size: int = setting(2000, "questions in a message", **_COUNT)
    evaluate: bool = setting(True, "measure teachers and ensemble on test inputs, in a simulation")
    strategy: str = setting(
        "random",
        "which public inputs are asked first, random meaning a known data set's own order",
        "--query-strategy",
        choices=STRATEGIES,
        part=True,
    )
    rounds: int | None = setting(
        None,
        "parts of the questions; after each a student learns and shapes the next (default 2 where one does)",
        "--rounds",
        low=1,
        high=100,
    )

    @property
    def own_strategy(self) -> bool:
        """Whether code of the user's own says what is asked next."""
        return PART_NAME.fullmatch(self.strategy) is not None

    def __post_init__(self) -> None:
        check(self)
        if self.labels is not None and self.max_queries is not None and self.labels > self.max_queries:
            raise refusal(self, "labels", f"at most --max-queries {self.max_queries}, one a query, is meant")

    def resolve(self, *, interactive: bool) -> Queries:
        """The same with labels and the number of rounds set: 1 where no student shapes questions, else 2.

        Raises:
            InputError: a student has a part in them and there is one round, or the other way round.
        """
        learns = interactive or self.strategy != "random"
        rounds = (2 if learns else 1) if self.rounds is None else self.rounds
        if learns and rounds < 2:
            what = f"--aggregator {INTERACTIVE}" if interactive else f"--query-strategy {self.strategy}"
            raise refusal(self, "rounds", f"at least 2 with {what}, the first to teach a student")
        if rounds > 1 and not learns:
            allowed = (
                f"1 unless a student shapes later ones: give --query-strategy or --aggregator {INTERACTIVE}"
            )
            raise refusal(self, "rounds", allowed)
        labels = min(_LABELS, self.max_queries or _LABELS) if self.labels is None else self.labels
        return replace(self, labels=labels, rounds=rounds)

    def cap(self, pool: int, *, a_label: float) -> int:
        """Most queries that are asked of a pool of that size: ε is fixed by it, so it is never "all".

        `a_label` is how many are allowed for each label (`Aggregation.queries_a_label`).
        """
        if self.labels is None:
            raise InputError("queries: labels are open still: how many may be answered is meant")
        return min(pool, self.max_queries or math.ceil(self.labels * a_label))


@dataclass(frozen=True, slots=True, kw_only=True)
class Privacy:
    """The budget and what it protects. No budget: ε is only reported.

    With `sanitise` a data-dependent ε is released through smooth sensitivity; its parameters are fixed from
    the study's terms, before the first vote.
    """

    epsilon: float | None = setting(
        None,
        "budget: never passed (default: none, ε is reported; class-sums: 1)",
        "--epsilon",
        above=0,
        high=10**9,
    )
    delta: float = setting(1e-5, "the δ that every ε is stated for", "--delta", low=0, below=1)
    unit: str = setting(
        AUTO,
        "whose presence is hidden: one record, all of a patient's or all of a hospital's; of private "
        "labels one label; auto: patient where the data name patients, else record",
        choices=(AUTO, *UNITS, LABEL.unit),
    )
    hospitals_per_patient: int = setting(
        1,
        "with unit = patient: hospitals that one patient was at, at most; checked where one data set is "
        "dealt out, assumed where each hospital has a file of its own",
        low=1,
        high=MOST_PARTIES,
    )
    adjacency: str = setting(
        "replace-one", "what neighbours differ in: a unit is another, or is not there", choices=ADJACENCIES
    )
    sanitise: bool = setting(False, "release a data-dependent ε that may be published", "--sanitise")
    allow_weak: bool = setting(
        False,
        "run also where the guaranteed ε is above 10, which promises almost nothing",
        "--allow-weak-privacy",
    )

    def __post_init__(self) -> None:
        check(self)
        if self.hospitals_per_patient > 1 and self.unit not in (AUTO, PATIENT_UNIT):
            raise refusal(self, "hospitals_per_patient", f'1, or unit = "{PATIENT_UNIT}", is meant')

    @property
    def by_patient(self) -> bool:
        """Whether records are dealt, and clipped, by patient where these are named; else one by one."""
        return self.unit != RECORD_UNIT

    @property
    def planned_unit(self) -> str:
        """The unit that is planned for while only own data could tell: a patient there costs as a record."""
        if self.unit != AUTO:
            return self.unit
        return PATIENT_UNIT if self.hospitals_per_patient > 1 else RECORD_UNIT

    @property
    def hospitals_moved(self) -> int:
        """Hospitals that one unit can sway."""
        return self.hospitals_per_patient if self.unit in (AUTO, PATIENT_UNIT) else 1

    def votes_moved(self, teachers_per_client: int) -> int:
        """Teachers that one unit can sway: a hospital all its own, a record or patient those it teaches.

        That is one at each hospital (`pate_fed.data.split_among_teachers`). One that is replaced by another
        may take the place of one that taught another teacher: then two.
        """
        if self.unit == HOSPITAL_UNIT:
            return teachers_per_client
        parts = 2 if self.adjacency == ADJACENCIES[0] else 1
        return self.hospitals_moved * min(parts, teachers_per_client)

    def protection(self, teachers_per_client: int) -> Protection:
        """The neighbouring relation of votes: the unit, the adjacency, and how many votes move."""
        return Protection(
            unit=self.planned_unit,
            adjacency=self.adjacency,
            votes_moved=self.votes_moved(teachers_per_client),
            hospitals=self.hospitals_moved,
        )
