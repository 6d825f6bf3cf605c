"""What would be right, as an error says it."""

from __future__ import annotations

from pathlib import Path
from types import NoneType

import pytest

from pate_fed.structure.declarations import Setting
from pate_fed.structure.wording import nearest, shown, wanted


@pytest.mark.parametrize(
    ("kind", "declared", "words"),
    [
        (int, Setting(low=1, high=2**63 - 1), "a whole number from 1 to 2^63 - 1"),
        (int, Setting(unit="votes", low=1000), "a whole number of votes of at least 1,000"),
        (float, Setting(above=0, below=1), "a number above 0 and below 1"),
        (float, Setting(high=1e-5), "a number at most 1e-5"),
        (str, Setting(most=40), "a text of at most 40 characters"),
        (tuple[str, ...], Setting(), "a list of texts"),
        (Path, Setting(), "a path"),
        (str, Setting(choices=("a",), also=("b",), part=True), "one of a, b or module:attribute of your own"),
        (str, Setting(allowed="small letters", choices=("a",)), "small letters"),
    ],
)
def test_what_is_meant(kind: object, declared: Setting, words: str) -> None:
    assert wanted((kind,), declared) == words
    assert wanted((NoneType, kind), declared) == words


def test_a_long_value_is_shown_in_part() -> None:
    assert shown([1, 2]) == "[1, 2]"
    assert len(shown("x" * 10**6)) < 100


def test_the_nearest_name_is_asked_for() -> None:
    assert nearest("gren", ["red", "green"]) == "; did you mean green?"
    assert nearest("blue", ["red", "green"]) == ""
