"""Calls whose time is another's: seen by the guard, told on the coordinator's screen."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from pate_fed.flower.clocks import Clocks, clocks_told


def _call(time: str, name: bytes = b"north") -> Any:
    return SimpleNamespace(
        invocation_metadata=lambda: [("flwr-timestamp", time)],
        auth_context=lambda: {"x509_common_name": [name]},
    )


def _at(**ahead: float) -> str:
    return (datetime.now(UTC) + timedelta(**ahead)).isoformat()


@pytest.mark.parametrize(
    ("ahead", "words"),
    [
        ({"days": 1}, "its clock is 24 h 00 min ahead of this machine's"),
        ({"days": -365}, "its clock is 8760 h 00 min behind this machine's"),
        ({"seconds": 30}, "its clock is 30 s ahead of this machine's"),
        ({"minutes": 40}, "its clock is 40 min 00 s ahead of this machine's"),
    ],
)
def test_a_clock_that_flower_refuses_is_told(
    ahead: dict[str, float], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    clocks, time = Clocks(), _at(**ahead)
    for _ in range(3):
        clocks.look(_call(time))
    clocks.look(_call(time, b"east"))
    [(north, sentence), (east, _)] = clocks_told(capsys.readouterr().out.splitlines())
    assert (north, east) == ("north", "east")
    assert words in sentence


@pytest.mark.parametrize("time", ["now", "minutes ago", "", "yesterday", "2026-11-27T10:00:00"])
def test_a_clock_that_does_and_one_that_cannot_be_read_are_not(
    time: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"now": _at(), "minutes ago": _at(minutes=-4)}.get(time, time)
    Clocks().look(_call(given))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "line",
    ["pate_fed: another clock: ", "pate_fed: another clock: north", "pate_fed: another clock: north x", "x"],
)
def test_a_line_that_is_none_says_nothing(line: str) -> None:
    assert list(clocks_told([line])) == []
