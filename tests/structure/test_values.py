"""Declared fields: what fits is read and written back, and everything else is refused by its name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any, Optional, Union

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pate_fed.errors import InputError, IntegrityError
from pate_fed.structure import SettingError, check, from_plain, setting, to_plain
from pate_fed.structure.declarations import Setting, exact_types
from pate_fed.structure.values import fit


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    share: float = setting(0.5, "a share", "--share", above=0, high=1)
    count: int | None = setting(None, low=1, high=10)

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    name: str = setting(pattern=re.compile("[a-z]+"), allowed="small letters")
    kind: str = setting("red", choices=("red", "green"), also=("black",))
    loud: bool = False
    shape: tuple[int, ...] = setting((1,), low=1, high=9)
    pairs: tuple[tuple[str, tuple[str, ...]], ...] = ()
    prints: Mapping[str, str] = field(default_factory=dict)
    inner: Inner = field(default_factory=Inner)

    def __post_init__(self) -> None:
        check(self)


@given(
    share=st.floats(0.001, 1),
    count=st.none() | st.integers(1, 10),
    shape=st.lists(st.integers(1, 9)).map(tuple),
)
def test_what_is_written_is_read_back(share: float, count: int | None, shape: tuple[int, ...]) -> None:
    value = Outer(
        name="a",
        shape=shape,
        pairs=(("x", ("y", "z")),),
        prints={"a": "b"},
        inner=Inner(share=share, count=count),
    )
    assert from_plain(Outer, json.loads(json.dumps(to_plain(value))), where="f") == value


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "name in f.toml: is missing"),
        ({"name": "A"}, "name in f.toml is 'A': small letters is meant"),
        ({"nam": "a"}, "nam in f.toml: no such key; did you mean name?"),
        ({"name": "a", "kind": "gren"}, "one of red, green, black is meant; did you mean green?"),
        ({"name": "a", "loud": 1}, "true or false"),
        ({"name": "a", "shape": [1, 10]}, "shape in f.toml is [1, 10]: a list of values from 1 to 9"),
        ({"name": "a", "shape": 3}, "a list of values"),
        ({"name": "a", "pairs": [["x", "y"]]}, "a list of values"),
        ({"name": "a", "prints": {"a": 3}}, "prints.a in f.toml is 3: a text is meant"),
        ({"name": "a", "inner": 3}, "inner in f.toml is 3: a table of settings is meant"),
        (
            {"name": "a", "inner": {"share": 0}},
            "--share (inner.share in f.toml) is 0: a number above 0 and at",
        ),
        ({"name": "a", "inner": {"share": float("nan")}}, "--share"),
        ({"name": "a", "inner": {"share": True}}, "--share"),
        ({"name": "a", "inner": {"share": 10**400}}, "--share"),
        ({"name": "a", "inner": {"count": 2.0}}, "inner.count in f.toml is 2.0: a whole number from 1 to 10"),
        ([], "f.toml is []: a table of settings is meant"),
    ],
)
def test_every_mistake_is_named(values: object, words: str) -> None:
    for error in (InputError, IntegrityError):
        with pytest.raises(error) as caught:
            from_plain(Outer, values, where="f.toml", error=error)
        assert words in str(caught.value)


def test_values_built_in_python_are_held_to_the_same() -> None:
    with pytest.raises(SettingError, match=r"--share \(share\) is 'x': a number above 0 and at most 1"):
        Inner(share="x")  # type: ignore[arg-type]
    whole = Inner(share=1)
    assert isinstance(whole.share, float)
    assert Outer(name="a", shape=[1, 2]).shape == (1, 2)  # type: ignore[arg-type]


def test_unknown_keys_may_be_left_aside_and_cells_read() -> None:
    assert from_plain(Inner, {"share": 1, "new": 3}, where="f", aside=True) == Inner(share=1.0)
    assert from_plain(Inner, {"share": "0.25", "count": ""}, where="f", text=True) == Inner(share=0.25)
    with pytest.raises(InputError, match="count in f is 'x': a whole number"):
        from_plain(Inner, {"count": "x"}, where="f", text=True)


@pytest.mark.parametrize(
    ("hint", "exact"),
    [
        (int, {int}),
        (Union[int, float], {int, float}),  # noqa: UP007
        (Union[float, int], {float}),  # noqa: UP007
        (Union[Path, str], set()),  # noqa: UP007
        (Union[str, Path], {str}),  # noqa: UP007
        (Optional[tuple[int, ...]], {NoneType}),  # noqa: UP045
        (Any, set()),
    ],
)
def test_what_is_taken_as_it_is_is_what_would_be_made_of_it(hint: Any, exact: set[type]) -> None:
    assert exact_types(hint) == exact
    for value in (None, True, 3, 0.5, "", "a", b"x", [1], (1,)):
        if type(value) in exact:
            assert fit(hint, value, Setting(), "there") is value
