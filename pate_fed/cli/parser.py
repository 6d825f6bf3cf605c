"""Command lines: errors in one sentence with the nearest option there is."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from collections.abc import Iterable
from typing import Any, NoReturn

from pate_fed.cli.help import HelpFormatter
from pate_fed.errors import InputError
from pate_fed.structure import nearest

__all__ = ["Parser", "as_typed", "print_lines"]


def print_lines(lines: Iterable[str], *, indent: int = 2) -> None:
    """Print a text's lines; on a terminal they are broken between words, and go on after `indent` columns."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    for line in lines:
        if width and len(line) > width:
            line = textwrap.fill(
                line, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
            )
        print(line, flush=True)


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` whose errors are `InputError`s of one sentence."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As argparse's, without abbreviated options: a study must not depend on which options exist."""
        super().__init__(*args, **{"allow_abbrev": False, "formatter_class": HelpFormatter, **kwargs})

    def error(self, message: str) -> NoReturn:
        """Refuse the command line.

        Raises:
            InputError: always.
        """
        raise InputError(f"{message} ({self.prog} --help lists what there is)")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """As argparse's; what is unknown is refused at once, with the nearest option of this very command.

        Raises:
            InputError: the command line is not one that this parser knows.
        """
        arguments, unknown = super().parse_known_args(args, namespace)
        if unknown:
            given = unknown[0].split("=")[0]
            flags = [flag for action in self._actions for flag in action.option_strings if flag != given]
            hint = nearest(given, flags) or f" ({self.prog} --help lists what there is)"
            raise InputError(f"{unknown[0]}: no such option{hint}")
        return arguments, unknown


def as_typed(message: str, arguments: argparse.Namespace) -> str:
    """A message that begins with a function's PARAMETER=, about the option that it was given with."""
    parameter, equals, rest = message.partition("=")
    name = parameter.removeprefix("num_")
    return f"--{name.replace('_', '-')} {rest}" if equals and hasattr(arguments, name) else message
