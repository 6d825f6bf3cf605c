"""A study, from `study.toml` or the command line, as frozen values; every error a user can make in one.

Reading a study touches no data and imports nothing heavy. `resolve` fills in what depends on the number of
teachers, so that what is written to the run directory leaves nothing open.
"""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_type_hints

from pate_fed.data import DATASETS, GlyphSettings
from pate_fed.errors import InputError
from pate_fed.learning import STUDENTS, TEACHERS, StudentSettings, TeacherSettings
from pate_fed.secrecy import NOISE_PLACES, Secrecy

__all__ = [
    "OPTIONS",
    "Aggregation",
    "Data",
    "Engine",
    "Option",
    "Parties",
    "Privacy",
    "Queries",
    "Study",
    "load_study",
    "study_from_dict",
]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Option:
    """One command-line option and the key of `study.toml` that it sets."""

    flag: str
    key: str
    help: str
    choices: tuple[str, ...] = ()
    alias: str | None = None


AGGREGATORS = ("confident-gnmax", "gnmax", "lnmax")
BACKENDS = ("ray", "inline")
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
    Option("--max-queries", "queries.max_queries", "ask at most so many queries (default: the whole pool)"),
    Option("--epsilon", "privacy.epsilon", "budget: never passed (default: none, ε is reported)"),
    Option("--delta", "privacy.delta", "the δ that every ε is stated for"),
    Option("--sanitise", "privacy.sanitise", "release a data-dependent ε that may be published"),
    Option("--secure-sum", "secrecy.secure_sum", "show the coordinator totals only, nobody's own votes"),
    Option("--noise-at", "secrecy.noise_at", "who adds the noise", choices=NOISE_PLACES),
    Option("--student", "student.name", "how the student learns", choices=STUDENTS),
    Option("--student-epochs", "student.epochs", "passes over the public data"),
    Option("--backend", "engine.backend", "Flower's engine on Ray, or all in this process", choices=BACKENDS),
    Option("--device", "engine.device", "auto, cpu or cuda"),
    Option(
        "--gpus-per-client",
        "engine.gpus_per_client",
        "share of a GPU a party takes (default: from free memory)",
    ),
    Option("--seed", "study.seed", "repeat a run exactly; the noise is then NOT private"),
)
_FLAGS = {option.key: option.flag for option in OPTIONS}


def _refuse(key: str, value: object, allowed: str) -> InputError:
    """An error that names option, key, value and what would be right."""
    flag = _FLAGS.get(key)
    where = f"{flag} ({key} in study.toml)" if flag else f"{key} in study.toml"
    return InputError(f"{where} is {value!r}: {allowed}")


def _check(holds: bool, key: str, value: object, allowed: str) -> None:
    if not holds:
        raise _refuse(key, value, allowed)


def _positive(value: float | None) -> bool:
    return value is None or (math.isfinite(value) and value > 0)


