"""What a check found: ok, a warning or a problem, in one sentence that says how to mend it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pate_fed.errors import PateFedError

__all__ = ["OK", "PROBLEM", "WARNING", "Good", "Row", "look"]

OK, WARNING, PROBLEM = "ok", "warning", "problem"
_ELSEWHERE = "shown on a terminal only, as it may tell of single records: run this without a pipe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Good:
    """A check that found no problem, and what it would warn of.

    `told` stands in a file in place of `said`, where that has figures of a hospital's records.
    """

    said: str
    warnings: tuple[str, ...] = ()
    told: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table. `said` is for the user's own terminal, `told` for a file.

    `exit_code` is what the study's own command would end with, 0 unless this is a problem.
    """

    check: str
    result: str
    said: str
    told: str
    exit_code: int = 0


def look(check: str, ask: Callable[[], Good], *, private: bool = False) -> Iterator[Row]:
    """The rows of one check. What is wrong with `private` things stands in no file."""
    try:
        found = ask()
    except PateFedError as error:
        yield _bad(check, str(error), error.exit_code, private=private)
        return
    except Exception as error:  # a broken machine breaks checks in ways that nobody foresaw
        words = f"the check failed with {type(error).__name__}: {error}"
        yield _bad(check, words, PateFedError.exit_code, private=private)
        return
    for words in found.warnings:
        yield Row(check=check, result=WARNING, said=words, told=_ELSEWHERE if private else words)
    if not found.warnings:
        yield Row(check=check, result=OK, said=found.said, told=found.told or found.said)


def _bad(check: str, words: str, code: int, *, private: bool) -> Row:
    told = _ELSEWHERE if private else words
    return Row(check=check, result=PROBLEM, said=words, told=told, exit_code=code)
