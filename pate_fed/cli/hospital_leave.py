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
from pate_fed.cli.state_dirs import STATE_DIR_HELP, identity_of, settings_of, state_dir_of, terms_files
from pate_fed.disk import read_json
from pate_fed.errors import InputError
from pate_fed.format import delta_text, epsilon_text, printable
from pate_fed.structure import to_plain

if TYPE_CHECKING:
    from clients.leave import Given
    from clients.policy import Agreement
    from clients.site_files import LocalSettings

__all__ = ["add_leave_action"]

_KEPT = (
    "Labels that were released with this hospital's votes in them stay released.",
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
    class_sums: bool = False


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
        path = _state(state_dir, settings, agreed, identity_of(state_dir, arguments.dir))
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


def _agreed(state_dir: Path) -> Agreement | None:
    """The terms that were agreed to there: of votes or of private labels."""
    from pate_fed.identity import read_terms

    for path in terms_files(state_dir):
        if path.exists():
            return read_terms(path.read_text(encoding="utf-8"))
    return None


def _ask(hospital: str, agreed: Agreement | None, *, yes: bool) -> None:
    study = "a study that it has not agreed to yet" if agreed is None else f"the study {agreed.study!r}"
    print(f"{hospital} leaves {study}: it answers nothing any more, and cannot come back")
    if yes:
        return
    if not sys.stdin.isatty():
        raise InputError("without a terminal nobody can be asked: give --yes to leave")
    if input("leave? Type yes: ").strip().lower() != "yes":
        raise InputError("nothing has changed: leaving wants a yes")


def _state(state_dir: Path, settings: LocalSettings, agreed: Agreement | None, identity: Path | None) -> Path:
    from clients.journal import Journal
    from clients.leave import given_by, state_leaving
    from clients.site_files import PART
    from clients.state_dir import LABELS_FOLDER

    folders = [each / "answered" for each in (state_dir, state_dir / LABELS_FOLDER)]
    kept = [Journal(state_dir, answered=folder) for folder in folders if folder.is_dir()]
    claimed = sum(each.answered() for each in kept)
    given = given_by(state_dir, claimed=claimed)
    statement = _statement(settings.hospital, agreed, given)
    path = state_leaving(state_dir, to_plain(statement), identity)
    if agreed is not None and not _answered(agreed, given) and not settings.data.startswith(PART):
        from clients.account import Account, state_id

        Account(settings.hospital).strike(agreed.digest, state=state_id(state_dir))
    return path


def _answered(agreed: Agreement | None, given: Given) -> bool:
    """Whether anything about its records may have left; labels leave as soon as they are agreed to."""
    from pate_fed.protocol.label_terms import LabelTerms

    return given.queries > 0 or isinstance(agreed, LabelTerms)


def _statement(hospital: str, agreed: Agreement | None, given: Given) -> _Statement:
    from pate_fed.protocol.cost import worst_epsilon
    from pate_fed.protocol.label_terms import LabelTerms
    from pate_fed.protocol.terms import Terms

    answered = _answered(agreed, given)
    sums = isinstance(agreed, Terms) and agreed.sums is not None
    public = coordinator = None
    if agreed is not None and agreed.seed is None:
        both = (agreed.spent, agreed.spent) if isinstance(agreed, LabelTerms) else worst_epsilon(agreed)
        public, coordinator = both if answered else (0.0, 0.0)
    delta = None if agreed is None else agreed.delta
    assumed = agreed.assumptions().each if isinstance(agreed, Terms) else ()
    claimed = (f"That ε is not proven: {each.warning}." for each in assumed)
    return _Statement(
        hospital=hospital,
        left=datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%d %H:%M:%S"),
        study=None if agreed is None else agreed.study,
        terms_digest=None if agreed is None else agreed.digest,
        queries_answered=0 if sums else given.queries,
        class_sums=sums and answered,
        messages=given.messages,
        epsilon_at_most=_Most(delta=delta, public=public, coordinator=coordinator),
        cannot_be_taken_back=(*_KEPT, *claimed) if answered else (),
    )


def _lines(statement: _Statement) -> Iterator[str]:
    study = statement.study or "before it agreed to a study"
    yield f"{statement.hospital} left {study} on {statement.left}"
    given = f"answers to {statement.queries_answered} queries"
    if statement.class_sums:
        given = "its class sums, once"
    yield f"given: {given}, in {len(statement.messages)} messages in all"
    if not statement.cannot_be_taken_back:
        yield "nothing about its records has left this house"
        return
    most = statement.epsilon_at_most
    at = "" if most.delta is None else f", at δ={delta_text(most.delta)}"
    for against, epsilon in (("public", most.public), ("coordinator", most.coordinator)):
        shown = "without a bound" if epsilon is None else f"at most {epsilon_text(epsilon)}"
        yield f"ε against the {against}: {shown}{at}"
    yield from statement.cannot_be_taken_back
