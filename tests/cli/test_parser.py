"""Help texts of every command, 80 columns wide; a mistyped option is refused with its command's nearest."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator

import pytest

from pate_fed import client, server, simulation
from pate_fed.cli import health
from pate_fed.cli.main import make_parser
from pate_fed.cli.parser import Parser, add_option
from pate_fed.errors import InputError
from pate_fed.kinds.label_dp.clusters import NETWORKS
from pate_fed.kinds.label_dp.methods import CLUSTERERS
from pate_fed.kinds.label_dp.options import METHODS


def _parser() -> Parser:
    parser = Parser(prog="tool")
    commands = parser.add_subparsers()
    commands.add_parser("plan").add_argument("--picture")
    commands.add_parser("hospital").add_argument("--policy")
    init = commands.add_parser("init")
    init.add_argument("--address", required=True)
    init.add_argument("--config", required=True)
    return parser


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["plan", "--pictur", "x"], "--pictur: no such option; did you mean --picture?"),
        (["plan", "--policy", "x"], "--policy: no such option (tool plan --help lists what there is)"),
        (
            ["hospital", "--picture=x"],
            "--picture=x: no such option (tool hospital --help lists what there is)",
        ),
        (["--hel"], "--hel: no such option; did you mean --help?"),
        (["plan", "more"], "more: no such option (tool plan --help"),
        (["init", "--config", "x", "--adress", "h:1"], "--adress: no such option; did you mean --address?"),
        (["init", "--config", "x"], "the following arguments are required: --address (tool init --help"),
        (["init"], "required: --address, --config"),
    ],
)
def test_only_the_options_of_the_given_command_are_suggested(line: list[str], words: str) -> None:
    with pytest.raises(InputError) as caught:
        _parser().parse_args(line)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("script", "module", "make"),
    [
        ("pate-fed-coordinator", "python -m pate_fed.server", server.make_parser),
        ("pate-fed-hospital", "python -m pate_fed.client", client.make_parser),
        ("pate-fed-health", "python -m pate_fed.cli.health", health.make_parser),
    ],
)
def test_an_error_names_the_command_that_was_typed(
    script: str, module: str, make: Callable[[], Parser], monkeypatch: pytest.MonkeyPatch
) -> None:
    for typed, named in ((f"/opt/bin/{script}", script), ("/src/pate_fed/there.py", module)):
        monkeypatch.setattr("sys.argv", [typed])
        with pytest.raises(InputError, match=re.escape(f" ({named} --help lists what there is)")):
            make().parse_args(["--zzzz"])


def test_a_coordinator_tells_where_a_study_s_settings_stand() -> None:
    for typed, words in (
        ("--sigmma2", "no such option here; --sigma2 is the key aggregation.sigma2 of --config's study.toml"),
        ("--epsilon", "no such option here; --epsilon is the key privacy.epsilon of --config's study.toml"),
        ("--quer", "no such option; did you mean --quiet?"),
    ):
        with pytest.raises(InputError) as told:
            server.make_parser().parse_args([typed, "3"])
        assert str(told.value) == f"{typed}: {words}"


def test_what_is_known_is_read() -> None:
    assert _parser().parse_args(["plan", "--picture", "x"]).picture == "x"
    parser = _parser()
    for _ in range(2):  # required options stay so
        assert parser.parse_args(["init", "--config", "x", "--address", "h"]).address == "h"
        with pytest.raises(InputError, match="required: --config"):
            parser.parse_args(["init", "--address", "h"])
    with pytest.raises(InputError, match="expected one argument"):
        _parser().parse_args(["plan", "--picture"])


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


@pytest.mark.parametrize("name", PARSERS)
def test_help_begins_with_what_the_command_does(name: str) -> None:
    text = PARSERS[name].description
    assert text is not None and text[0].isupper() and text.endswith(".")


def test_all_commands_speak_one_language() -> None:
    """Parties, the run's folder, passes of the student: one name first, names of before are aliases."""
    first = {"--hospitals": "--num-clients", "--num-hospitals": "--num-clients", "--out": "--run-dir"}
    first |= {"--num-supernodes": "--num-clients", "--epochs": "--student-epochs"}
    parsers = [*PARSERS.values(), simulation.make_parser(), server.make_parser(), client.make_parser()]
    options = [action.option_strings for parser in parsers for action in parser._actions]
    aliased = [names for names in options if len(names) > 1 and names[0] != "-h"]
    assert len(aliased) > 5
    assert all(first[alias] == names[0] for names in aliased for alias in names[1:])
    alone = {name for names in options for name in names[:1]} & set(first)
    assert alone <= {"--out"}  # which is a file in `study new` and `study admit`
    typed = [action for parser in parsers for action in parser._actions if action.type in (int, float)]
    assert {action.metavar for action in typed} <= {"N", "X", "K", "SECONDS"}


def test_label_dp_lists_its_choices() -> None:
    listed = " ".join(PARSERS["pate-fed label-dp"].format_help().split())
    for names in (METHODS, NETWORKS, CLUSTERERS):
        assert ", ".join(names) in listed or all(f" {name}" in listed for name in names), names


def test_an_options_metavar_is_its_type_and_its_default_is_told() -> None:
    parser = argparse.ArgumentParser()
    add_option(parser, "--count N", "how many", default=3)
    add_option(parser, "--share X", "how much")
    add_option(parser, "--all", "every one")
    add_option(parser, "--unit", "which", choices=("a", "b"), default="a")
    found = parser.parse_args(["--share", "2", "--all"])
    assert vars(found) == {"count": 3, "share": 2.0, "all": True, "unit": "a"}
    assert "how many (default 3)" in parser.format_help() and "which (default a)" in parser.format_help()


def test_a_required_option_stands_without_brackets_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    for line in (["init", "--help"], ["init", "--config", "x", "--help"]):
        with pytest.raises(SystemExit):
            _parser().parse_args(line)
        assert "[-h] --address ADDRESS --config CONFIG" in capsys.readouterr().out
    with pytest.raises(InputError, match="required: --address, --config"):
        _parser().parse_args(["init"])
