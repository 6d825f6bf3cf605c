"""`pate-fed hospital leave`: withdraw from a study, and what that cannot take back."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pate_fed.cli.parser import add_command, add_option, print_lines
from pate_fed.cli.state_dirs import STATE_DIR_HELP, identity_of, settings_of, state_dir_of
from pate_fed.disk import read_json
from pate_fed.errors import InputError
from pate_fed.format import counted, delta_text, epsilon_text, printable
from pate_fed.structure import to_plain

if TYPE_CHECKING:
    from clients.leave import Given
    from clients.site_files import LocalSettings
    from pate_fed.kinds.terms import Terms

_KEPT = (
    "Labels that were released with this hospital's {given} in them stay released.",
    "A student that learnt from them stays as it is, and so does every copy of it.",
    "What was spent of ε stays spent, at this hospital's account too.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Most:
    """The ε that the hospital's answers cost at most, at δ; None: without a bound."""

    delta: float | None
    public: float | None
    coordinator: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Statement:
    """What a hospital that leaves states, and signs: what it gave, and what cannot be taken back."""

    hospital: str
    left: str
    study: str | None
    terms_digest: str | None
    queries_answered: int
    messages: tuple[Mapping[str, Any], ...]
    epsilon_at_most: _Most
    cannot_be_taken_back: tuple[str, ...]
    given: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Signed:
    """The file of a statement."""

    statement: _Statement
    signature: str | None


def add_leave_action(actions: argparse._SubParsersAction[Any]) -> None:
    """Register `hospital leave`."""
    leave = add_command(
        actions,
        "leave",
        "withdraw from a study: answer nothing any more",
        description="Withdraws this hospital from a study. It answers nothing any more, also where it runs "
        "now. Its teachers, its copy of the pool and its kept answers are erased. A signed statement "
        "says what was given. It cannot be undone, and cannot take back what was given.",
    )
    leave.add_argument("state_dir", metavar="STATE_DIR|STUDY", help=STATE_DIR_HELP)
    add_option(
        leave, "--dir DIR", "the folder of its keys, to sign the statement (default: as the hospital ran)"
    )
    add_option(leave, "--yes", "leave without being asked")
    leave.set_defaults(run=_leave)


def _leave(arguments: argparse.Namespace) -> int:
    from clients.leave import STATEMENT_FILE, erase, has_left

    state_dir = state_dir_of(arguments.state_dir)
    settings = settings_of(state_dir)
    agreed = _agreed(state_dir)
    if not has_left(state_dir):
        _ask(settings.hospital, agreed, yes=arguments.yes)
    _mark(state_dir)
    try:
        erased = erase(state_dir)
    except OSError as error:
        raise InputError(f"{state_dir}: not all could be erased ({error.strerror}); do it again") from error
    if erased:
        print_lines([f"erased: {', '.join(erased)}"])
    path = state_dir / STATEMENT_FILE
    if not path.exists():
        identity = identity_of(state_dir, arguments.dir)
        try:
            path = _state(state_dir, settings, identity)
        except OSError as error:
            raise InputError(
                f"{state_dir}: left and erased, but without a statement ({error.strerror}); do it again"
            ) from error
    signed = read_json(_Signed, path, what="a statement of `pate-fed hospital leave`")
    print_lines(map(printable, _lines(signed.statement)))
    print(f"keep this statement: {path}")
    return 0


def _mark(state_dir: Path) -> None:
    from clients.leave import mark_left

    try:
        if not mark_left(state_dir):
            print("an answer is still being made: it is thrown away, and erased with the rest")
    except OSError as error:
        raise InputError(f"{state_dir}: cannot be written ({error.strerror}); nothing has changed") from error


