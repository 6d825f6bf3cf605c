"""What a field means and what it was given, in the words of an error."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from difflib import get_close_matches
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin

from pate_fed.structure.declarations import Setting


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
