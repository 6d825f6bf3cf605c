"""The page of rooms: measured in the imports, and what a room's first lines name is there."""

from __future__ import annotations

import ast
import re

import pytest
from rooms_page import ROOT, _drawn, _modules, _path, _room, arrows, floors


def test_the_house_has_at_most_21_rooms_on_at_most_10_floors() -> None:
    graph = arrows()
    stories = floors(graph)
    assert len(graph) <= 21 and len(stories) <= 10
    assert sorted(room for story in stories for room in story) == sorted(graph)
    floor = {room: number for number, story in enumerate(stories) for room in story}
    assert not [(room, other) for room in graph for other in graph[room] if floor[other] >= floor[room]]


def test_a_room_stands_above_what_it_imports_and_a_circle_shares_its_floor() -> None:
    graph = {"top": {"left", "low"}, "left": {"right"}, "right": {"left", "low"}, "low": set[str]()}
    assert floors(graph) == [["low"], ["left", "right"], ["top"]]
    assert set(_drawn(graph)) == {("top", "left"), ("left", "right"), ("right", "left"), ("right", "low")}


@pytest.mark.parametrize("room", sorted({_room(module) for module in _modules()}))
def test_a_room_says_what_is_in_it_and_where_to_begin(room: str) -> None:
    folder = ROOT / _path(room)
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    assert "Begin " in text and len(text.splitlines()) <= 20
    missing = [name for name in re.findall(r"`(\w+\.py)`", text) if not (folder / name).is_file()]
    assert not missing, f"{_path(room)}__init__.py names {missing}, which is not there"
