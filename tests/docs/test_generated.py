"""Pages that are generated are as `python docs/site/make.py` writes them, and name all that there is."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from make import generated
from reference_files import PROGRAMS

from pate_fed.config.options import study_options

DOCS = Path(__file__).parents[2] / "docs"


def test_every_generated_file_is_current() -> None:
    for path, text in generated():
        shown = path.relative_to(DOCS.parent)
        assert path.exists(), f"{shown} is missing: run python docs/site/make.py"
        assert path.read_text(encoding="utf-8") == text, f"{shown} is old: run python docs/site/make.py"


def _flags(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _flags(below)


def test_the_reference_names_every_option_and_every_key() -> None:
    commands = (DOCS / "reference" / "commands.md").read_text(encoding="utf-8")
    told = set(re.findall(r"--[\w-]+", commands))
    for make in PROGRAMS.values():
        assert set(_flags(make())) - {"-h"} <= told | {"--help"}
    study = (DOCS / "reference" / "study-toml.md").read_text(encoding="utf-8")
    for key, entry in study_options().items():
        assert f"| `{key.split('.')[1]}` (`{entry.setting.flags[0]}`) |" in study


def _commands(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield name
    for action in below:
        for word, inner in action.choices.items():
            yield from _commands(f"{name} {word}", inner)


def test_the_table_of_commands_has_every_command_and_what_it_does() -> None:
    table = (DOCS / "reference" / "commands.md").read_text(encoding="utf-8").split("\n## ")[0]
    rows = dict(re.findall(r"(?m)^\| `([^`]+)` \| (.*) \|$", table))
    there = [each for name, make in PROGRAMS.items() for each in _commands(name, make())]
    assert sorted(rows) == sorted(there) and len(there) > 25 and all(rows.values())


def test_every_key_of_a_file_has_its_meaning() -> None:
    for name in ("study-toml", "policy-toml"):
        rows = re.findall(r"^\| `.*$", (DOCS / "reference" / f"{name}.md").read_text(encoding="utf-8"), re.M)
        assert len(rows) > 15 and not [row for row in rows if row.endswith("|  |")]
