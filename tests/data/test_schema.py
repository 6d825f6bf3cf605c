"""A table's schema: what it may say, and its own words read back."""

from __future__ import annotations

import pytest

from pate_fed.data.schema import Schema, number_in
from pate_fed.errors import InputError
from pate_fed.structure import from_plain, to_plain

SCHEMA = Schema(
    label="outcome",
    classes=("well", "ill"),
    columns=(("age", ()), ("sex", ("f", "m")), ("dose", ())),
    patient="patient",
)


def test_a_schema_survives_its_own_words() -> None:
    assert from_plain(Schema, to_plain(SCHEMA), where="study.toml") == SCHEMA
    table = {"label": "outcome", "classes": ["well", "ill"], "patient": "patient"}
    columns = {"age": "number", "sex": ["f", "m"], "dose": "number"}
    assert from_plain(Schema, {**table, "columns": columns}, where="study.toml") == SCHEMA


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"classes": ["one"]}, "two or more"),
        ({"columns": {}}, "at least one"),
        ({"columns": {"age": "numbers"}}, "columns in study.toml is"),
        ({"columns": {"outcome": "number"}}, "more than once"),
        ({"colums": {}}, "did you mean columns"),
        ({"label": 3}, "the name of a column"),
        ({"label": None}, "the name of a column"),
        ({"missing": ["-9", "f"]}, "'f' is a value of a column"),
        ({"missing": ["well"]}, "'well' is a value of a column"),
        ({"ranges": {"age": [0, 120]}}, "for each number is meant: 'age', 'dose'"),
        ({"ranges": {"age": [0, 120], "sex": [0, 1], "dose": [0, 1]}}, "for each number is meant"),
        ({"ranges": {"age": [120, 0], "dose": [0, 1]}}, "for each number is meant"),
        ({"ranges": {"age": [0, float("inf")], "dose": [0, 1]}}, "ranges"),
        ({"ranges": {"age": 3, "dose": [0, 1]}}, "ranges"),
    ],
)
def test_a_wrong_schema_is_named(change: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        from_plain(Schema, {**to_plain(SCHEMA), **change}, where="study.toml")


@pytest.mark.parametrize(
    ("text", "number"),
    [("1", 1.0), ("-2.50", -2.5), ("7e1", 70.0), ("inf", None), ("nan", None), ("1_0", None), ("", None)],
)
def test_what_is_a_number(text: str, number: float | None) -> None:
    assert number_in(text) == number
