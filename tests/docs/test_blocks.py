"""Every block of code in the documentation is run by a test, or says why it is not.

A block of commands is run, in its page's order, by the slow test below; examples with >>> are run by doctest,
settings are read. Anything else, and any of these where it cannot be, has a comment on the line before, or
below the page's title for all of its blocks: `<!-- not run: REASON -->` or `<!-- run by tests/FILE.py -->`.
Such a test reads the page, or has every command with its options. A block of the language `text` is no code.
"""

from __future__ import annotations

import argparse
import doctest
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from reference_files import PROGRAMS

from clients.policy import Policy
from pate_fed.config.study import Study, study_from_dict
from pate_fed.config.template import study_template
from pate_fed.data.own_columns import OwnColumns
from pate_fed.structure import entries, from_plain

ROOT = Path(__file__).parents[2]
MADE = ROOT / "docs" / "reference"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "deploy/README.md")),
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if page.parent != MADE),
]
MARK = re.compile(
    r"<!-- (?:not run: (?P<reason>[^>]{10,})|run by (?P<tests>tests/[^>]+)|(?P<ci>test command)) -->"
)
BLOCK = re.compile(r"(?ms)(?:^(<!--[^\n]*-->)\n)?^```(\w*)\n(.*?)^```$")
PARSERS = {name: make() for name, make in PROGRAMS.items()}
MODULES = {
    "pate_fed.simulation": "flower-simulation",
    "pate_fed.server": "pate-fed-coordinator",
    "pate_fed.client": "pate-fed-hospital",
    "pate_fed.cli": "pate-fed",
    "pate_fed.cli.health": "pate-fed-health",
}


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block; `mark` is its own comment, or its page's."""

    page: Path
    mark: str
    language: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}: {self.text.splitlines()[0]}"

    @property
    def examples(self) -> bool:
        return self.language == "python" and ">>> " in self.text


def _blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    whole = re.match(r"# [^\n]+\n\n?(<!--[^\n]*-->)\n(?!```)", text)
    for mark, language, body in BLOCK.findall(text):
        own = whole[1] if whole and MARK.fullmatch(whole[1]) else ""
        yield Block(page, mark or own, language, body)


BLOCKS = [block for page in PAGES for block in _blocks(page)]


def test_every_block_is_run_or_says_why_not() -> None:
    for block in BLOCKS:
        if block.mark:
            found = MARK.fullmatch(block.mark)
            assert found, f"{block.name}: {block.mark} is no mark (see this test's first lines)"
            for path in (found["tests"] or "").split(", "):
                assert not path or (ROOT / path).is_file(), f"{block.name}: there is no {path}"
        else:
            known = block.language in ("", "text", "toml") or block.examples
            assert known, f"{block.name}: neither run nor marked (see this test's first lines)"


def _read_by(tests: str, page: Path) -> bool:
    """Whether the source of tests reads a page."""
    folders = page.relative_to(ROOT).parts
    named = " / ".join(f'"{part}"' for part in folders) in tests
    return named and ("read_text" in tests or "doctest.testfile" in tests)


def _not_in(tests: str, block: Block) -> set[str]:
    """Words and options of a block's commands that the source of tests has not."""
    missing = set()
    for program, *words in _commands(block.text):
        parser, named = PARSERS[program], list[str]()
        for word in words:
            choices = next(
                (a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction)), None
            )
            if choices is not None and word in choices:
                parser = choices[word]
                named.append(f'"{word}"')
            elif word.startswith("--"):
                named.append(word.split("=")[0])
        missing |= {f"{program}: {word}" for word in named if word not in tests}
    return missing


@pytest.mark.parametrize(
    "block", [each for each in BLOCKS if "run by" in each.mark], ids=lambda block: block.name
)
def test_the_tests_that_a_block_names_run_it(block: Block) -> None:
    found = MARK.fullmatch(block.mark)
    assert found is not None
    tests = "".join((ROOT / path).read_text(encoding="utf-8") for path in found["tests"].split(", "))
    if not _read_by(tests, block.page):
        assert list(_commands(block.text)), f"{block.name}: {found['tests']} does not read this page"
        assert not (missing := _not_in(tests, block)), f"{found['tests']} has no {missing}"


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(each.examples and not each.mark for each in _blocks(page))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_examples_print_what_they_say(page: Path) -> None:
    found = doctest.testfile(str(page), module_relative=False, optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    assert found.failed == 0 and found.attempted > 3


@pytest.mark.parametrize(
    "block",
    [each for each in BLOCKS if each.language == "toml"],
    ids=lambda block: block.name,
)
def test_settings_are_those_of_a_study_a_policy_or_a_file(block: Block) -> None:
    values = tomllib.loads(block.text)
    if set(values) <= {"study", *(entry.name for entry in entries(Study))}:
        study_from_dict(values, where=block.name).resolve()
    elif set(values) <= {entry.name for entry in entries(OwnColumns)}:
        from_plain(OwnColumns, values, where=block.name)
    else:
        from_plain(Policy, values, where=block.name)


def _commands(text: str) -> Iterator[list[str]]:
    """The command lines of ours in a block, as words."""
    for line in re.sub(r"\\\n", " ", text).splitlines():
        words = re.sub(r"^(hospital|coordinator)\$ +", "", line)
        for command in re.split(r" && ", words):
            if not re.match(r"(time )?(\S*python -m |(\S*/)?(flower-simulation|pate-fed))", command):
                continue
            found = shlex.split(command, comments=True)
            if found[:1] == ["time"]:
                found = found[1:]
            if found and found[0].endswith("python") and found[1:2] == ["-m"] and found[2] in MODULES:
                found = [MODULES[found[2]], *found[3:]]
            if found and Path(found[0]).name in PROGRAMS:
                yield [Path(found[0]).name, *found[1:]]


def test_every_command_line_is_one_that_its_program_knows() -> None:
    seen = 0
    for block in BLOCKS:
        if block.language == "":
            for program, *options in _commands(block.text):
                PARSERS[program].parse_args(options)
                seen += 1
    assert seen > 40


def _known(program: str, words: list[str]) -> str:
    """What of a command that is mentioned there is not; empty where all of it is there."""
    parser: argparse.ArgumentParser = PARSERS[program]
    for word in words:
        below = next((each for each in parser._actions if isinstance(each, argparse._SubParsersAction)), None)
        if below is not None and not word.startswith("-"):
            if word not in below.choices:
                return "" if "…" in word or word.isupper() else word
            parser = below.choices[word]
        elif word.startswith("--") and word.split("=")[0] not in parser._option_string_actions:
            return word
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_the_text_are_there(page: Path) -> None:
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    for span in re.findall(r"`((?:flower-simulation|pate-fed[\w-]*) [^`]+)`", text):
        program, *words = span.replace("\\|", " ").replace("…", " … ").split()
        if program in PARSERS:
            assert not (missing := _known(program, words)), f"`{span}`: there is no {missing}"


RUN = {page: [each for each in _blocks(page) if not each.mark and not each.language] for page in PAGES}


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if RUN[page]], ids=lambda page: str(page.relative_to(ROOT))
)
def test_the_commands_of_a_page_run_in_its_order(page: Path, tmp_path: Path) -> None:
    """A study.toml of one's own lies in the folder, as the pages take for granted."""
    (tmp_path / "study.toml").write_text(study_template(name="own", num_clients=100), encoding="utf-8")
    folders = (str(Path(sys.executable).parent), os.environ["PATH"])
    for block in RUN[page]:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.text],
            cwd=tmp_path,
            env={**os.environ, "PATH": os.pathsep.join(folders)},
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert done.returncode == 0, f"{block.text}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
