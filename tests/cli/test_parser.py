"""A mistyped option is refused with the nearest of the very command that was given."""

from __future__ import annotations

import pytest

from pate_fed.cli.parser import Parser
from pate_fed.errors import InputError


def _parser() -> Parser:
    parser = Parser(prog="tool")
    commands = parser.add_subparsers()
    commands.add_parser("plan").add_argument("--picture")
    commands.add_parser("hospital").add_argument("--policy")
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
    ],
)
def test_only_the_options_of_the_given_command_are_suggested(line: list[str], words: str) -> None:
    with pytest.raises(InputError) as caught:
        _parser().parse_args(line)
    assert words in str(caught.value)


def test_what_is_known_is_read() -> None:
    assert _parser().parse_args(["plan", "--picture", "x"]).picture == "x"
    with pytest.raises(InputError, match="expected one argument"):
        _parser().parse_args(["plan", "--picture"])