def _choice(key: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        near = get_close_matches(value, choices, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise _refuse(key, value, f"one of {', '.join(choices)}{hint}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parties:
    """Who takes part. `quorum` is the least share of `num_clients` that must answer a batch."""

    num_clients: int = 250
    teachers_per_client: int = 1
    partition: str = "iid"
    quorum: float = 0.8

    def __post_init__(self) -> None:
        _check(self.num_clients >= 1, "parties.num_clients", self.num_clients, "a whole number of at least 1")
        k = self.teachers_per_client
        _check(k >= 1, "parties.teachers_per_client", k, "a whole number of at least 1")
        _check(0 < self.quorum <= 1, "parties.quorum", self.quorum, "a share above 0 and at most 1")
        scheme, _, alpha = self.partition.partition(":")
        allowed = "iid, or dirichlet:ALPHA with ALPHA a number above 0 (dirichlet:0.5)"
        _check(scheme in ("iid", "dirichlet"), "parties.partition", self.partition, allowed)
        if scheme == "dirichlet":
            try:
                ok = math.isfinite(float(alpha)) and float(alpha) > 0
            except ValueError:
                ok = False
            _check(ok, "parties.partition", self.partition, allowed)
        else:
            _check(alpha == "" and ":" not in self.partition, "parties.partition", self.partition, allowed)

    @property
    def num_teachers(self) -> int:
        """Teachers in the whole federation."""
        return self.num_clients * self.teachers_per_client


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Where the images come from."""

    dataset: str = "glyph"
    data_dir: str | None = None
    download: bool = False
    glyph: GlyphSettings = field(default_factory=GlyphSettings)

    def __post_init__(self) -> None:
        _choice("data.dataset", self.dataset, DATASETS)


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
            _check(ok, f"aggregation.{name}", value, "a number of votes from 1e-6 to 1e9")
        ok = self.threshold is None or abs(self.threshold) <= 1e9
        _check(ok, "aggregation.threshold", self.threshold, "a number of votes, 1e9 at most")

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

    With `evaluate` the teachers' and the ensemble's accuracy are measured on every public input, not only
    on those that were asked; hospitals outside a simulation refuse it.
    """

    labels: int = 500
    max_queries: int | None = None
    batch_size: int = 2000
    evaluate: bool = True

    def __post_init__(self) -> None:
        _check(self.labels >= 1, "queries.labels", self.labels, "a whole number of at least 1")
        _check(self.batch_size >= 1, "queries.batch_size", self.batch_size, "a whole number of at least 1")
        most = self.max_queries
        _check(most is None or most >= 1, "queries.max_queries", most, "a whole number of at least 1")


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
        _check(_positive(self.epsilon), "privacy.epsilon", self.epsilon, "a finite number above 0")
        _check(0 < self.delta < 1, "privacy.delta", self.delta, "a number above 0 and below 1, such as 1e-5")
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
        _check(
            self.device in ("auto", "cpu", "cuda") or self.device.startswith("cuda:"),
            "engine.device",
            self.device,
            allowed,
        )
        share = self.gpus_per_client
        ok = share is None or 0 < share <= 1
        _check(ok, "engine.gpus_per_client", share, "a share above 0 and at most 1")
        for name in ("teach_timeout_s", "vote_timeout_s"):
            _check(_positive(getattr(self, name)), f"engine.{name}", getattr(self, name), "seconds above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A whole study. With `seed` the noise is seeded too, so nothing protects anyone."""

    name: str = ""
    seed: int | None = None
    parties: Parties = field(default_factory=Parties)
    data: Data = field(default_factory=Data)
    teacher: TeacherSettings = field(default_factory=TeacherSettings)
    aggregation: Aggregation = field(default_factory=Aggregation)
    queries: Queries = field(default_factory=Queries)
    privacy: Privacy = field(default_factory=Privacy)
    secrecy: Secrecy = field(default_factory=Secrecy)
    student: StudentSettings = field(default_factory=StudentSettings)
    engine: Engine = field(default_factory=Engine)

    def __post_init__(self) -> None:
        ok = self.seed is None or 0 <= self.seed < 2**63
        _check(ok, "study.seed", self.seed, "a whole number from 0 to 2^63 - 1")
        ok = len(self.name) <= 100 and self.name.isprintable()
        _check(ok, "study.name", self.name, "at most 100 printable characters")
        if self.privacy.sanitise and self.seed is not None:
            raise InputError(
                "--sanitise with --seed: seeded noise protects nobody, so nothing of it may be published; "
                "drop one of the two"
            )

    @property
    def least_clients(self) -> int:
        """Parties below which nothing is released."""
        return self.secrecy.least_voters(self.parties.num_clients, self.parties.quorum)

    def seed_for(self, *purpose: str | int) -> int:
        """A seed in [0, 2^31) for one use, such as ("teacher", 17, 0); independent uses get unrelated seeds.

        Partitions and training are seeded also where the noise is not.
        """
        text = "/".join(map(str, (self.seed or 0, *purpose)))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1

    def resolve(self) -> Study:
        """The same study with every value set that was left open.

        Raises:
            InputError: noise that so many parties cannot add in shares.
        """
        clients, aggregation = self.parties.num_clients, self.aggregation.resolve(self.parties.num_teachers)
        least = self.least_clients
        if self.secrecy.at_hospitals:
            sigma2 = self.secrecy.shares(clients, least).fit(self.aggregation.sigma2, aggregation.sigma2)
            aggregation = replace(aggregation, sigma2=sigma2)
        name = self.name or f"{self.data.dataset}-{clients}"
        return replace(self, name=name, aggregation=aggregation)

    def to_toml(self) -> str:
        """The study as a `study.toml` that `load_study` reads back to an equal value."""
        top = {"name": self.name} if self.seed is None else {"name": self.name, "seed": self.seed}
        sections = [_table("study", top)]
        for entry in fields(self):
            value = getattr(self, entry.name)
            if is_dataclass(value):
                sections += _tables(entry.name, value)
        return "\n".join(sections)


def _table(name: str, values: dict[str, Any]) -> str:
    # JSON's strings, numbers and booleans are TOML's too; None is a key left out.
    lines = [
        f"{key} = {json.dumps(value, ensure_ascii=False)}"
        for key, value in values.items()
        if value is not None
    ]
    return "\n".join([f"[{name}]", *lines, ""])


def _tables(name: str, value: Any) -> list[str]:
    flat = {entry.name: getattr(value, entry.name) for entry in fields(value)}
    nested = {key: inner for key, inner in flat.items() if is_dataclass(inner)}
    own = _table(name, {key: inner for key, inner in flat.items() if key not in nested})
    return [own, *(table for key, inner in nested.items() for table in _tables(f"{name}.{key}", inner))]


def load_study(path: Path) -> dict[str, Any]:
    """The nested dictionary in a `study.toml`.

    Raises:
        InputError: the file cannot be read or is not TOML; the error names the file and the place.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise InputError(f"--config {path}: cannot be read ({reason})") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"--config {path}: not valid TOML: {error}") from error


def study_from_dict(values: dict[str, Any]) -> Study:
    """A study from nested dictionaries, as `tomllib` gives them.

    Raises:
        InputError: an unknown or misspelt key (the nearest is suggested), a value of the wrong type or out of
            range, or values that do not go together.
    """
    sections = {entry.name for entry in fields(Study)} - {"name", "seed"}
    _known(values, {"study", *sections}, where="study.toml")
    top = _section(values, "study")
    _known(top, {"name", "seed"}, where="[study]")
    built: dict[str, Any] = {key: _typed(f"study.{key}", top[key], t) for key, t in _top_types(top)}
    for entry in fields(Study):
        if entry.name in sections and entry.name in values:
            kind = get_type_hints(Study)[entry.name]
            built[entry.name] = _build(kind, _section(values, entry.name), entry.name)
    return Study(**built)


def _top_types(top: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(key, kind) for key, kind in (("name", str), ("seed", int)) if key in top]


def _section(values: dict[str, Any], name: str) -> dict[str, Any]:
    section = values.get(name, {})
    if not isinstance(section, dict):
        raise InputError(f"study.toml: [{name}] is {section!r}: a table of settings is meant")
    return section


def _known(values: dict[str, Any], allowed: set[str], *, where: str) -> None:
    for key in values:
        if key not in allowed:
            near = get_close_matches(key, allowed, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise InputError(f"{where}: unknown key {key!r}{hint} (known: {', '.join(sorted(allowed))})")


def _build(kind: type[T], values: dict[str, Any], where: str) -> T:
    hints = get_type_hints(kind)
    names = {entry.name for entry in fields(kind)}  # type: ignore[arg-type]
    _known(values, names, where=f"[{where}]")
    built: dict[str, Any] = {}
    for name in names & set(values):
        if is_dataclass(hints[name]):
            inner = _section(values, name)
            built[name] = _build(hints[name], inner, f"{where}.{name}")
        else:
            built[name] = _typed(f"{where}.{name}", values[name], hints[name])
    missing = [
        entry.name
        for entry in fields(kind)  # type: ignore[arg-type]
        if entry.name not in built and entry.default is MISSING and entry.default_factory is MISSING
    ]
    if missing:
        raise InputError(f"[{where}]: {missing[0]} is missing")
    try:
        return kind(**built)
    except InputError as error:
        # Settings of other rooms know their own limits, but not where in the study they stand.
        raise (error if "study.toml" in str(error) else _located(where, str(error))) from error


def _located(where: str, message: str) -> InputError:
    key, _, rest = message.partition(" ")
    flag = _FLAGS.get(f"{where}.{key}")
    if flag is None:
        return InputError(f"[{where}] in study.toml: {message}")
    return InputError(f"{flag} ({where}.{key} in study.toml) {rest}")


def _typed(key: str, value: Any, hint: Any) -> Any:
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if float in kinds and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    for kind in kinds:
        if (
            isinstance(kind, type)
            and isinstance(value, kind)
            and not (kind is int and isinstance(value, bool))
        ):
            return value
    wanted = " or ".join(_WORDS.get(kind, str(kind)) for kind in kinds if kind is not type(None))
    raise _refuse(key, value, f"{wanted} is meant")


_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
