"""Command lines: options, their help, and errors in one sentence with the nearest option there is."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from pate_fed.errors import InputError

# Options of a hospital's, which more than one command has.
STATE_DIR = "teachers, answered batches, log (default: in ~/.local/state/pate_fed, by study)"
DRY_RUN = "check the study and its data, show its ε and its messages' sizes, and start nothing"
DECIMAL = "how its CSV files write numbers (default: as can be told from each)"
TEACHERS = "the teachers that it is ready to train; a study that fixes another number is refused"


def program_name(script: str, module: str) -> str:
    """What the user typed to start this process: the console script, or else python -m of the module."""
    return script if Path(sys.argv[0]).name == script else f"python -m {module}"


def print_lines(lines: Iterable[str], *, indent: int = 2) -> None:
    """Print a text's lines; on a terminal they are broken between words, and go on after `indent` columns."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    for line in lines:
        if width and len(line) > width:
            line = textwrap.fill(
                line, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
            )
        print(line, flush=True)


class HelpFormatter(argparse.HelpFormatter):
    """argparse's formatter, with room for the names of commands and no line that ends within a word."""

    def add_argument(self, action: argparse.Action) -> None:
        """As argparse's, which forgets that commands stand further in than options."""
        super().add_argument(action)
        for below in self._iter_indented_subactions(action):
            length = len(self._format_action_invocation(below)) + self._current_indent
            self._action_max_length = max(self._action_max_length, length)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return textwrap.fill(
            " ".join(text.split()),
            width,
            initial_indent=indent,
            subsequent_indent=indent,
            break_on_hyphens=False,
        )


class RawHelpFormatter(HelpFormatter):
    """The same, with the lines of description and epilog as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return textwrap.indent(text, indent)


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` whose errors are `InputError`s of one sentence."""

    def __init__(self, *args: Any, elsewhere: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        """As argparse's, without abbreviated options: a study must not depend on which options exist.

        `elsewhere` are options of other commands, each with what this command has instead.
        """
        self._elsewhere = elsewhere or {}
        self._required: list[argparse.Action] = []  # options without which a command line is refused
        super().__init__(*args, **{"allow_abbrev": False, "formatter_class": HelpFormatter, **kwargs})

    def error(self, message: str) -> NoReturn:
        """Refuse the command line by an InputError."""
        raise InputError(f"{message} ({self.prog} --help lists what there is)")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """As argparse's; what is unknown is refused at once, with the nearest option of this very command.

        A misspelt option is named before any that is missing: it may be the very one.
        """
        required = self._required = [
            action for action in self._actions if action.required and action.option_strings
        ]
        self._require(False)
        try:
            arguments, unknown = super().parse_known_args(args, namespace)
        finally:
            self._require(True)
        for action in self._get_positional_actions():
            # argparse fills one that may be left out as soon as an option comes, with nothing.
            open_ = action.nargs == "?" and getattr(arguments, action.dest) is action.default
            if open_ and unknown and not unknown[0].startswith("-"):
                setattr(arguments, action.dest, self._get_value(action, unknown.pop(0)))
        if unknown:
            given = unknown[0].split("=")[0]
            flags = [flag for action in self._actions for flag in action.option_strings if flag != given]
            raise InputError(f"{unknown[0]}: no such option{self._hint(given, flags)}")
        missing = [action.option_strings[0] for action in required if getattr(arguments, action.dest) is None]
        if missing:
            self.error(f"the following arguments are required: {', '.join(missing)}")
        return arguments, unknown

    def _hint(self, given: str, flags: list[str]) -> str:
        others = [flag for flag in self._elsewhere if flag not in flags]
        for near in get_close_matches(given, [*flags, *others], n=1):
            if near in others:
                return f" here; {near} is {self._elsewhere[near]}"
            return f"; did you mean {near}?"
        return f" ({self.prog} --help lists what there is)"

    def format_help(self) -> str:
        """As argparse's; what is required stands without brackets, also while a command line is read."""
        lenient = any(not action.required for action in self._required)
        self._require(True)
        try:
            return super().format_help()
        finally:
            self._require(not lenient)

    def _require(self, required: bool) -> None:
        for action in self._required:
            action.required = required


def as_typed(message: str, arguments: argparse.Namespace) -> str:
    """A message that begins with a function's PARAMETER=, about the option that it was given with."""
    parameter, equals, rest = message.partition("=")
    name = parameter.removeprefix("num_")
    if not equals or not hasattr(arguments, name):
        return message
    return f"--{'num-clients' if name == 'hospitals' else name.replace('_', '-')} {rest}"


def add_command(
    commands: argparse._SubParsersAction[Any], name: str, summary: str, **options: Any
) -> argparse.ArgumentParser:
    """Add a command whose own --help begins with its summary in the list of commands."""
    sentence = f"{summary[0].upper()}{summary[1:]}."
    parser: argparse.ArgumentParser = commands.add_parser(
        name, **{"help": summary, "description": sentence, **options}
    )
    return parser


def add_option(
    parser: argparse._ActionsContainer,
    flag: str,
    text: str,
    *,
    default: object = None,
    aliases: Sequence[str] = (),
    **given: Any,
) -> None:
    """Add the option `--name METAVAR`, with its default in its help; without metavar or choices a switch.

    The metavar N stands for a whole number, X for a number. `aliases` are names that it had before.
    """
    name, _, metavar = flag.partition(" ")
    if metavar:
        given = {"metavar": metavar, "type": {"N": int, "X": float}.get(metavar, str), **given}
    elif "choices" not in given:
        given["action"] = "store_true"
    if default is not None:
        text, given["default"] = f"{text} (default {default})", default
    parser.add_argument(name, *aliases, help=text, **given)


def add_format_option(parser: argparse._ActionsContainer) -> None:
    """Add `--format`."""
    add_option(parser, "--format", "of the output", choices=("text", "json"), default="text")


def add_address_options(parser: argparse._ActionsContainer) -> None:
    """Add the options of every command that hospitals connect to."""
    where = "where hospitals connect to, gRPC (default: of --tls-dir, else 127.0.0.1 and a free port)"
    add_option(parser, "--address HOST[:PORT]", where)
    add_option(parser, "--tls-dir DIR", "the folder of `pate-fed study init`")
    add_option(parser, "--insecure", "no TLS; on this machine only")
    add_option(parser, "--insecure-anywhere", "no TLS, and from other machines")
    wait = "wait so long for all hospitals, then start with those that are there"
    add_option(parser, "--wait SECONDS", wait, default=3600, type=float)
    linger = "stay so long for hospitals that were away when the study ended"
    add_option(parser, "--linger SECONDS", linger, default=600, type=float)
