"""How a dataclass declares its fields: type, range, unit, help and flag, each once."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from pate_fed.errors import InputError

PARTY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
PART_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")  # code of one's own
PARTY_NAME_IS = "1 to 64 letters, digits, dots, dashes or underscores"


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
class DeclaredField:
    """One field of a dataclass: its resolved type, what it may hold, and its default (or MISSING).

    A value whose very type is in `exact` is in the field's form already.
    """

    name: str
    hint: Any
    exact: frozenset[type]
    setting: Setting
    default: Any
    required: bool

    @property
    def kinds(self) -> tuple[Any, ...]:
        """The types that it may have, without None."""
        return tuple(kind for kind in members(self.hint) if kind is not NoneType)

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


def setting(
    default: Any = MISSING,
    help: str = "",
    flags: str = "",
    *,
    factory: Any = MISSING,
    compare: bool = True,
    **declared: Any,
) -> Any:
    """A dataclass field that carries its declaration, by the names of `Setting`; `flags` with spaces."""
    metadata = {"setting": Setting(help=help, flags=tuple(flags.split()), **declared)}
    return field(default=default, default_factory=factory, compare=compare, metadata=metadata)


def same_as(kind: type[Any], name: str, default: Any = MISSING) -> Any:
    """A dataclass field that may hold what that field of another dataclass may."""
    declared = next(each.metadata for each in fields(kind) if each.name == name)
    return field(default=default, metadata=declared)


def entries(kind: type[Any]) -> tuple[DeclaredField, ...]:
    """The fields of a dataclass with their declarations.

    Raises:
        TypeError: a field, of a section within too, is declared as what no reader knows: a fault of the code.
    """
    if kind not in _ENTRIES:
        given = get_type_hints(kind)
        hints = {each.name: _plain(given[each.name], f"{kind.__name__}.{each.name}") for each in fields(kind)}
        _ENTRIES[kind] = tuple(
            DeclaredField(
                name=each.name,
                hint=hints[each.name],
                exact=exact_types(hints[each.name]),
                setting=each.metadata.get("setting", _ANYTHING),
                default=each.default if each.default_factory is MISSING else each.default_factory(),
                required=each.default is MISSING and each.default_factory is MISSING,
            )
            for each in fields(kind)
        )
    return _ENTRIES[kind]


_ENTRIES: dict[type[Any], tuple[DeclaredField, ...]] = {}  # evaluating annotations is slow
_ANYTHING = Setting()


def _plain(hint: Any, where: str) -> Any:
    """The hint with every alias in it unwrapped: classes, unions, tuples, tables and arrays are left."""
    hint = _unwrapped(hint)
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return Union[tuple(_plain(each, where) for each in inner)]  # noqa: UP007
    if origin is tuple:
        return tuple[tuple(each if each is Ellipsis else _plain(each, where) for each in inner)]  # type: ignore[misc]
    if origin in (dict, Mapping) and inner[0] is str:
        return origin[str, _plain(inner[1], where)]
    if origin is np.ndarray:
        (scalar,) = get_args(_unwrapped(inner[1])) or (None,)
        if isinstance(scalar, type) and issubclass(scalar, np.generic):
            return np.ndarray[Any, np.dtype[scalar]]  # type: ignore[valid-type]
    elif hint is Any or (origin is None and isinstance(hint, type)):
        if is_dataclass(hint):
            entries(hint)
        return hint
    raise TypeError(f"{where} is declared as {hint!r}, which no reader of values knows")


def _unwrapped(hint: Any) -> Any:
    """What an alias, a NewType or an Annotated stands for; NumPy's NDArray[...] is an alias from 2.5 on."""
    origin = get_origin(hint)
    alias = origin if hasattr(origin, "__value__") else hint
    if hasattr(alias, "__value__"):  # TypeAliasType, whichever module it is of
        value, given = alias.__value__, dict(zip(alias.__type_params__, get_args(hint), strict=False))
        open_ones = getattr(value, "__parameters__", ())
        return _unwrapped(value[tuple(given.get(each, each) for each in open_ones)] if open_ones else value)
    if origin is Annotated:
        return _unwrapped(get_args(hint)[0])
    return _unwrapped(hint.__supertype__) if hasattr(hint, "__supertype__") else hint


def members(hint: Any) -> tuple[Any, ...]:
    """The types of a union, or the one type there is."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def exact_types(hint: Any) -> frozenset[type]:
    """Classes of plain values that are in the form of a hint as they are, but for a field's declaration.

    A whole number is not where a float is tried first, and nothing is that a path or a table might take.
    """
    found: set[type] = set()
    kinds = members(hint)
    for kind in kinds:
        if kind not in (bool, int, float, str, bytes, NoneType):
            break
        if kind is not int or float not in found:
            found.add(kind)
    return frozenset({*found, NoneType} if NoneType in kinds else found)


# What a field means and what it was given, in the words of an error.


def nearest(given: object, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """A question whether the nearest known name was meant; empty where none is near."""
    near = get_close_matches(str(given), list(known), n=1, cutoff=cutoff)
    return f"; did you mean {near[0]}?" if near else ""


def shown(value: object) -> str:
    """A value for an error, a long one with its middle left out."""
    return reprlib.repr(value) if len(text := repr(value)) > 100 else text


_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", bytes: "bytes"}


def wanted(kinds: Sequence[Any], declared: Setting) -> str:
    """What a field of these types may hold."""
    if declared.allowed:
        return declared.allowed
    kind = next((kind for kind in kinds if kind is not NoneType), kinds[0])
    if declared.choices:
        own = " or module:attribute of your own" if declared.part else ""
        many = "a list of" if get_origin(kind) is tuple else "one of"
        return f"{many} {', '.join(declared.choices + declared.also)}{own}"
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
