"""Settings and messages: dataclasses whose fields declare type, range, unit, help and flag once.

`from_plain` reads such a dataclass from what TOML, JSON, a message, a log line or a CSV row holds, `to_plain`
is the inverse, and `check` holds a value that was built in Python to the same declarations. Every room may
use it: the standard library, NumPy and `pate_fed.errors` are all that it imports.
"""

from __future__ import annotations

import base64
import math
import re
import reprlib
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from pate_fed.errors import InputError, PateFedError

__all__ = [
    "PARTY_NAME",
    "PARTY_NAME_IS",
    "PART_NAME",
    "Entry",
    "Setting",
    "SettingError",
    "check",
    "entries",
    "fit",
    "from_plain",
    "from_record",
    "nearest",
    "refusal",
    "same_as",
    "setting",
    "to_plain",
    "to_record",
]

T = TypeVar("T")

PARTY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
PART_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")  # code of one's own
PARTY_NAME_IS = "1 to 64 letters, digits, dots, dashes or underscores"

_MOST_BYTES = 2**26  # of an image array in a log line


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a field may hold beside its type, and how a user sets it.

    `low` and `high` are inclusive, `above` and `below` exclusive bounds of a number, or of each in a list.
    `choices` are the texts that are shown, `also` others that are allowed, with `part` also the name of code
    of one's own, module:attribute; `pattern` must match a whole text,
    `most` is its greatest length. `holds` tells of anything else whether it fits, and `allowed` says so in
    words. `flags` are the options of the command line that set it, the first by its name; `read` brings a
    plain value into the field's form.
    """

    help: str = ""
    unit: str = ""
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    part: bool = False
    pattern: re.Pattern[str] | None = None
    most: int | None = None
    holds: Callable[[Any], bool] | None = None
    allowed: str = ""
    flags: tuple[str, ...] = ()
    read: Callable[[Any], Any] | None = None

    @property
    def flag(self) -> str | None:
        """The option's name on the command line."""
        return self.flags[0] if self.flags else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One field of a dataclass: its resolved type, what it may hold, and its default (or MISSING)."""

    name: str
    hint: Any
    setting: Setting
    default: Any
    required: bool

    @property
    def kinds(self) -> tuple[Any, ...]:
        """The types that it may have, without None."""
        return tuple(kind for kind in _members(self.hint) if kind is not NoneType)

    def from_text(self, text: str) -> Any:
        """The number or truth value that a text says, None where an empty one may be; else the text."""
        if not text and NoneType in get_args(self.hint):
            return None
        for kind in self.kinds:
            if kind is bool and text in ("True", "False"):
                return text == "True"
            if kind in (int, float):
                with suppress(ValueError):
                    return kind(text)
        return text


class SettingError(InputError):
    """A field holds what it may not: which one, what it holds, and what would be right.

    `path` names it from the outermost table on ("parties.quorum"), `where` is the file or message.
    """

    def __init__(
        self, path: str, wanted: str, shown: str = "", flag: str | None = None, where: str = ""
    ) -> None:
        super().__init__(path, wanted, shown, flag, where)  # all of them, so that it can be pickled
        self.path, self.wanted, self.shown, self.flag, self.where = path, wanted, shown, flag, where

    def __str__(self) -> str:
        place = f"{self.path} in {self.where}" if self.path and self.where else self.path or self.where
        head = f"{self.flag} ({place})" if self.flag else place
        return f"{head} is {self.shown}: {self.wanted}" if self.shown else f"{head}: {self.wanted}"

    def placed(self, *, path: str | None = None, where: str = "") -> SettingError:
        """The same error with its place."""
        path = self.path if path is None else path
        return SettingError(path, self.wanted, self.shown, self.flag, where or self.where)


def setting(default: Any = MISSING, *, factory: Any = MISSING, compare: bool = True, **declared: Any) -> Any:
    """A dataclass field that carries its declaration, by the names of `Setting`."""
    metadata = {"setting": Setting(**declared)}
    return field(default=default, default_factory=factory, compare=compare, metadata=metadata)


def same_as(kind: type[Any], name: str, default: Any = MISSING) -> Any:
    """A dataclass field that may hold what that field of another dataclass may."""
    declared = next(each.metadata for each in fields(kind) if each.name == name)
    return field(default=default, metadata=declared)


def entries(kind: type[Any]) -> tuple[Entry, ...]:
    """The fields of a dataclass with their declarations."""
    if kind not in _ENTRIES:
        hints = get_type_hints(kind)
        _ENTRIES[kind] = tuple(
            Entry(
                name=each.name,
                hint=hints[each.name],
                setting=each.metadata.get("setting", _ANYTHING),
                default=each.default if each.default_factory is MISSING else each.default_factory(),
                required=each.default is MISSING and each.default_factory is MISSING,
            )
            for each in fields(kind)
        )
    return _ENTRIES[kind]


_ENTRIES: dict[type[Any], tuple[Entry, ...]] = {}  # evaluating annotations is slow
_ANYTHING = Setting()


def check(value: Any) -> None:
    """Hold every field of a dataclass to its type and declaration; for its `__post_init__`.

    Whole numbers become floats, and lists tuples, where the field says so: equal settings are equal values.

    Raises:
        SettingError: the first field that does not fit.
    """
    for entry in entries(type(value)):
        given = getattr(value, entry.name)
        fitted = fit(entry.hint, given, entry.setting, entry.name)
        if fitted is not given:
            object.__setattr__(value, entry.name, fitted)


def from_plain(
    kind: type[T],
    values: object,
    *,
    where: str,
    error: type[PateFedError] = InputError,
    aside: bool = False,
    text: bool = False,
) -> T:
    """The dataclass in a table of plain values: numbers, texts, lists, tables, None.

    With `aside` unknown keys are left alone; with `text` every value is a text, as in a CSV row.

    Raises:
        PateFedError: of the class `error`: a key is unknown or missing, or a value does not fit. The message
            names `where`, the key, its flag, and what would be right.
    """
    try:
        if text and isinstance(values, Mapping):
            cells = {entry.name: entry for entry in entries(kind) if entry.name in values}
            values = {**values, **{key: entry.from_text(values[key]) for key, entry in cells.items()}}
        return _build(kind, values, "", aside)
    except SettingError as found:
        placed = found.placed(where=found.where or where)
        raise (placed if error is InputError else error(str(placed))) from found
    except InputError as found:  # values that do not go together, in the dataclass's own words
        raise (found if error is InputError else error(f"{where}: {found}")) from found


def to_plain(value: Any) -> Any:
    """What JSON and TOML can hold; `from_plain` reads it back.

    A dataclass becomes a table, a tuple a list, a path a text, an image array base64, NaN and infinity None.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: to_plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, np.ndarray):
        return _pack(value)
    if isinstance(value, tuple | list):
        return [to_plain(inner) for inner in value]
    if isinstance(value, Mapping):
        return {str(key): to_plain(inner) for key, inner in value.items()}
    if isinstance(value, np.generic):
        return to_plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def to_record(message: Any) -> dict[str, Any]:
    """A message's kind and fields, flat, as they are."""
    return {"kind": message.kind, **{each.name: getattr(message, each.name) for each in fields(message)}}


