"""A study's settings as options of a command line."""

from __future__ import annotations

import argparse
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from pate_fed.config.backend import INLINE
from pate_fed.config.data import imply_models
from pate_fed.config.study import Study, load_study, study_from_dict
from pate_fed.data import DATASETS
from pate_fed.errors import InputError
from pate_fed.structure import DeclaredField, SettingError, entries

_PLAIN = ("gnmax", "lnmax")  # every query is answered
_AT_ONCE = ("encoder-head", "forest")  # students without passes over the data
_FETCHED = tuple(name for name in DATASETS if name != "glyph")
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


def study_options() -> dict[str, DeclaredField]:
    """Every setting of a study that has an option, by its key of `study.toml`."""
    top = entries(Study)
    found = {f"{section.name}.{each.name}": each for section in top for each in _settings(section.hint)}
    found |= {f"study.{each.name}": each for each in top}
    return {key: entry for key, entry in found.items() if entry.setting.flag is not None}


def _settings(section: Any) -> tuple[DeclaredField, ...]:
    return entries(section) if isinstance(section, type) and is_dataclass(section) else ()


def add_study_options(parser: argparse.ArgumentParser) -> None:
    """Every option of a study, in groups, and `--config`."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    for key, entry in study_options().items():
        section = key.split(".")[0]
        if section not in groups:
            groups[section] = parser.add_argument_group(_TITLES[section])
        kind: dict[str, Any] = {"metavar": _metavar(key, entry)}
        if bool in entry.kinds:
            kind = {"action": "store_true", "default": None}
        groups[section].add_argument(*entry.setting.flags, dest=_dest(key), help=_help(entry), **kind)
    groups["study"].add_argument(
        "--config", metavar="FILE", help="a study.toml; options given here take precedence"
    )


def study_from_arguments(arguments: argparse.Namespace) -> Study:
    """The resolved study of `--config` and the options, which take precedence, for a simulation.

    A data set of the user's own is loaded where no models are named: its rows need others than images.

    Raises:
        InputError: a value that is not what its option wants, settings that do not go together, parties
            without data, or an option that would have no effect.
    """
    values = load_study(Path(arguments.config)) if arguments.config else {}
    typed = {}
    for key, entry in study_options().items():
        given = getattr(arguments, _dest(key))
        if given is None:
            continue
        section, name = key.split(".")
        table = values.setdefault(section, {})
        if isinstance(table, dict):
            table[name] = entry.from_text(given) if isinstance(given, str) and given else given
        typed[key] = given
    try:
        imply_models(values)
        given_study = study_from_dict(values, where=arguments.config or "study.toml")
        given_study.require_private()
        study = given_study.resolve()
    except SettingError as error:
        if error.path in typed:
            raise InputError(f"{_as_typed(error.flag, typed[error.path])}: {error.wanted}") from error
        raise
    by_auto = given_study.aggregation.open or bool(given_study.reason)
    _refuse_idle(arguments, study, by_auto=by_auto, one_process=given_study.engine.backend == INLINE)
    return study


def _refuse_idle(arguments: argparse.Namespace, study: Study, *, by_auto: bool, one_process: bool) -> None:
    """An option that was typed and would be ignored; a resolved study.toml may name it all the same.

    With `one_process` the user asked for it; where auto takes it a share of a GPU is no mistake.
    """
    aggregator, student = study.aggregation.aggregator, study.student.name
    plain = f"--aggregator {aggregator} answers every query and has no threshold"
    sums, own = not study.aggregation.votes, study.aggregation.kind
    none = f"with --aggregator {aggregator} nothing is voted on: sums are released once, for the whole pool"
    none = none if own is None else f"with --kind {own} nothing is voted on"
    noisy = "with --noise-at hospitals the noise is in the totals already"
    dataset = study.data.dataset
    here = "--backend inline is one process, which has the whole device"
    for flag, dest, idle, why in (
        ("--student", "student__name", own is not None, none),
        ("--as-published", "student__as_published", own is not None, none),
        ("--threshold", "aggregation__threshold", sums, none),
        ("--sigma1", "aggregation__sigma1", sums, none),
        ("--labels", "queries__labels", sums, none),
        ("--max-queries", "queries__max_queries", sums, none),
        ("--query-strategy", "queries__strategy", sums, none),
        ("--rounds", "queries__rounds", sums, none),
        ("--teacher", "teacher__name", sums, none),
        # Where auto took sums the reason tells what becomes of the teachers that it reckoned with.
        ("--teachers-per-client", "parties__teachers_per_client", sums and not by_auto, none),
        ("--threshold", "aggregation__threshold", aggregator in _PLAIN, plain),
        ("--sigma1", "aggregation__sigma1", aggregator in _PLAIN, plain),
        ("--sigma1", "aggregation__sigma1", study.secrecy.at_hospitals, noisy),
        ("--partition", "parties__partition", study.data.from_files, "every party brings its own files"),
        ("--student-epochs", "student__epochs", student in _AT_ONCE, f"--student {student} learns at once"),
        ("--download", "data__download", dataset not in _FETCHED, f"nothing of {dataset} is fetched"),
        ("--gpus-per-client", "engine__gpus_per_client", one_process, here),
    ):
        given = getattr(arguments, dest)
        if given is not None and idle:
            raise InputError(f"{_as_typed(flag, given)} would have no effect: {why}; leave it out")


def _as_typed(flag: str | None, given: Any) -> str:
    return f"{flag}" if given is True else f"{flag} {given}"


def _help(entry: DeclaredField) -> str:
    choices, default = entry.setting.choices, entry.default
    text = entry.setting.help + (f": {', '.join(choices)}" if choices else "")
    text += ", or module:attribute of your own" if entry.setting.part else ""
    if default is not None and not isinstance(default, bool):
        text += f" (default {default})"
    return text.replace("%", "%%")


def _metavar(key: str, entry: DeclaredField) -> str:
    if entry.setting.choices:
        return "NAME"
    if int in entry.kinds:
        return "N"
    if float in entry.kinds:
        return "X"
    return "DIR" if key.endswith("_dir") else key.split(".")[1].upper()


def _dest(key: str) -> str:
    return key.replace(".", "__")
