"""One name for one thing in all commands; names that commands had before still work."""

from __future__ import annotations

import argparse

import pytest

from pate_fed import server
from pate_fed.cli.main import make_parser
from pate_fed.cli.parser import as_typed
from pate_fed.kinds.label_dp.options import METHODS

PLAN, LABELS = "plan --epsilon 2", "label-dp --epsilon 1"
STUDY = "study init new --config s.toml --address a:1"


@pytest.mark.parametrize(
    ("command", "name", "earlier", "value"),
    [
        (PLAN, "--num-clients", "--hospitals", "7"),
        (LABELS, "--num-clients", "--hospitals", "7"),
        (LABELS, "--run-dir", "--out", "there"),
        (STUDY, "--num-clients", "--num-hospitals", "7"),
        ("doctor --config s.toml", "--num-clients", "--num-hospitals", "7"),
        ("reproduce scalable-glyph", "--run-dir", "--out", "there"),
        ("", "--num-clients", "--num-hospitals", "7"),
    ],
)
def test_parties_and_results_have_one_name(command: str, name: str, earlier: str, value: str) -> None:
    def parsed(option: str) -> argparse.Namespace:
        if not command:
            return server.make_parser().parse_args(["--config", "s.toml", option, value])
        return make_parser().parse_args([*command.split(), option, value])

    assert parsed(name) == parsed(earlier)
    assert value in map(str, vars(parsed(name)).values())


def test_an_error_names_the_option_by_its_name_of_today() -> None:
    given = make_parser().parse_args([*PLAN.split(), "--hospitals", "300"])
    assert as_typed("num_hospitals=300: too many", given) == "--num-clients 300: too many"


@pytest.mark.parametrize(
    "command", [["ledger", "show", "run"], ["audit"], PLAN.split(), ["predict", "s", "x"]]
)
def test_figures_come_as_json_too(command: list[str]) -> None:
    assert make_parser().parse_args([*command, "--format", "json"]).format == "json"


def test_help_lists_the_methods_of_private_labels(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        make_parser().parse_args(["label-dp", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert ", ".join(METHODS) in said
