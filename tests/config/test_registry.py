"""The registry: what is built in and what is a user's own is found by one call, and choices are its names."""

from __future__ import annotations

import ast
from functools import partial
from pathlib import Path
from typing import Any

import own_parts
import pytest

from pate_fed.config.registry import KINDS, find_part, own_names
from pate_fed.config.sections import AUTO
from pate_fed.config.study import Study
from pate_fed.errors import InputError
from pate_fed.structure import entries

SECTIONS = {entry.name: entry.hint for entry in entries(Study)}


ROOT = Path(__file__).parents[2]
# Where studies are run; below are the rooms of the parts themselves, and papers' tables, which are none.
RUNS = (
    "clients",
    "server",
    *(f"pate_fed/{room}" for room in ("cli", "config", "flower", "protocol", "report")),
)


def _makes(part: Any) -> set[str]:
    """The names of ours that a built-in part is, or that its function calls."""
    part = part.func if isinstance(part, partial) else part
    names = {part.__name__} | {*getattr(getattr(part, "__code__", None), "co_freevars", ())}
    return {name for name in names if name not in ("load", "deal", "make", "name", "scheme")}


def test_nothing_that_runs_a_study_calls_a_built_in_part_but_through_the_registry() -> None:
    built_in = {
        name
        for kind, place in KINDS.items()
        for each in (*place.built_in, *(f"{bare}:1" for bare in place.with_value))
        for name in _makes(find_part(each, kind))
    }
    assert {"load_dataset", "dataset_from_files", "partition", "train_teacher", "train_forest"} <= built_in
    assert {"GNMax", "LNMax", "ConfidentGNMax", "DistributedGNMax", "SharedClassSums"} <= built_in
    assert {"train_student", "fit_sums_student", "choose_order", "build_feature_map"} <= built_in
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.func.id}"
        for room in RUNS
        for path in sorted((ROOT / room).rglob("*.py"))
        if path.name != "registry.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in built_in
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("kind", ["dataset", "teacher", "student", "aggregator", "query strategy"])
def test_the_choices_of_a_setting_are_what_the_registry_has(kind: str) -> None:
    place = KINDS[kind]
    [entry] = [each for each in entries(SECTIONS[place.section]) if each.name == place.key]
    named = {*entry.setting.choices, *entry.setting.also} - {AUTO}
    assert named == set(place.built_in) and entry.setting.part


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_built_in_is_found_as_what_is_one_s_own(kind: str) -> None:
    for name in KINDS[kind].built_in:
        assert callable(find_part(name, kind))
    assert find_part("own_parts:make", kind) is own_parts.make
    with pytest.raises(
        InputError, match="an installed entry point, or module:attribute of your own is meant"
    ):
        find_part("nothing-of-that-name", kind)
    if not KINDS[kind].built_in:
        return
    near = next(iter(KINDS[kind].built_in))
    with pytest.raises(InputError, match=f"did you mean {near}"):
        find_part(near + "x", kind)


def test_an_installed_name_never_takes_a_built_in_one_s_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def offered(kind: str) -> dict[str, str]:
        return dict.fromkeys((*KINDS[kind].built_in, AUTO, "theirs"), "own_parts:make")

    monkeypatch.setattr("pate_fed.config.registry.entry_points", offered)
    monkeypatch.setattr("pate_fed.structure.parts.entry_points", offered)
    for kind, place in KINDS.items():
        for name in place.built_in:
            values: dict[str, Any] = {place.section: {place.key: name}}
            assert own_names(values) == {place.section: {place.key: name}}
            assert find_part(name, kind) is not own_parts.make
        assert own_names({place.section: {place.key: "theirs"}})[place.section][place.key] == "own_parts:make"
        assert find_part("theirs", kind) is own_parts.make
    assert own_names({"aggregation": {"aggregator": AUTO}}) == {"aggregation": {"aggregator": AUTO}}
