"""A study's settings as options of a command line."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import get_args, get_type_hints

from pate_fed.config.study import OPTIONS, Option, Study, load_study, study_from_dict
from pate_fed.errors import InputError

__all__ = ["add_study_options", "study_from_arguments"]

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
