"""A study, from `study.toml` or the command line, as frozen values; every error a user can make in one.

Reading a study touches no data and imports nothing heavy. `resolve` fills in what depends on the number of
teachers, so that what is written to the run directory leaves nothing open.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_type_hints

from pate_fed.config.sections import (
    FLAGS,
    INTERACTIVE,
    OPTIONS,
    PROCESSES,
    Aggregation,
    Data,
    Engine,
    Option,
    Parties,
    Privacy,
    Queries,
    check,
    refuse,
)
from pate_fed.config.trust import TrustModel
from pate_fed.data import Schema
from pate_fed.errors import InputError
from pate_fed.learning import (
    STUDENTS,
    TABLE_STUDENTS,
    TABLE_TEACHERS,
    TEACHERS,
    StudentSettings,
    TeacherSettings,
)

__all__ = [
    "OPTIONS",
    "PROCESSES",
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
    secrecy: TrustModel = field(default_factory=TrustModel)
    student: StudentSettings = field(default_factory=StudentSettings)
    engine: Engine = field(default_factory=Engine)

    def __post_init__(self) -> None:
        ok = self.seed is None or 0 <= self.seed < 2**63
        check(ok, "study.seed", self.seed, "a whole number from 0 to 2^63 - 1")
        ok = len(self.name) <= 100 and self.name.isprintable()
        check(ok, "study.name", self.name, "at most 100 printable characters")
        self._check_models()
        if self.privacy.sanitise and self.seed is not None:
            raise InputError(
                "--sanitise with --seed: seeded noise protects nobody, so nothing of it may be published; "
                "drop one of the two"
            )

    def _check_models(self) -> None:
        """Tables want forests, images want networks."""
        table = self.data.dataset == "table"
        for key, name, choices in (
            ("teacher.name", self.teacher.name, TABLE_TEACHERS if table else TEACHERS),
            ("student.name", self.student.name, TABLE_STUDENTS if table else STUDENTS),
        ):
            what = "tables" if table else "images"
            check(name in choices, key, name, f"for {what} one of {', '.join(choices)}")
        parties = len(self.data.private)
        if parties and parties != self.parties.num_clients:
            raise InputError(
                f"data.private in study.toml names {parties} files for --num-clients "
                f"{self.parties.num_clients}: one a party is meant"
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
            InputError: noise that so many parties cannot add in shares, or rounds that nothing is learnt for.
        """
        clients, aggregation = self.parties.num_clients, self.aggregation.resolve(self.parties.num_teachers)
        least, secrecy = self.least_clients, self.secrecy
        if secrecy.at_hospitals:
            shares = secrecy.shares(clients, least)
            sigma2 = shares.fit(self.aggregation.sigma2, aggregation.sigma2)
            aggregation = replace(aggregation, sigma2=sigma2)
            secrecy = replace(secrecy, colluders=shares.colluders)
        name = self.name or f"{self.data.dataset}-{clients}"
        queries = self.queries.resolve(interactive=aggregation.aggregator == INTERACTIVE)
        return replace(self, name=name, aggregation=aggregation, queries=queries, secrecy=secrecy)

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
    if isinstance(value, Schema):
        return [_table(name, value.to_toml())]
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
        return _anchored(tomllib.loads(path.read_text(encoding="utf-8-sig")), path.parent)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise InputError(f"--config {path}: cannot be read ({reason})") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"--config {path}: not valid TOML: {error}") from error


def _anchored(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The same with the names of data files taken from where the study lies."""
    data = values.get("data")
    if isinstance(data, dict):
        if isinstance(data.get("pool"), str):
            data["pool"] = str((folder / data["pool"]).absolute())
        if isinstance(data.get("private"), list):
            data["private"] = [
                str((folder / name).absolute()) if isinstance(name, str) else name for name in data["private"]
            ]
    return values


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
        elif hints[name] == Schema | None:
            built[name] = Schema.from_toml(values[name])
        elif hints[name] == tuple[str, ...]:
            built[name] = _texts(f"{where}.{name}", values[name])
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
    flag = FLAGS.get(f"{where}.{key}")
    if flag is None:
        return InputError(f"[{where}] in study.toml: {message}")
    return InputError(f"{flag} ({where}.{key} in study.toml) {rest}")


def _texts(key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise refuse(key, value, "a list of texts is meant")
    return tuple(value)


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
    raise refuse(key, value, f"{wanted} is meant")


_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
