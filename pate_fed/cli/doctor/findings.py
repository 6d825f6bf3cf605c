"""Findings of the doctor's checks: ok, a warning or a problem, in one sentence that says how to mend it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pate_fed.errors import PateFedError

OK, WARNING, PROBLEM = "ok", "warning", "problem"
_WITHHELD = "shown on a terminal only, as it may tell of single records: run this without a pipe"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check that found no problem, and what it warns of.

    `file_text` stands in a file in place of `text`, where that has figures of a hospital's records.
    """

    text: str = ""
    warnings: tuple[str, ...] = ()
    file_text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the table. `text` is for the user's own terminal, `file_text` for a file.

    `exit_code` is what the study's own command would end with, 0 unless this is a problem.
    """

    check: str
    severity: str
    text: str
    file_text: str
    exit_code: int = 0


def run_check(check: str, function: Callable[[], CheckResult], *, private: bool = False) -> Iterator[Finding]:
    """The findings of one check. What is wrong with `private` things stands in no file."""

    def finding(severity: str, text: str, exit_code: int = 0) -> Finding:
        file_text = _WITHHELD if private else text
        return Finding(check=check, severity=severity, text=text, file_text=file_text, exit_code=exit_code)

    try:
        result = function()
    except PateFedError as error:
        yield finding(PROBLEM, str(error), error.exit_code)
        return
    except Exception as error:  # a broken machine breaks checks in ways that nobody foresaw
        text = f"the check failed with {type(error).__name__}: {error}"
        yield finding(PROBLEM, text, PateFedError.exit_code)
        return
    for text in result.warnings:
        yield finding(WARNING, text)
    if not result.warnings:
        yield Finding(check=check, severity=OK, text=result.text, file_text=result.file_text or result.text)
