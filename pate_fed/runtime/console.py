"""A command's standard streams as they may be, of any encoding, on a full disk, or gone; and its last line.

What is printed tells of the work and is no part of it: a letter that a terminal does not have, or a disk that
is full, changes neither what is done nor a study's exit code.
"""

from __future__ import annotations

import argparse
import codecs
import json
import os
import sys
import threading
import time
import unicodedata
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TextIO, cast

from pate_fed.errors import PateFedError, naming_extras
from pate_fed.runtime.isolation import require_one_installation
from pate_fed.runtime.signals import INTERRUPTED, terminating


def run_study_command(
    parse: Callable[[], argparse.Namespace],
    run: Callable[[argparse.Namespace, threading.Event, float], int],
    *,
    resumes: bool,
) -> int:
    """Parse the command line and run the study; the exit code.

    `run` gets the arguments, the event that asks it to stop, and the `time.perf_counter` of the beginning.
    With `resumes` the command goes on with a run directory that has a ledger already.
    """
    started, stop = time.perf_counter(), threading.Event()
    as_json = begun = False
    try:
        arguments = parse()
        as_json = arguments.format == "json"
        begun = (
            resumes and arguments.run_dir is not None and Path(arguments.run_dir, "ledger.sqlite").exists()
        )
        require_one_installation()
        with terminating(stop), naming_extras("this study"):
            return run(arguments, stop, started)
    except PateFedError as error:
        print(f"error: {error}", file=sys.stderr)
        print(nothing_spent("failed", str(error), as_json=as_json, begun=begun))
        return error.exit_code
    except KeyboardInterrupt:  # before the study began; then `interruptible` hears it
        print(nothing_spent("aborted", "interrupted; nothing was asked", as_json=as_json, begun=begun))
        return INTERRUPTED


_KEYS = (
    "status reason epsilon delta unit labels accuracy accuracy_n accuracy_interval majority "
    "balanced_accuracy ledger_head sealed_by report"
).split()  # as `pate_fed.report.metrics.outcome_json` has them


def nothing_spent(status: str, reason: str, *, as_json: bool, begun: bool = False) -> str:
    """The outcome line of a command that ended before anything was asked; its JSON has every run's keys.

    With `begun` its run directory holds a ledger already, which says what was spent.
    """
    if as_json:
        spent = {"epsilon": None, "labels": None} if begun else {"epsilon": 0.0, "labels": 0}
        values = {**dict.fromkeys(_KEYS), "status": status, "reason": reason, **spent}
        return json.dumps(values, ensure_ascii=False)
    none = "-" if begun else "0"
    return f"{status.upper()}  ε={none} δ=- unit=- labels={none} accuracy=- report=-"


P = ParamSpec("P")

_CUT_SHORT = 2  # as for any full disk
_PLAIN = "pate_fed.plain"
_LETTERS = "α δ ε λ μ ρ σ τ … – — × · ± ≤ ≥ ≠ → █ ▏ ░ │ ─ „ “ ” ß"
_PLAINLY = 'alpha delta epsilon lambda mu rho sigma tau ... - - x * +- <= >= != -> # | . | - " " " ss'
_WORDS = dict(zip(_LETTERS.split(), _PLAINLY.split(), strict=True))


def any_console(*, study: bool) -> Callable[[Callable[P, int]], Callable[P, int]]:
    """Have a command's main function work whatever its standard streams are.

    Letters that an encoding lacks are written in letters that it has. Where standard output cannot be written
    a `study` ends as it ends, with a warning, also where the reader left; of another command, whose output is
    all of its work, the exit code is then 2, and the reader's leaving raises BrokenPipeError.
    """

    def around(main: Callable[P, int]) -> Callable[P, int]:
        @wraps(main)
        def command(*arguments: P.args, **named: P.kwargs) -> int:
            before = sys.stdout, sys.stderr
            out, err = (_Stream(stream, raises=not study) for stream in before)
            sys.stdout, sys.stderr = cast(TextIO, out), cast(TextIO, err)
            try:
                code = main(*arguments, **named)
                out.flush()
                if out.error is None:
                    return code
                kind = "error" if out.raises else "warning"
                print(f"{kind}: standard output cannot be written ({out.error.strerror})", file=sys.stderr)
                return code or (_CUT_SHORT if out.raises else 0)
            finally:
                for stream in (out, err):
                    stream.give_up()
                sys.stdout, sys.stderr = before

        return command

    return around


def only_tell() -> None:
    """From here on what the command prints tells of a study, and is not all of its work."""
    if isinstance(sys.stdout, _Stream):
        sys.stdout.raises = False


class _Stream:
    """A text stream on which no letter raises, and a disk's error is kept instead."""

    def __init__(self, stream: TextIO, *, raises: bool) -> None:
        self._stream, self.raises = stream, raises
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        try:
            text.encode(encoding)
            shown = text
        except UnicodeEncodeError:
            shown = text.encode(encoding, _PLAIN).decode(encoding)
        self._try(lambda: self._stream.write(shown))
        return len(text)

    def writelines(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def give_up(self) -> None:
        """Leave nothing behind that Python, as it ends, could not write either."""
        self.flush()
        if self.error is None:
            return
        try:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
        except (OSError, ValueError):  # no file, as in a notebook
            return

    def _try(self, write: Callable[[], object]) -> None:
        try:
            write()
        except BrokenPipeError as error:
            if self.raises:
                raise
            self.error = self.error or error
        except OSError as error:
            self.error = self.error or error
        except ValueError:  # it was closed, as the reader left
            return

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _plain(error: UnicodeError) -> tuple[str, int]:
    """What stands for letters that an encoding lacks: a Greek letter's name, a letter without its accent."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_spelt, error.object[error.start : error.end])), error.end


def _spelt(letter: str) -> str:
    bare = unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode()
    return _WORDS.get(letter) or bare or letter.encode("ascii", "backslashreplace").decode()


codecs.register_error(_PLAIN, _plain)