def from_record(
    kind: type[T], record: Mapping[str, Any], *, checks: Mapping[str, Setting] | None = None
) -> T:
    """The message of that `kind` in a flat record; `checks` by name go before the fields' own declarations.

    Raises:
        SettingError: another kind, or a field missing, unknown, or holding what it may not.
    """
    known, name = entries(kind), kind.kind  # type: ignore[attr-defined]
    said = record.get("kind")
    if not isinstance(said, str) or said != name or set(record) != {"kind", *(entry.name for entry in known)}:
        names = ", ".join(entry.name for entry in known)
        raise SettingError("a record", f"a message {name!r} with the fields {names} is meant")
    declared = {entry.name: entry.setting for entry in known} | dict(checks or {})
    return kind(
        **{each.name: fit(each.hint, record[each.name], declared[each.name], each.name) for each in known}
    )


def refusal(owner: Any, path: str, wanted: str) -> SettingError:
    """The error that a field, named from `owner` on ("teacher.name"), does not go with the others."""
    *tables, name = path.split(".")
    for table in tables:
        owner = getattr(owner, table)
    entry = next(entry for entry in entries(type(owner)) if entry.name == name)
    return SettingError(path, wanted, _shown(getattr(owner, name)), entry.setting.flag)


def nearest(given: object, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """A question whether the nearest known name was meant; empty where none is near."""
    near = get_close_matches(str(given), list(known), n=1, cutoff=cutoff)
    return f"; did you mean {near[0]}?" if near else ""


def _build(kind: type[T], values: object, path: str, aside: bool) -> T:
    if not isinstance(values, Mapping):
        raise SettingError(path, "a table of settings is meant", _shown(values))
    known = {entry.name: entry for entry in entries(kind)}
    for key in values:
        if key not in known and not aside:
            hint = f"no such key{nearest(key, known, cutoff=0.5)} (known: {', '.join(sorted(known))})"
            raise SettingError(_join(path, str(key)), hint)
    built = {}
    for name, entry in known.items():
        if name in values:
            built[name] = fit(entry.hint, values[name], entry.setting, _join(path, name), aside)
        elif entry.required:
            raise SettingError(_join(path, name), "is missing")
    try:
        return kind(**built)
    except SettingError as error:
        raise (error if "." in error.path else error.placed(path=_join(path, error.path))) from error


def fit(hint: Any, value: Any, declared: Setting, path: str, aside: bool = False) -> Any:
    """The value in the field's form.

    Raises:
        SettingError: it does not fit.
    """
    if declared.read is not None and value is not None:
        try:
            value = declared.read(value)
        except InputError as error:
            raise SettingError(path, str(error), flag=declared.flag) from error
    kinds = _members(hint)
    if value is None and NoneType in kinds:
        return None
    for kind in kinds:
        if kind is not NoneType:
            fitted = _as(kind, value, declared, path, aside)
            if fitted is not MISSING:
                return fitted
    near = nearest(value, (*declared.choices, *declared.also))
    raise SettingError(path, f"{_wanted(kinds, declared)} is meant{near}", _shown(value), declared.flag)


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _as(kind: Any, value: Any, declared: Setting, path: str, aside: bool) -> Any:
    """The value as one of the kinds that a field may have, MISSING where it is none."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is tuple:
        return _as_tuple(inner, value, declared, path, aside)
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            return MISSING
        return {key: fit(inner[1], each, declared, _join(path, key), aside) for key, each in value.items()}
    if origin is np.ndarray:
        array = _unpack(value) if isinstance(value, Mapping) else value
        wanted = np.dtype(get_args(inner[1])[0])
        fits = isinstance(array, np.ndarray) and array.dtype.newbyteorder("=") == wanted
        return array if fits and _allowed(array, declared) else MISSING
    if is_dataclass(kind):
        return value if isinstance(value, kind) else _build(kind, value, path, aside)  # type: ignore[arg-type]
    if kind is Any:
        return value
    if kind is Path:
        return Path(value) if isinstance(value, str | Path) and str(value) else MISSING
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            value = float(value)
        except OverflowError:
            return MISSING
    typed = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    return value if typed and _allowed(value, declared) else MISSING


def _as_tuple(inner: Sequence[Any], value: Any, declared: Setting, path: str, aside: bool) -> Any:
    if not isinstance(value, list | tuple):
        return MISSING
    kinds = [inner[0]] * len(value) if Ellipsis in inner else inner
    if len(kinds) != len(value):
        return MISSING
    each = declared if declared.read is None else replace(declared, read=None)
    try:
        fitted = tuple(fit(kind, item, each, path, aside) for kind, item in zip(kinds, value, strict=True))
    except SettingError as error:
        if error.path != path:
            raise
        return MISSING  # the list is named, and shown, as a whole
    same = isinstance(value, tuple) and all(old is new for old, new in zip(value, fitted, strict=True))
    return value if same else fitted


def _allowed(value: Any, declared: Setting) -> bool:
    if declared.holds is not None and not declared.holds(value):
        return False
    if isinstance(value, str):
        named = declared.choices + declared.also
        return (
            (not named or value in named or (declared.part and PART_NAME.fullmatch(value) is not None))
            and (declared.pattern is None or declared.pattern.fullmatch(value) is not None)
            and (declared.most is None or len(value) <= declared.most)
        )
    if isinstance(value, float) and not math.isfinite(value):
        return False
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (
            (declared.low is None or value >= declared.low)
            and (declared.high is None or value <= declared.high)
            and (declared.above is None or value > declared.above)
            and (declared.below is None or value < declared.below)
        )
    return True


_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", bytes: "bytes"}


def _wanted(kinds: Sequence[Any], declared: Setting) -> str:
    """What would be right, in words."""
    if declared.allowed:
        return declared.allowed
    if declared.choices:
        own = " or module:attribute of your own" if declared.part else ""
        return f"one of {', '.join(declared.choices + declared.also)}{own}"
    kind = next((kind for kind in kinds if kind is not NoneType), kinds[0])
    if get_origin(kind) is tuple:
        inner = get_args(kind)[0]
        return f"a list of {'texts' if inner is str else 'values'}{_range(declared)}"
    if get_origin(kind) in (dict, Mapping) or is_dataclass(kind):
        return "a table of settings"
    unit = f" of {declared.unit}" if declared.unit else ""
    most = f" of at most {declared.most} characters" if kind is str and declared.most is not None else ""
    return f"{_NAMES.get(kind, 'a path' if kind is Path else 'an array')}{unit}{most}{_range(declared)}"


def _range(declared: Setting) -> str:
    if declared.low is not None and declared.high is not None:
        return f" from {_number(declared.low)} to {_number(declared.high)}"
    bounds = (
        ("above", declared.above),
        ("of at least", declared.low),
        ("below", declared.below),
        ("at most", declared.high),
    )
    told = [f"{word} {_number(bound)}" for word, bound in bounds if bound is not None]
    return f" {' and '.join(told)}" if told else ""


def _number(bound: float) -> str:
    if isinstance(bound, int):
        return "2^63 - 1" if bound == 2**63 - 1 else f"{bound:,}"
    return f"{bound:g}".replace("e-0", "e-").replace("e+0", "e")


def _shown(value: object) -> str:
    return reprlib.repr(value) if len(text := repr(value)) > 100 else text


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _pack(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    if array.dtype != np.uint8:
        raise TypeError(f"only uint8 arrays are kept here, not {array.dtype}")
    data = base64.b64encode(zlib.compress(array.tobytes(), 9)).decode("ascii")
    return {"shape": list(array.shape), "zlib_base64": data}


def _unpack(value: Mapping[str, Any]) -> np.ndarray[Any, Any] | None:
    try:
        shape = tuple(int(size) for size in value["shape"])
        if min(shape, default=0) < 0 or math.prod(shape) > _MOST_BYTES:
            return None
        # Bounded: a damaged or hostile line cannot unfold into more than it says.
        data = zlib.decompressobj().decompress(base64.b64decode(value["zlib_base64"]), math.prod(shape) + 1)
        return np.frombuffer(data, dtype=np.uint8).reshape(shape)
    except (KeyError, TypeError, ValueError, zlib.error):
        return None
