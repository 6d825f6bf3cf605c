"""What a run found, as frozen values: all that `metrics.json`, the report and the summary are made of.

Every value but `RunResult` is also an event of `log.jsonl` (`pate_fed.report.log`), so that a report can be
written again from the run directory alone. No vote vector and no total is in any of them. Where a figure was
computed from private votes its field or class says so: such figures are for the analyst and not published.
Accuracies are shares from 0 to 1; None is unknown or inapplicable.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pate_fed.config.backend import PROCESSES
from pate_fed.config.sections import Queries
from pate_fed.errors import InputError
from pate_fed.kinds.labels import LabelWords
from pate_fed.kinds.terms import Terms
from pate_fed.kinds.words import Words
from pate_fed.privacy.protection import Assumptions
from pate_fed.report.accuracy import Accuracy
from pate_fed.structure.parts import PartIdentity

STATUSES = ("success", "failed", "aborted")
_MOST_BINS = 50
_MOST_SAMPLES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """What was run in either kind of study, known before the first release.

    `dataset` names the data; `inputs` is what records and pool hold, in the plural, and `test_size` how many
    of the pool are never asked about and test the student. `student_as` says more of it than its name, where
    there is more. `guaranteed` is the ε that budget and caps fix
    before the first query. `noise` is the source in words, `noise_private` whether it protects anyone.
    `coordinator` is "plain", "secure-sum" or "hospital-noise" where teachers vote, else what is seen of the
    labels or the class sums; `coordinator_sees` says it in words; so does `protects` for unit and adjacency.
    """

    dataset: str
    student: str = ""
    student_as: str = ""
    backend: str = ""
    inputs: str = "images"
    test_size: int | None = None
    guaranteed: float | None = None
    protects: str
    noise: str
    noise_private: bool
    coordinator: str = "plain"
    coordinator_sees: str = "every hospital's votes"
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def simulated(self) -> bool:
        """Whether one machine played every part."""
        return self.backend in ("ray", "inline")


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRecord(_Record):
    """What was run: the terms, and the few facts that are no terms.

    `partition` says how records were dealt out; None where hospitals bring their own. `student_part` is the
    code of a student of the user's own.
    """

    terms: Terms
    queries: Queries
    partition: str | None = "iid"
    student_part: PartIdentity | None = None

    @property
    def words(self) -> Words:
        """What is said of the study, by its kind."""
        return self.terms.words

    @property
    def assumptions(self) -> Assumptions:
        """Code of others on whose word every ε rests."""
        return self.terms.assumptions(together=self.backend != PROCESSES)

    @property
    def threshold(self) -> float | None:
        """Votes that a winner must reach; None where every query is answered."""
        return self.terms.asks.threshold

    def class_name(self, number: int) -> str:
        """The class's name, or its number where it has none."""
        names = self.terms.classes
        return names[number] if number < len(names) else str(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelStudyRecord(_Record):
    """What was run in a study of private labels: its own terms.

    `mechanism` is the method's name, `epsilon` its budget; `max_queries` and `labels` are the ledger's caps.
    """

    assumptions: ClassVar[Assumptions] = Assumptions()  # mechanisms and student are ours
    queries: ClassVar[Queries] = Queries()  # nothing is asked in rounds
    drawn: ClassVar[bool] = False
    partition: ClassVar[None] = None  # hospitals bring their own labels
    student_part: ClassVar[None] = None
    threshold: ClassVar[None] = None
    study: str
    mechanism: str
    num_clients: int
    least_clients: int
    teachers_per_client: int
    num_classes: int
    pool_size: int
    pool_digest: str
    max_queries: int
    labels: int
    epsilon: float
    delta: float
    unit: str
    adjacency: str
    seed: int | None = None

    @property
    def terms(self) -> LabelStudyRecord:
        """These: such a study has no others."""
        return self

    @property
    def privacy(self) -> LabelStudyRecord:
        """What is protected, by the names that terms of votes have for it."""
        return self

    @property
    def hospitals_moved(self) -> int:
        """A label is at one hospital."""
        return 1

    @property
    def words(self) -> Words:
        """What is said of private labels."""
        return LabelWords(self, self.mechanism, seen=self.coordinator)

    @property
    def num_teachers(self) -> int:
        """Teachers in all; 0 where a method has none."""
        return self.num_clients * self.teachers_per_client

    def class_name(self, number: int) -> str:
        """The class's number."""
        return str(number)


def reservations(study: StudyRecord | LabelStudyRecord) -> tuple[str, ...]:
    """What belongs beside every ε: whose word it rests on, and that seeded noise protects nobody."""
    claimed = (study.assumptions.short,) if study.assumptions else ()
    return claimed if study.noise_private else (*claimed, "not private: seeded noise")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedBatch:
    """One batch that went out: how many queries were looked at and answered, and ε after it.

    `epsilon` is the data-independent ε of everything released so far, rounded up.
    """

    batch: int
    asked: int
    answered: int
    epsilon: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """Data-independent ε along the run: after `asked` queries and `answered` labels; all of one length."""

    asked: tuple[int, ...]
    answered: tuple[int, ...]
    epsilon: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A party whose reply did not count, and why, in the coordinator's own words."""

    party: str
    phase: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One pass of the student: losses and shares by name. `test_accuracy` is on public inputs never asked."""

    epoch: int
    test_accuracy: float | None = None
    values: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, record: object) -> Epoch:
        """From a student's record, any dataclass with `epoch`, else an InputError; numbers are `values`."""
        if not is_dataclass(record) or not isinstance(getattr(record, "epoch", None), int):
            raise InputError(
                f"{type(record).__name__}: an epoch's record is a dataclass with a field `epoch`"
            )
        numbers = dict(_numbers({entry.name: getattr(record, entry.name) for entry in fields(record)}))
        epoch, accuracy = int(numbers.pop("epoch")), numbers.pop("test_accuracy", None)
        return cls(epoch=epoch, test_accuracy=accuracy, values=numbers)


def _numbers(values: Mapping[str, Any]) -> Any:
    """Finite numbers by name; a tuple of them (one per network) by name and place."""
    for name, value in values.items():
        if isinstance(value, (tuple, list)):
            yield from _numbers({f"{name} {place}": inner for place, inner in enumerate(value, 1)})
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            yield name, float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Counts over what was asked, in whole numbers.

    `confusion[truth][label]` counts answered queries: from released labels and the public inputs' true
    labels, so it is free post-processing. `top_edges` (bins + 1, votes), `top_answered` and `top_refused`
    (bins) are the histogram of the highest vote: computed from private totals, for the analyst only.
    """

    confusion: tuple[tuple[int, ...], ...] = ()
    top_edges: tuple[int, ...] = ()
    top_answered: tuple[int, ...] = ()
    top_refused: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Samples:
    """Images that the student's generator draws: uint8 (count, height, width, channels), at most 64."""

    images: NDArray[np.uint8]

    def __post_init__(self) -> None:
        images = np.asarray(self.images)
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] not in (1, 3):
            raise InputError(
                f"images {images.dtype}{images.shape}: uint8 (count, height, width, 1 or 3) is meant"
            )
        object.__setattr__(self, "images", images[:_MOST_SAMPLES])


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyFigures:
    """Every ε of the run, at the study's δ, rounded up; None is without a bound or not computed.

    `student` holds against anyone who gets the student or its labels, whatever the data are: it was fixed
    before the first query, by the budget and the caps. Where it is None `student_reason` says why. `spent` is
    the reading of what was released in the end. `data_dependent_do_not_publish` is computed from private
    votes. `sanitised` may be published; `sanitised_sd`, the standard deviation of its noise, depends on the
    votes and may not.
    """

    student: float | None = None
    student_reason: str | None = None
    spent: float | None = None
    data_dependent_do_not_publish: float | None = None
    sanitised: float | None = None
    sanitised_sd: float | None = None
    coordinator: float | None = None

    @property
    def unbounded_because(self) -> str:
        """Why no ε is known against the public."""
        return self.student_reason or "no bound is known"

    @property
    def coordinator_note(self) -> str:
        """Why ε against the coordinator is not 0 where nothing was released; else empty."""
        if self.student != 0 or not self.coordinator:
            return ""
        return "its ε stands though nothing was released: it sees an answer before the ledger has its row"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Time by phase, in seconds; `aggregate` is totals, noise and ledger."""

    teach: float | None = None
    vote: float | None = None
    aggregate: float | None = None
    student: float | None = None
    total: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How the run ended. `reason` is a sentence where it did not succeed.

    `cautions` are sentences on what released figures show; they may be published. `ledger_head` is the hash
    of the ledger's last row, `sealed_by` the public key (Ed25519, hex) of the run's seal.
    """

    status: str
    reason: str | None = None
    accuracy: Accuracy = field(default_factory=Accuracy)
    privacy: PrivacyFigures = field(default_factory=PrivacyFigures)
    seconds: Seconds = field(default_factory=Seconds)
    peak_memory_mb: int | None = None
    cautions: tuple[str, ...] = ()
    ledger_head: str | None = None
    sealed_by: str | None = None

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise InputError(f"status={self.status!r}: must be one of {', '.join(STATUSES)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """A whole run. `started` and `ended` are UTC in ISO 8601; `torn_lines` counts cut lines of the log.

    `engine_seconds` is what Flower, Ray and messages took; None where it is not known. It is not `whole` at a
    hospital, which knows its terms and student.
    """

    study: StudyRecord | LabelStudyRecord
    outcome: Outcome
    releases: tuple[ReleasedBatch, ...] = ()
    epochs: tuple[Epoch, ...] = ()
    evaluation: Evaluation = field(default_factory=Evaluation)
    samples: Samples | None = None
    left_out: tuple[LeftOut, ...] = ()
    engine_seconds: float | None = None
    spending: Spending | None = None
    started: str = ""
    ended: str = ""
    torn_lines: int = 0
    whole: bool = True

    @property
    def queries_asked(self) -> int:
        """Queries that were looked at."""
        return sum(release.asked for release in self.releases)

    @property
    def queries_answered(self) -> int:
        """Queries that got a label."""
        return sum(release.answered for release in self.releases)

    @property
    def test_curve(self) -> list[tuple[int, float]]:
        """Epoch and accuracy on the test part, of those epochs that were tested."""
        return [(each.epoch, each.test_accuracy) for each in self.epochs if each.test_accuracy is not None]

    @property
    def spent_so_far(self) -> list[tuple[int, int, float]]:
        """Queries asked, labels and data-independent ε: by batches if the log has them, else by release."""
        if (spent := self.spending) is not None:
            return list(zip(spent.asked, spent.answered, spent.epsilon, strict=True))
        asked = accumulate(release.asked for release in self.releases)
        answered = accumulate(release.answered for release in self.releases)
        rows = zip(self.releases, asked, answered, strict=True)
        return [(queries, labels, row.epsilon) for row, queries, labels in rows if row.epsilon is not None]


def count_confusion(
    truth: NDArray[np.int64], label: NDArray[np.int64], *, num_classes: int
) -> tuple[tuple[int, ...], ...]:
    """Counts by true class (row) and released label (column); -1 is not answered and not counted.

    Shapes: `truth` and `label` int64 (queries,).

    Raises:
        InputError: different lengths, or a class out of range.
    """
    truth, label = np.asarray(truth), np.asarray(label)
    if truth.shape != label.shape:
        raise InputError(f"{truth.shape} true labels for {label.shape} released ones: one each is meant")
    answered = label >= 0
    truth, label = truth[answered], label[answered]
    if truth.size and not (0 <= truth.min() and max(truth.max(), label.max()) < num_classes):
        raise InputError(f"labels must be from 0 to {num_classes - 1}")
    counts = np.bincount(truth * num_classes + label, minlength=num_classes**2)
    return tuple(map(tuple, counts.reshape(num_classes, num_classes).tolist()))


def count_top_votes(
    totals: NDArray[np.int64], answered: NDArray[np.bool_], *, num_teachers: int
) -> dict[str, tuple[int, ...]]:
    """The histogram of the highest vote, as `Evaluation`'s three fields; for the analyst only.

    Shapes: `totals` int64 (asked, classes), `answered` bool (asked,). Bins are whole votes wide, at most 50.

    Raises:
        InputError: shapes that do not go together.
    """
    totals, answered = np.asarray(totals), np.asarray(answered, dtype=bool)
    if totals.ndim != 2 or answered.shape != totals.shape[:1]:
        raise InputError(f"totals {totals.shape} with answered {answered.shape}: one bit a query is meant")
    width = math.ceil((num_teachers + 1) / _MOST_BINS)
    bins = math.ceil((num_teachers + 1) / width)
    place = np.clip(totals.max(axis=1, initial=0) // width, 0, bins - 1)

    def count(which: NDArray[np.bool_]) -> tuple[int, ...]:
        return tuple(int(number) for number in np.bincount(place[which], minlength=bins))

    edges = tuple(width * bin_ for bin_ in range(bins + 1))
    return {"top_edges": edges, "top_answered": count(answered), "top_refused": count(~answered)}