def _agreed(state_dir: Path) -> Terms | None:
    """The terms that were agreed to there; None: none were, or they are gone."""
    from clients.state_dir import TERMS_FILE
    from pate_fed.kinds.terms import Terms

    path = state_dir / TERMS_FILE
    try:
        return Terms.from_json(path.read_text("utf-8")) if path.exists() else None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise InputError(f"{state_dir}: the study's terms cannot be read ({reason})") from error


def _ask(hospital: str, agreed: Terms | None, *, yes: bool) -> None:
    study = "a study that it has not agreed to yet" if agreed is None else f"the study {agreed.study!r}"
    print(f"{hospital} leaves {study}: it answers nothing any more, and cannot come back")
    if yes:
        return
    if not sys.stdin.isatty():
        raise InputError("without a terminal nobody can be asked: give --yes to leave")
    if input("leave? Type yes: ").strip().lower() != "yes":
        raise InputError("nothing has changed: leaving wants a yes")


def _state(state_dir: Path, settings: LocalSettings, identity: Path | None) -> Path:
    from clients.leave import given_by, state_leaving
    from clients.site_files import PART

    # Read again: until the mark was there, a hospital that runs could agree to more and answer it.
    agreed, given = _agreed(state_dir), given_by(state_dir)
    statement = _statement(settings.hospital, agreed, given)
    path = state_leaving(state_dir, to_plain(statement), identity)
    if agreed is not None and not statement.cannot_be_taken_back and not settings.data.startswith(PART):
        from clients.account import Account, state_id

        Account(settings.hospital).strike(agreed, state=state_id(state_dir))
    return path


def _statement(hospital: str, agreed: Terms | None, given: Given) -> _Statement:
    answered = given.answered or (given.masked and (agreed is None or agreed.secure_sum))
    assumed = agreed.assumptions().each if agreed is not None and answered else ()
    asks_inputs = agreed is None or agreed.asks.counts_inputs
    queries = given.queries if asks_inputs else 0
    kept = (text.format(given="answers" if agreed is None else agreed.words.kind) for text in _KEPT)
    claimed = (f"That ε is not proven: {each.warning}." for each in assumed)
    words = f"answers to {counted(queries, 'query')}"
    return _Statement(
        hospital=hospital,
        left=datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%d %H:%M:%S"),
        study=None if agreed is None else agreed.study,
        terms_digest=None if agreed is None else agreed.digest,
        queries_answered=queries,
        given=words if agreed is None else agreed.words.given(queries, left=answered),
        messages=given.messages,
        epsilon_at_most=_most(agreed, answered=answered),
        cannot_be_taken_back=(*kept, *claimed) if answered else (),
    )


def _most(terms: Terms | None, *, answered: bool) -> _Most:
    """What the answers under these terms cost at most; without terms nobody knows."""
    from pate_fed.kinds.guarantee import worst_epsilon

    if terms is None:
        return _Most(delta=None, public=None, coordinator=None)
    public, coordinator = None, None
    if not answered:
        public, coordinator = 0.0, 0.0
    elif terms.seed is None:
        public, coordinator = worst_epsilon(terms)
    return _Most(delta=terms.delta, public=public, coordinator=coordinator)


def _lines(statement: _Statement) -> Iterator[str]:
    gave = bool(statement.cannot_be_taken_back)
    nameless = "a study whose terms are gone" if gave else "before it agreed to a study"
    yield f"{statement.hospital} left {statement.study or nameless} on {statement.left}"
    yield f"given: {statement.given}, in {counted(len(statement.messages), 'message')} in all"
    if not gave:
        yield "nothing about its records has left this house"
        return
    yield from _costs(statement.epsilon_at_most)
    yield from statement.cannot_be_taken_back


def _costs(most: _Most) -> Iterator[str]:
    at = "" if most.delta is None else f", at δ={delta_text(most.delta)}"
    for against, epsilon in (("public", most.public), ("coordinator", most.coordinator)):
        shown = "without a bound" if epsilon is None else f"at most {epsilon_text(epsilon)}"
        yield f"ε against the {against}: {shown}{at}"
