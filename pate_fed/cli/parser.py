"""Command lines: errors in one sentence with the nearest option there is."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from pate_fed.cli.help import HelpFormatter
from pate_fed.errors import InputError

__all__ = ["Parser", "check_security", "print_lines"]


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

    def parse_all(self, argv: Sequence[str] | None = None) -> argparse.Namespace:
        """The arguments; anything unknown is refused with the nearest option there is.

        Raises:
            InputError: the command line is not one that this parser knows.
        """
        arguments, unknown = self.parse_known_args(sys.argv[1:] if argv is None else argv)
        if unknown:
            near = get_close_matches(unknown[0].split("=")[0], _flags(self), n=1, cutoff=0.6)
            hint = f"; did you mean {near[0]}?" if near else f" ({self.prog} --help lists what there is)"
            raise InputError(f"{unknown[0]}: no such option{hint}")
        return arguments


def _flags(parser: argparse.ArgumentParser) -> list[str]:
    """All options of a parser and of the commands below it."""
    flags: list[str] = []
    for action in parser._actions:  # argparse has no public list of them
        flags += action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                flags += _flags(below)
    return flags


def check_security(arguments: argparse.Namespace, host: str, *, where: str, keys: str) -> None:
    """Hold --tls-dir, --insecure and --insecure-anywhere to each other and to `host`.

    `where` names the option that the host came with, `keys` what belongs into --tls-dir.

    Raises:
        InputError: they contradict each other, or votes would cross a network unprotected.
    """
    from pate_fed.flower.processes import is_loopback

    open_ = arguments.insecure or arguments.insecure_anywhere
    if arguments.tls_dir is not None:
        if open_:
            raise InputError("--tls-dir and --insecure: one of the two")
        return
    if arguments.insecure_anywhere and not arguments.insecure:
        raise InputError(
            "--insecure-anywhere: say it twice, as votes are then open to the network: --insecure too"
        )
    if not open_:
        raise InputError(f"give --tls-dir with {keys}, or --insecure on one machine only")
    if not is_loopback(host) and not arguments.insecure_anywhere:
        raise InputError(
            f"--insecure with {where}: votes would cross the network unprotected; use --tls-dir, or add "
            "--insecure-anywhere to say that you mean it"
        )
