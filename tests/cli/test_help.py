"""Help texts: of every command, as a stranger reads them in a terminal 80 columns wide."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest

from pate_fed.cli.help import add_option
from pate_fed.cli.main import make_parser


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _parsers(below)


PARSERS = {parser.prog: parser for parser in _parsers(make_parser())}


@pytest.mark.parametrize("name", PARSERS)
def test_every_option_is_explained_within_80_columns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    parser = PARSERS[name]
    lines = parser.format_help().splitlines()
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if line.endswith("-")]  # no word is cut in two
    asked = [action for action in parser._actions if not isinstance(action, argparse._SubParsersAction)]
    assert not [action.dest for action in asked if not action.help]


@pytest.mark.parametrize("name", [name for name in PARSERS if not name.startswith("pate-fed label-dp")])
def test_help_begins_with_what_the_command_does(name: str) -> None:
    text = PARSERS[name].description
    assert text is not None and text[0].isupper() and text.endswith(".")


def test_an_options_metavar_is_its_type_and_its_default_is_told() -> None:
    parser = argparse.ArgumentParser()
    add_option(parser, "--count N", "how many", default=3)
    add_option(parser, "--share X", "how much")
    add_option(parser, "--all", "every one")
    add_option(parser, "--unit", "which", choices=("a", "b"), default="a")
    found = parser.parse_args(["--share", "2", "--all"])
    assert vars(found) == {"count": 3, "share": 2.0, "all": True, "unit": "a"}
    assert "how many (default 3)" in parser.format_help() and "which (default a)" in parser.format_help()
