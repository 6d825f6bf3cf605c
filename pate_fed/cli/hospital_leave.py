"""`pate-fed hospital leave`: withdraw from a study, and what that cannot take back."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pate_fed.cli.parser import add_command, add_option, print_lines
from pate_fed.cli.state_dirs import STATE_DIR_HELP, identity_of, settings_of, state_dir_of, terms_files
from pate_fed.disk import read_json
from pate_fed.errors import InputError
from pate_fed.format import counted, delta_text, epsilon_text, printable
from pate_fed.structure import to_plain

if TYPE_CHECKING:
    from clients.leave import Given
    from clients.site_files import LocalSettings
    from pate_fed.kinds.labels import LabelTerms
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
class _Beside:
    """The study of private labels that was answered in the same state directory; None: its terms are gone."""

    study: str | None
    terms_digest: str | None
    epsilon_at_most: _Most


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
    beside: _Beside | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Agreed:
    """The terms that were agreed to in one state directory: of its study, and of private labels."""

    study: Terms | LabelTerms | None = None
    labels: Terms | LabelTerms | None = None

    def voted(self, given: Given) -> bool:
        """Whether anything of the study's answers may have left."""
        masked = not self.labelled(given) if self.study is None else self.study.secure_sum
        return given.voted or (given.masked and masked)

    def labelled(self, given: Given) -> bool:
        """Whether anything of its labels may have left: they leave as soon as they are agreed to."""
        return given.labelled or self.labels is not None


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
    from clients.leave import STATEMENT_FILE, erase, has_left, has_responded

    state_dir = state_dir_of(arguments.state_dir)
    settings = settings_of(state_dir)
    agreed = _agreed(state_dir)
    if not has_left(state_dir):
        _ask(settings.hospital, agreed, yes=arguments.yes)
    _mark(state_dir)
    responded = has_responded(state_dir)
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
            path = _state(state_dir, settings, identity, responded=responded)
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


def _agreed(state_dir: Path) -> _Agreed:
    from pate_fed.identity import read_terms

    try:
        found = [path.read_text("utf-8") if path.exists() else None for path in terms_files(state_dir)]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise InputError(f"{state_dir}: the study's terms cannot be read ({reason})") from error
    study, labels = (None if text is None else read_terms(text) for text in found)
    return _Agreed(study=study, labels=labels)


def _ask(hospital: str, agreed: _Agreed, *, yes: bool) -> None:
    names = [f"the study {terms.study!r}" for terms in (agreed.study, agreed.labels) if terms is not None]
    study = " and ".join(names) or "a study that it has not agreed to yet"
    print(f"{hospital} leaves {study}: it answers nothing any more, and cannot come back")
    if yes:
        return
    if not sys.stdin.isatty():
        raise InputError("without a terminal nobody can be asked: give --yes to leave")
    if input("leave? Type yes: ").strip().lower() != "yes":
        raise InputError("nothing has changed: leaving wants a yes")


def _state(state_dir: Path, settings: LocalSettings, identity: Path | None, *, responded: bool) -> Path:
    from clients.leave import given_by, state_leaving
    from clients.site_files import PART

    # Read again: until the mark was there, a hospital that runs could agree to more and answer it.
    agreed, given = _agreed(state_dir), given_by(state_dir)
    given = replace(given, labelled=given.labelled or responded)
    path = state_leaving(state_dir, to_plain(_statement(settings.hospital, agreed, given)), identity)
    if agreed.study is not None and not agreed.voted(given) and not settings.data.startswith(PART):
        from clients.account import Account, state_id

        Account(settings.hospital).strike(agreed.study.digest, state=state_id(state_dir))
    return path


def _statement(hospital: str, agreed: _Agreed, given: Given) -> _Statement:
    study, labels = agreed.study, agreed.labels
    voted, labelled = agreed.voted(given), agreed.labelled(given)
    alone = study is None and not voted
    main = labels if alone else study
    assumed = study.assumptions().each if study is not None and voted else ()
    queries = 0 if study is not None and study.words.made_of else given.queries
    gave = "answers" if labelled else "votes" if study is None else study.words.kind
    kept = (text.format(given=gave) for text in _KEPT)
    claimed = (f"That ε is not proven: {each.warning}." for each in assumed)
    return _Statement(
        hospital=hospital,
        left=datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%d %H:%M:%S"),
        study=None if main is None else main.study,
        terms_digest=None if main is None else main.digest,
        queries_answered=queries,
        given=_given(study, queries, voted=voted, labelled=labelled),
        messages=given.messages,
        epsilon_at_most=_most(main, answered=voted or alone),
        cannot_be_taken_back=(*kept, *claimed) if voted or labelled else (),
        beside=_beside(labels) if labelled and not alone else None,
    )


def _beside(labels: Terms | LabelTerms | None) -> _Beside:
    return _Beside(
        study=None if labels is None else labels.study,
        terms_digest=None if labels is None else labels.digest,
        epsilon_at_most=_most(labels, answered=True),
    )


def _most(terms: Terms | LabelTerms | None, *, answered: bool) -> _Most:
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
    if statement.beside is not None:
        yield from _costs(statement.beside.epsilon_at_most, " of its private labels")
    yield from statement.cannot_be_taken_back


def _given(study: Terms | LabelTerms | None, queries: int, *, voted: bool, labelled: bool) -> str:
    """What left, in words: of the study's answers, and about labels."""
    from pate_fed.kinds.labels_words import GIVEN

    given = f"answers to {counted(queries, 'query')}"
    if study is not None:
        given = study.words.given(queries, left=voted)
    if not labelled:
        return given
    return f"{given} and {GIVEN}" if voted and (queries or study is not None) else GIVEN


def _costs(most: _Most, of: str = "") -> Iterator[str]:
    at = "" if most.delta is None else f", at δ={delta_text(most.delta)}"
    for against, epsilon in (("public", most.public), ("coordinator", most.coordinator)):
        shown = "without a bound" if epsilon is None else f"at most {epsilon_text(epsilon)}"
        yield f"ε{of} against the {against}: {shown}{at}"
