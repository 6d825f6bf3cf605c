"""The sections of a study and their options: frozen values that check themselves.

Nothing here touches data or imports anything heavy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

from pate_fed.config.trust import NOISE_PLACES
from pate_fed.data import DATASETS, GlyphSettings, InputSpec, Schema
from pate_fed.errors import InputError
from pate_fed.learning import STRATEGIES, STUDENTS, TEACHERS

__all__ = [
    "FLAGS",
    "INTERACTIVE",
    "OPTIONS",
    "PROCESSES",
    "Aggregation",
    "Data",
    "Engine",
    "Option",
    "Parties",
    "Privacy",
    "Queries",
    "check",
    "refuse",
]


@dataclass(frozen=True, slots=True)
class Option:
    """One command-line option and the key of `study.toml` that it sets."""

    flag: str
    key: str
    help: str
    choices: tuple[str, ...] = ()
    alias: str | None = None


INTERACTIVE = "interactive-gnmax"
AGGREGATORS = ("confident-gnmax", "gnmax", "lnmax", INTERACTIVE)
BACKENDS = ("ray", "inline")
FROM_FILES = ("table", "images")
PROCESSES = "grpc"  # separate processes: set by python -m pate_fed.server, not by a user

OPTIONS: tuple[Option, ...] = (
    Option("--num-clients", "parties.num_clients", "parties in the federation", alias="--num-supernodes"),
    Option(
        "--teachers-per-client", "parties.teachers_per_client", "teachers a party trains on disjoint parts"
    ),
    Option("--partition", "parties.partition", "how private records are dealt out: iid or dirichlet:ALPHA"),
    Option("--quorum", "parties.quorum", "least share of parties that must answer"),
    Option("--dataset", "data.dataset", "what is learnt", choices=DATASETS),
    Option("--data-dir", "data.data_dir", "folder of the data files (else PATE_FED_DATA)"),
    Option("--download", "data.download", "let torchvision fetch the data set"),
    Option("--teacher", "teacher.name", "the teachers' model", choices=TEACHERS),
    Option("--aggregator", "aggregation.aggregator", "the noisy vote", choices=AGGREGATORS),
    Option(
        "--threshold", "aggregation.threshold", "votes the winner must reach, T (default 0.8 per teacher)"
    ),
    Option("--sigma1", "aggregation.sigma1", "noise of the threshold check, votes (default 0.6 per teacher)"),
    Option(
        "--sigma2",
        "aggregation.sigma2",
        "noise of the vote, votes; lnmax: its scale (default 0.16 per teacher)",
    ),
    Option("--labels", "queries.labels", "stop after so many answered queries"),
    Option(
        "--max-queries",
        "queries.max_queries",
        "ask at most so many queries (default: 4 a label; 2 with noise at hospitals)",
    ),
    Option(
        "--query-strategy",
        "queries.strategy",
        "which public inputs are asked first, random meaning a known data set's own order",
        choices=STRATEGIES,
    ),
    Option(
        "--rounds",
        "queries.rounds",
        "parts of the questions; after each a student learns and shapes the next (default 2 where one does)",
    ),
    Option("--epsilon", "privacy.epsilon", "budget: never passed (default: none, ε is reported)"),
    Option("--delta", "privacy.delta", "the δ that every ε is stated for"),
    Option("--sanitise", "privacy.sanitise", "release a data-dependent ε that may be published"),
    Option("--secure-sum", "secrecy.secure_sum", "show the coordinator totals only, nobody's own votes"),
    Option("--noise-at", "secrecy.noise_at", "who adds the noise (with --secure-sum)", choices=NOISE_PLACES),
    Option("--student", "student.name", "how the student learns", choices=STUDENTS),
    Option(
        "--student-epochs",
        "student.epochs",
        "passes over the public data, in each stage (default: 10 in all)",
    ),
    Option("--backend", "engine.backend", "Flower's engine on Ray, or all in this process", choices=BACKENDS),
    Option("--device", "engine.device", "auto, cpu or cuda"),
    Option(
        "--gpus-per-client",
        "engine.gpus_per_client",
        "share of a GPU a party takes (default: from free memory)",
    ),
    Option("--seed", "study.seed", "repeat a run exactly; the noise is then NOT private"),
)
FLAGS = {option.key: option.flag for option in OPTIONS}


def refuse(key: str, value: object, allowed: str) -> InputError:
    """An error that names option, key, value and what would be right."""
    flag = FLAGS.get(key)
    where = f"{flag} ({key} in study.toml)" if flag else f"{key} in study.toml"
    return InputError(f"{where} is {value!r}: {allowed}")


def check(holds: bool, key: str, value: object, allowed: str) -> None:
    """Raise the error of `refuse` unless it holds."""
    if not holds:
        raise refuse(key, value, allowed)


def _positive(value: float | None) -> bool:
    return value is None or (math.isfinite(value) and value > 0)


def _choice(key: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        near = get_close_matches(value, choices, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise refuse(key, value, f"one of {', '.join(choices)}{hint}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parties:
    """Who takes part. `quorum` is the least share of `num_clients` that must answer a batch."""

    num_clients: int = 250
    teachers_per_client: int = 1
    partition: str = "iid"
    quorum: float = 0.8

    def __post_init__(self) -> None:
        check(self.num_clients >= 1, "parties.num_clients", self.num_clients, "a whole number of at least 1")
        k = self.teachers_per_client
        check(k >= 1, "parties.teachers_per_client", k, "a whole number of at least 1")
        check(0 < self.quorum <= 1, "parties.quorum", self.quorum, "a share above 0 and at most 1")
        scheme, _, alpha = self.partition.partition(":")
        allowed = "iid, or dirichlet:ALPHA with ALPHA a number above 0 (dirichlet:0.5)"
        check(scheme in ("iid", "dirichlet"), "parties.partition", self.partition, allowed)
        if scheme == "dirichlet":
            try:
                ok = math.isfinite(float(alpha)) and float(alpha) > 0
            except ValueError:
                ok = False
            check(ok, "parties.partition", self.partition, allowed)
        else:
            check(alpha == "" and ":" not in self.partition, "parties.partition", self.partition, allowed)

    @property
    def num_teachers(self) -> int:
        """Teachers in the whole federation."""
        return self.num_clients * self.teachers_per_client


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Where the inputs come from: a known data set, or files of hospitals' own ("table" or "images").

    For files `pool` is the public inputs' file, of which `num_queries` may be asked about; `table` a table's
    schema, `classes` the images' classes. `private` are the parties' files, for a simulation alone.
    """

    dataset: str = "glyph"
    data_dir: str | None = None
    download: bool = False
    pool: str | None = None
    private: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    num_queries: int | None = None
    table: Schema | None = None
    glyph: GlyphSettings = field(default_factory=GlyphSettings)

    def __post_init__(self) -> None:
        _choice("data.dataset", self.dataset, (*DATASETS, *FROM_FILES))
        if self.from_files:
            check(self.pool is not None, "data.pool", self.pool, "the file of the public inputs")
            check(self.dataset != "table" or self.table is not None, "data.table", self.table, "a schema")
            enough = self.dataset == "table" or len(self.classes) >= 2
            check(enough, "data.classes", list(self.classes), "the classes' names, two or more")
        most = self.num_queries
        check(most is None or most >= 1, "data.num_queries", most, "a whole number of at least 1")

    @property
    def from_files(self) -> bool:
        """Whether the study names files of its own rather than a known data set."""
        return self.dataset in FROM_FILES

    def kind(self) -> InputSpec:
        """What the inputs in the study's own files are."""
        classes = self.table.classes if self.table is not None else self.classes
        return InputSpec(classes=classes, schema=self.table)


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation:
    """The mechanism; σ and T in votes. None: in proportion to the number of teachers."""

    aggregator: str = "confident-gnmax"
    threshold: float | None = None
    sigma1: float | None = None
    sigma2: float | None = None

    def __post_init__(self) -> None:
        _choice("aggregation.aggregator", self.aggregator, AGGREGATORS)
        for name in ("sigma1", "sigma2"):
            value = getattr(self, name)
            ok = value is None or 1e-6 <= value <= 1e9
            check(ok, f"aggregation.{name}", value, "a number of votes from 1e-6 to 1e9")
        ok = self.threshold is None or abs(self.threshold) <= 1e9
        check(ok, "aggregation.threshold", self.threshold, "a number of votes, 1e9 at most")

    def resolve(self, num_teachers: int) -> Aggregation:
        """The same with every open value set in proportion to the number of teachers."""
        n = num_teachers
        return replace(
            self,
            threshold=round(0.8 * n, 6) if self.threshold is None else self.threshold,
            sigma1=round(0.6 * n, 6) if self.sigma1 is None else self.sigma1,
            sigma2=round(0.16 * n, 6) if self.sigma2 is None else self.sigma2,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Queries:
    """How much is asked. `evaluate` lets simulated parties also vote where nothing is released.

    With `evaluate` the teachers' and the ensemble's accuracy are measured on the test inputs as well, not
    only on those that were asked; hospitals outside a simulation refuse it.

    `strategy` chooses what is asked in the second of `rounds` and later, from what a student learnt of the
    labels so far.
    """

    labels: int = 500
    max_queries: int | None = None
    batch_size: int = 2000
    evaluate: bool = True
    strategy: str = "random"
    rounds: int | None = None

    def __post_init__(self) -> None:
        _choice("queries.strategy", self.strategy, STRATEGIES)
        ok = self.rounds is None or 1 <= self.rounds <= 100
        check(ok, "queries.rounds", self.rounds, "a whole number from 1 to 100")
        check(self.labels >= 1, "queries.labels", self.labels, "a whole number of at least 1")
        check(self.batch_size >= 1, "queries.batch_size", self.batch_size, "a whole number of at least 1")
        most = self.max_queries
        check(most is None or most >= 1, "queries.max_queries", most, "a whole number of at least 1")

    def resolve(self, *, interactive: bool) -> Queries:
        """The same with the number of rounds set: 1 where no student has a part in the questions, else 2.

        Raises:
            InputError: a student has a part in them and there is one round, or the other way round.
        """
        learns = interactive or self.strategy != "random"
        rounds = (2 if learns else 1) if self.rounds is None else self.rounds
        if learns and rounds < 2:
            what = f"--aggregator {INTERACTIVE}" if interactive else f"--query-strategy {self.strategy}"
            raise refuse("queries.rounds", rounds, f"at least 2 with {what}, the first to teach a student")
        if rounds > 1 and not learns:
            raise refuse(
                "queries.rounds",
                rounds,
                f"1 unless a student shapes later ones: give --query-strategy or --aggregator {INTERACTIVE}",
            )
        return replace(self, rounds=rounds)

    def cap(self, pool: int, *, noise_at_hospitals: bool) -> int:
        """Most queries that are asked of a pool of that size: ε is fixed by it, so it is never "all".

        Where the hospitals add the noise a query costs as much as a label, so fewer are allowed.
        """
        return min(pool, self.max_queries or self.labels * (2 if noise_at_hospitals else 4))


@dataclass(frozen=True, slots=True, kw_only=True)
class Privacy:
    """The budget and what it protects. No budget: ε is only reported.

    With `sanitise` a data-dependent ε is released through smooth sensitivity; its parameters are fixed from
    the study's terms, before the first vote.
    """

    epsilon: float | None = None
    delta: float = 1e-5
    unit: str = "record"
    adjacency: str = "replace-one"
    sanitise: bool = False

    def __post_init__(self) -> None:
        check(_positive(self.epsilon), "privacy.epsilon", self.epsilon, "a finite number above 0")
        check(0 < self.delta < 1, "privacy.delta", self.delta, "a number above 0 and below 1, such as 1e-5")
        _choice("privacy.unit", self.unit, ("record", "hospital"))
        _choice("privacy.adjacency", self.adjacency, ("replace-one", "add-or-remove-one"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """How the study runs here; no figure of the result depends on it. Times in seconds."""

    backend: str = "ray"
    device: str = "auto"
    gpus_per_client: float | None = None
    teach_timeout_s: float = 86_400.0
    vote_timeout_s: float = 14_400.0

    def __post_init__(self) -> None:
        _choice("engine.backend", self.backend, (*BACKENDS, PROCESSES))
        allowed = "auto, cpu, cuda or cuda:N"
        check(
            self.device in ("auto", "cpu", "cuda") or self.device.startswith("cuda:"),
            "engine.device",
            self.device,
            allowed,
        )
        share = self.gpus_per_client
        ok = share is None or 0 < share <= 1
        check(ok, "engine.gpus_per_client", share, "a share above 0 and at most 1")
        for name in ("teach_timeout_s", "vote_timeout_s"):
            check(_positive(getattr(self, name)), f"engine.{name}", getattr(self, name), "seconds above 0")
