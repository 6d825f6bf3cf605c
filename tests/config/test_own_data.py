"""Models that rows of the user's own imply, where a study names none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from pate_fed.config.own_data import imply_models
from pate_fed.data import Dataset
from pate_fed.errors import InputError
from pate_fed.structure.parts import load_part, release_parts


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A module `given_data` with data of both kinds, and which of them were loaded."""
    made, module = list[str](), ModuleType("given_data")

    def load(name: str, shape: tuple[int, ...], kind: str) -> dict[str, Any]:
        made.append(name)
        inputs = np.zeros((40, *shape), kind)
        return {"private_images": inputs, "private_labels": np.arange(40) % 2, "public_images": inputs}

    vars(module)["rows"] = lambda: load("rows", (3,), "f8")
    vars(module)["images"] = lambda: load("images", (8, 8), "u1")
    monkeypatch.setitem(sys.modules, "given_data", module)
    yield made
    release_parts()


@pytest.mark.parametrize(
    ("given", "implied", "loaded"),
    [
        ({}, {"teacher": {"name": "random-forest"}, "student": {"name": "forest"}}, ["rows"]),
        (
            {"teacher": {"trees": 3}, "student": {"name": "gan"}},
            {"teacher": {"trees": 3, "name": "random-forest"}, "student": {"name": "gan"}},
            ["rows"],
        ),
        ({"teacher": {"name": "a:b"}, "student": {"name": "a:c"}}, {}, []),
        ({"data": {"dataset": "given_data:images"}}, {}, ["images"]),
        ({"data": {"dataset": "glyph"}}, {}, []),
        ({"data": {"dataset": "no such"}}, {}, []),  # refused where the study is read
        ({"data": "rows"}, {}, []),
        ({"teacher": "forest", "student": {"name": "forest"}}, {}, []),
    ],
)
def test_only_what_is_open_is_implied_and_only_by_rows(
    given: dict[str, Any], implied: dict[str, Any], loaded: list[str], calls: list[str]
) -> None:
    values = {"data": {"dataset": "given_data:rows"}, **given}
    expected = {**values, **implied}
    imply_models(values)
    assert values == expected and calls == loaded


def test_what_was_loaded_is_held_and_asks_about_what_the_study_says(calls: list[str]) -> None:
    imply_models({"data": {"dataset": "given_data:rows", "num_queries": 7}})
    held = load_part("given_data:rows", "dataset")
    assert isinstance(held, Dataset) and held.num_queries == 7 and calls == ["rows"]
    with pytest.raises(InputError, match="given_data has no row; did you mean rows"):
        imply_models({"data": {"dataset": "given_data:row"}})
