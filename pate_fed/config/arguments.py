"""Command lines: errors in one sentence with the nearest option, and a study's settings as options."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn, get_args, get_type_hints

from pate_fed.config.study import OPTIONS, Option, Study, load_study, study_from_dict
from pate_fed.errors import InputError

__all__ = ["Parser", "add_study_options", "check_security", "print_lines", "study_from_arguments"]

_PLAIN = ("gnmax", "lnmax")  # every query is answered
_AT_ONCE = ("encoder-head", "forest")  # students without passes over the data
_TITLES = {
    "parties": "parties",
    "data": "data",
    "teacher": "teachers",
    "aggregation": "the noisy vote",
    "queries": "queries",
    "privacy": "privacy",
    "secrecy": "what the coordinator sees",
    "student": "student",
    "engine": "this machine",
    "study": "the study",
}


def print_lines(lines: Iterable[str]) -> None:
    """A text's lines as they are; on a terminal they are broken between words, not wherever it ends."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    for line in lines:
        if width and len(line) > width:
            line = textwrap.fill(
                line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
            )
        print(line, flush=True)


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` whose errors are `InputError`s of one sentence."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As argparse's, without abbreviated options: a study must not depend on which options exist."""
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

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


def add_study_options(parser: argparse.ArgumentParser) -> None:
    """Every option of a study, in groups, and `--config`."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in OPTIONS:
        section = option.key.split(".")[0]
        if section not in groups:
            groups[section] = parser.add_argument_group(_TITLES[section])
        flags = [option.flag, option.alias] if option.alias else [option.flag]
        text = _help(option)
        if _kinds(option) == (bool,):
            groups[section].add_argument(
                *flags, dest=_dest(option), action="store_true", default=None, help=text
            )
        else:
            groups[section].add_argument(*flags, dest=_dest(option), metavar=_metavar(option), help=text)
    groups["study"].add_argument(
        "--config", metavar="FILE", help="a study.toml; options given here take precedence"
    )


def study_from_arguments(arguments: argparse.Namespace) -> Study:
    """The resolved study of `--config` and the options, which take precedence.

    Raises:
        InputError: a value that is not what its option wants, settings that do not go together, or an option
            that would have no effect.
    """
    values = load_study(Path(arguments.config)) if arguments.config else {}
    for option in OPTIONS:
        given = getattr(arguments, _dest(option))
        if given is None:
            continue
        section, key = option.key.split(".")
        table = values.setdefault(section, {})
        if isinstance(table, dict):
            table[key] = _convert(option, given)
    study = study_from_dict(values).resolve()
    _refuse_idle(arguments, study)
    return study


def _refuse_idle(arguments: argparse.Namespace, study: Study) -> None:
    """An option that was typed and would be ignored; a resolved study.toml may name it all the same."""
    aggregator, student = study.aggregation.aggregator, study.student.name
    plain = f"--aggregator {aggregator} answers every query and has no threshold"
    noisy = "with --noise-at hospitals the noise is in the totals already"
    for flag, dest, idle, why in (
        ("--threshold", "aggregation__threshold", aggregator in _PLAIN, plain),
        ("--sigma1", "aggregation__sigma1", aggregator in _PLAIN, plain),
        ("--sigma1", "aggregation__sigma1", study.secrecy.at_hospitals, noisy),
        ("--partition", "parties__partition", study.data.from_files, "every party brings its own files"),
        ("--student-epochs", "student__epochs", student in _AT_ONCE, f"--student {student} learns at once"),
    ):
        given = getattr(arguments, dest)
        if given is not None and idle:
            raise InputError(f"{flag} {given} would have no effect: {why}; leave it out")


def _help(option: Option) -> str:
    default = _default(option)
    text = option.help + (f": {', '.join(option.choices)}" if option.choices else "")
    if default is not None and not isinstance(default, bool):
        text += f" (default {default})"
    return text.replace("%", "%%")


def _metavar(option: Option) -> str:
    kinds = _kinds(option)
    if option.choices:
        return "NAME"
    if int in kinds:
        return "N"
    if float in kinds:
        return "X"
    return "DIR" if option.key.endswith("_dir") else option.key.split(".")[1].upper()


def _dest(option: Option) -> str:
    return option.key.replace(".", "__")


def _convert(option: Option, given: str | bool) -> object:
    """A command-line value in the type that its key has."""
    kinds = _kinds(option)
    if isinstance(given, bool) or str in kinds:
        return given
    for kind, convert in ((int, int), (float, float)):
        if kind in kinds:
            try:
                return convert(given)
            except ValueError:
                continue
    wanted = "a whole number" if int in kinds else "a number"
    raise InputError(f"{option.flag} {given}: {wanted} is meant")


def _kinds(option: Option) -> tuple[type, ...]:
    section, key = option.key.split(".")
    owner = Study if section == "study" else get_type_hints(Study)[section]
    hint = get_type_hints(owner)[key]
    return get_args(hint) or (hint,)


def _default(option: Option) -> object:
    section, key = option.key.split(".")
    study = Study()
    return getattr(study if section == "study" else getattr(study, section), key)


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
