"""Standard streams of any encoding, on a full disk, closed, or without a reader: none ends the work."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pate_fed.runtime.console import any_console, only_tell

LINE = "SUCCESS  ε=1 δ=1e-5 „Köln“ … ≥ 2 × σ █ ☃ \udcfc"


class _Full(io.RawIOBase):
    """A disk without room."""

    def __init__(self, error: type[OSError] = OSError) -> None:
        self.error = error

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        raise self.error(28, "No space left on device")


def _on(
    raw: io.RawIOBase | io.BytesIO, encoding: str, patch: pytest.MonkeyPatch, name: str = "stdout"
) -> None:
    buffer = raw if isinstance(raw, io.BytesIO) else io.BufferedWriter(raw)
    patch.setattr(sys, name, io.TextIOWrapper(buffer, encoding=encoding, write_through=True))


@pytest.mark.parametrize(
    ("encoding", "said"),
    [
        ("ascii", 'SUCCESS  epsilon=1 delta=1e-5 "Koln" ... >= 2 x sigma # \\u2603 \\udcfc\n'),
        ("latin-1", 'SUCCESS  epsilon=1 delta=1e-5 "Köln" ... >= 2 × sigma # \\u2603 \\udcfc\n'),
        ("utf-8", "SUCCESS  ε=1 δ=1e-5 „Köln“ … ≥ 2 × σ █ ☃ \\udcfc\n"),
    ],
)
def test_letters_that_a_terminal_lacks_are_written_in_those_it_has(
    encoding: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = io.BytesIO()
    _on(raw, encoding, monkeypatch)
    before = sys.stdout
    assert any_console(study=True)(_say)() == 0
    assert sys.stdout is before
    assert raw.getvalue().decode(encoding) == said


def _say(code: int = 0) -> int:
    print(LINE, flush=True)
    return code


@pytest.mark.parametrize(
    ("study", "code", "ends"), [(True, 0, 0), (True, 4, 4), (False, 0, 2), (False, 2, 2)]
)
def test_a_full_disk_is_told_and_changes_no_studys_code(
    study: bool, code: int, ends: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = io.BytesIO()
    _on(_Full(), "utf-8", monkeypatch)
    _on(told, "ascii", monkeypatch, "stderr")
    assert any_console(study=study)(_say)(code) == ends
    word = b"warning" if study else b"error"
    assert told.getvalue() == word + b": standard output cannot be written (No space left on device)\n"


def test_a_reader_that_leaves_ends_no_study(monkeypatch: pytest.MonkeyPatch) -> None:
    _on(_Full(BrokenPipeError), "utf-8", monkeypatch)
    _on(io.BytesIO(), "utf-8", monkeypatch, "stderr")
    assert any_console(study=True)(_say)(0) == 0
    with pytest.raises(BrokenPipeError):
        any_console(study=False)(_say)(0)


@pytest.mark.parametrize("error", [OSError, BrokenPipeError])
def test_a_command_that_comes_to_run_a_study_ends_as_the_study(
    error: type[OSError], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = io.BytesIO()
    _on(_Full(error), "utf-8", monkeypatch)
    _on(told, "ascii", monkeypatch, "stderr")
    only_tell()  # nothing where nobody asked for it

    def study(code: int) -> int:
        only_tell()
        return any_console(study=True)(_say)(code)

    assert [any_console(study=False)(study)(code) for code in (0, 4)] == [0, 4]
    assert told.getvalue().startswith(b"warning: standard output cannot be written")


ROOT = str(Path(__file__).resolve().parents[2])
PLAN = "plan --epsilon 20 --teachers 5 --classes 2 --max-queries 3 --aggregator gnmax"  # little to search


@pytest.mark.parametrize(
    ("command", "code", "err"),
    [
        (f"{PLAN} > /dev/full", 2, b"error: standard output cannot be written"),
        (f"{PLAN} <&- >&- 2>&-", 0, b""),
        (f"{PLAN} | true", 0, b""),
        ("plan --help", 0, b""),
    ],
)
def test_a_command_ends_without_a_traceback_wherever_it_writes(command: str, code: int, err: bytes) -> None:
    if "/dev/full" in command and not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    done = subprocess.run(
        ["sh", "-c", f'"$0" -m pate_fed.cli {command}', sys.executable],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": ROOT, "PYTHONIOENCODING": "ascii"},
        timeout=60,
        check=False,
    )
    assert done.returncode == code and err in done.stderr, done.stderr
    assert b"Traceback" not in done.stderr and b"lost sys.stderr" not in done.stderr


def test_a_name_that_cannot_be_read_is_refused_with_what_to_do(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/K\xf6ln"
    os.mkdir(folder)
    done = subprocess.run(
        [sys.executable, "-m", "pate_fed.cli", "plan", "--epsilon", "1"],
        capture_output=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": ROOT, "PYTHONUTF8": "1"},
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert b"K\\udcf6ln: the name is not in the encoding that Python reads names in here" in done.stderr
