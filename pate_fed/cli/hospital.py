"""`pate-fed hospital`: its actions and options; here also how a hospital leaves a study."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pate_fed.cli.hospital_log import (
    STATE_DIR_HELP,
    add_account_action,
    add_log_action,
    agreed_terms,
    identity_of,
    settings_of,
    state_dir_of,
)
from pate_fed.cli.hospital_predict import add_predict_action, add_student_options
from pate_fed.cli.parser import (
    DECIMAL,
    STATE_DIR,
    TEACHERS,
    Parser,
    add_command,
    add_format_option,
    add_option,
    print_lines,
)
from pate_fed.disk import hold, read_json
from pate_fed.errors import InputError, naming_refusal
from pate_fed.format import counted, delta_text, epsilon_text, printable
from pate_fed.runtime.console import only_tell
from pate_fed.structure import to_plain

if TYPE_CHECKING:
    from clients.leave import Given
    from clients.state_dir import LocalSettings
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
    from clients.leave import STATEMENT_FILE, erase, has_left, mark_left

    state_dir = state_dir_of(arguments.state_dir)
    settings = settings_of(state_dir)
    agreed = agreed_terms(state_dir)
    if not has_left(state_dir):
        _ask(settings.hospital, agreed, yes=arguments.yes)
    with naming_refusal(f"{state_dir}: cannot be written", "; nothing has changed"):
        if not mark_left(state_dir):
            print("an answer is still being made: it is thrown away, and erased with the rest")
    with naming_refusal(f"{state_dir}: not all could be erased", "; do it again"):
        erased = erase(state_dir)
    if erased:
        print_lines([f"erased: {', '.join(erased)}"])
    path = state_dir / STATEMENT_FILE
    if not path.exists():
        identity = identity_of(state_dir, arguments.dir)
        with naming_refusal(f"{state_dir}: left and erased, but without a statement", "; do it again"):
            path = _state(state_dir, settings, identity)
    signed = read_json(_Signed, path, what="a statement of `pate-fed hospital leave`")
    print_lines(map(printable, _lines(signed.statement)))
    print(f"keep this statement: {path}")
    return 0


def add_tidy_action(actions: argparse._SubParsersAction[Any]) -> None:
    """Register `hospital tidy`."""
    tidy = add_command(
        actions,
        "tidy",
        "erase what a study that has ended needs no more",
        description="Erases what a study that ended with success needs no more: teachers, features, kept "
        "answers, keys of masks. The log has a signed line with the digest of each. Journal, account, log, "
        "terms, receipts and what was confirmed stay; so does the student.",
    )
    tidy.add_argument("state_dir", metavar="STATE_DIR|STUDY", help=STATE_DIR_HELP)
    add_option(tidy, "--student", "erase the study's student and public inputs, too")
    add_option(tidy, "--dir DIR", "the folder of its keys, to sign the lines (default: as the hospital ran)")
    tidy.set_defaults(run=_tidy)


def _tidy(arguments: argparse.Namespace) -> int:
    from clients.leave import tidy
    from clients.log import over_since

    state_dir = state_dir_of(arguments.state_dir)
    settings_of(state_dir)
    with hold(state_dir, what="STATE_DIR"):
        agreed = agreed_terms(state_dir)
        if agreed is None or over_since(state_dir, agreed.digest) is None:
            raise InputError(
                f"{state_dir}: its study has not ended with success, and may go on; `pate-fed hospital "
                "leave` withdraws from it, and erases"
            )
        if agreed.asks.once_for_all:
            raise InputError(
                f"{state_dir}: what was answered about private labels serves later studies, too; `pate-fed "
                "hospital leave` withdraws from all of these, and erases"
            )
        if agreed.about.retention:
            print(printable(f"retention, by the terms: {agreed.about.retention}"))
        with naming_refusal(f"{state_dir}: not all could be erased", "; do it again"):
            count, identity = 0, identity_of(state_dir, arguments.dir)
            for name in tidy(state_dir, identity, student=arguments.student):
                count += 1
                print(f"erased: {printable(name)}")
    print(f"{counted(count, 'file')} erased; the log has a line for each: pate-fed hospital log {state_dir}")
    return 0


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
    from clients.state_dir import PART

    # Read again: until the mark was there, a hospital that runs could agree to more and answer it.
    agreed, given = agreed_terms(state_dir), given_by(state_dir)
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
    from pate_fed.kinds.terms import worst_epsilon

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
    most = statement.epsilon_at_most
    at = "" if most.delta is None else f", at δ={delta_text(most.delta)}"
    for against, epsilon in (("public", most.public), ("coordinator", most.coordinator)):
        shown = "without a bound" if epsilon is None else f"at most {epsilon_text(epsilon)}"
        yield f"ε against the {against}: {shown}{at}"
    yield from statement.cannot_be_taken_back


_OFFER = "an admission, a file of terms, or this hospital's own folder of keys"
_DATA = (
    "its records: a CSV, a query (.sql, .fhir), an .npz (x, y), a folder of images by class or of idx files"
)


def add_hospital_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register `hospital`."""
    hospital = add_command(
        commands, "hospital", "at a hospital: its keys, the terms that it accepts, what it gave and spent"
    )
    actions = hospital.add_subparsers(title="actions", required=True, metavar="ACTION")
    request = add_command(actions, "request", "make this hospital's keys, and a request to be admitted")
    add_option(request, "--name NAME", "this hospital's name", required=True)
    request.set_defaults(run=_hospital_request)
    _add_terms(actions)
    check = _add_check(actions)
    rehearse = _add_rehearse(actions)
    accept = add_command(actions, "accept", "read the terms of an admission, and say yes to them")
    _add_admission(accept)
    accept.set_defaults(run=partial(_late, "accept"))
    join = _add_join(actions)
    pages = _add_open(actions)
    add_log_action(actions)
    add_predict_action(actions)
    _add_compare(actions)
    add_account_action(actions)
    add_leave_action(actions)
    add_tidy_action(actions)
    for action in (request, accept, join, pages):
        action.add_argument(
            "--dir", metavar="DIR", default=".", help="the folder of its keys and admission (default: here)"
        )
    copy = "a copy of the public inputs, to compare with (default: one that lies at hand)"
    for action, pool in (
        (check, copy),
        (rehearse, "its copy of the public inputs (default: its own records stand in for them)"),
        (join, "its copy of the public inputs (default: the coordinator sends one)"),
        (pages, copy),
    ):
        if action is not check:
            add_option(action, "--data PATH", _DATA, required=action is not pages)
        add_option(action, "--pool PATH", pool)
        add_option(action, "--decimal", DECIMAL, choices=("point", "comma"))
    for action in (rehearse, accept, join, pages):
        add_option(action, "--policy FILE", "its policy.toml (default: the one beside its keys)")


def _add_terms(actions: argparse._SubParsersAction[Any]) -> None:
    terms = add_command(actions, "terms", "a study in words, before anything is accepted")
    terms.add_argument("offer", metavar="FILE", help=_OFFER)
    add_option(terms, "--pool FILE", "a copy of the public inputs, to look at")
    add_format_option(terms)
    terms.set_defaults(run=partial(_late, "terms"))


def _add_check(actions: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
    check = add_command(
        actions,
        "check",
        "look at its table beside the study, column by column",
        description="Reads this hospital's CSV file by the study's schema and says, column by column, what "
        "is in it and what must be mended. Other names, units and codes are proposed, and with a yes "
        "written into DATA.toml, which all commands read with the file. The file stays as it is; nothing "
        "is sent. Ends with 0 where the file fits, with 2 where something must be mended.",
    )
    check.add_argument("data", metavar="DATA", help="this hospital's CSV file, or a query: .sql, .fhir")
    offer = f"{_OFFER}, or a study.toml (default: its keys' folder, here)"
    add_option(check, "--study FILE", offer)
    joined = "a further file of it, one row a patient, joined by the patient from now on; repeat it for each"
    add_option(check, "--join FILE", joined, action="append")
    lacks = "a column of the study that all of its rows lack; repeat it for each"
    add_option(check, "--missing COLUMN", lacks, action="append")
    add_option(check, "--accept-proposals", "take all proposals without being asked, as scripts do")
    add_format_option(check)
    check.set_defaults(run=partial(_late, "check"))
    return check


def _add_compare(actions: argparse._SubParsersAction[Any]) -> None:
    """Register `hospital compare`."""
    compare = add_command(
        actions,
        "compare",
        "its own model beside the study's student, on its own records",
        description="Trains a model on this hospital's records alone and measures it beside the study's "
        "student, each record by a model that did not see it. Which one is better here is said first. The "
        "figures and a picture stay in the state directory (mode 0600). Nothing is sent.",
    )
    compare.add_argument("state_dir", metavar="STATE_DIR|STUDY", help=STATE_DIR_HELP)
    others = "labelled records that took no part, to measure both on (default: the study's own)"
    compare.add_argument("records", metavar="RECORDS", nargs="?", help=others)
    share = "of the second of two classes: predictive values where it is so frequent, 0 to 1"
    add_option(compare, "--prevalence X", share, type=float)
    point = "of two classes: the operating point whose sensitivity is told, 0 to 1"
    add_option(compare, "--specificity X", point, type=float, default=0.9)
    add_student_options(compare)
    compare.set_defaults(run=partial(_late, "compare"))


def _add_rehearse(actions: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
    rehearse = add_command(
        actions,
        "rehearse",
        "train, vote, and look at the bytes that would leave",
        description="Does all that a study asks of this hospital, up to the wire: reads its records, trains "
        "its teachers, answers a sample, and shows what would leave. All of it is thrown away. Nothing is "
        "sent, nothing is counted as answered.",
    )
    rehearse.add_argument("offer", metavar="FILE", help=_OFFER)
    add_option(rehearse, "--sample N", "public inputs to answer", default=20)
    rehearse.set_defaults(run=partial(_late, "rehearse"))
    return rehearse


def _add_join(actions: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
    join = add_command(
        actions,
        "join",
        "accept, look whether all is ready, and take part",
        description="Shows the terms and asks for a yes, unless this hospital accepted them before. Looks "
        "for what would stop it. Then runs the hospital until the study is over. After a crash the same "
        "command goes on.",
    )
    _add_admission(join)
    add_option(join, "--teachers K", TEACHERS, type=int)
    add_option(join, "--server HOST:PORT", "the coordinator's address (default: of the admission)")
    add_option(join, "--state-dir DIR", STATE_DIR)
    wait = "give up when the coordinator is out of reach, or has no seat for this hospital, for so long"
    add_option(join, "--wait SECONDS", wait, default=604800, type=float)
    add_option(join, "--quiet", "no progress, only warnings and the outcome")
    join.set_defaults(run=partial(_late, "join"))
    return join


def _add_open(actions: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
    pages = add_command(
        actions,
        "open",
        "terms, consent, rehearsal, log, account and student as pages in a browser",
        description="Shows terms, rehearsal, what left, account and student as pages in a browser on this "
        "machine, and asks there what `accept` asks. The address that it prints works once. Nothing is sent. "
        "It ends at Ctrl-C, or when nobody has looked for half an hour.",
    )
    admission = "what the coordinator sent (default: what was accepted in --dir)"
    pages.add_argument("admission", metavar="NAME.admission", nargs="?", help=admission)
    add_option(pages, "--state-dir DIR", STATE_DIR)
    pages.set_defaults(run=partial(_late, "open"))
    return pages


def _add_admission(action: argparse.ArgumentParser) -> None:
    """The admission, and how a yes to it is given."""
    action.add_argument("admission", metavar="NAME.admission", help="what the coordinator sent")
    add_option(
        action,
        "--fingerprint WORDS",
        "the authority's, as the coordinator told it another way; another one is refused",
    )
    add_option(
        action,
        "--confirm NAME=WORDS",
        "another hospital's fingerprint, as it read it out by telephone; repeat it for each",
        action="append",
    )
    add_option(action, "--yes", "accept without being asked, as scripts do; recorded as such")


def _hospital_request(arguments: argparse.Namespace) -> int:
    from pate_fed.identity import make_request, sum_fingerprint

    folder = Path(arguments.dir)
    path = make_request(folder, arguments.name)
    print(f"made this hospital's keys, which stay here (mode 0600), and the request {path}")
    print("send the request to the coordinator; this hospital's fingerprint, to read out to it and to each")
    print("other hospital by telephone:")
    print(f"  {sum_fingerprint(folder)}")
    print("with the admission that comes back: pate-fed hospital check RECORDS --study FILE, and then")
    print(f"  pate-fed hospital join FILE --dir {folder} --data RECORDS")
    return 0


def _late(action: str, arguments: argparse.Namespace) -> int:
    """Run an action; what it needs takes a while to import."""
    match action:
        case "terms":
            from pate_fed.cli.terms import show_terms as run
        case "accept":
            from pate_fed.cli.consent import accept as run
        case "check":
            from pate_fed.cli.check import check as run
        case "compare":
            from pate_fed.cli.hospital_compare import compare as run
        case "open":
            from pate_fed.cli.hospital_open import open_pages as run
        case "rehearse":
            from pate_fed.cli.rehearse import rehearse as run
        case _:
            from pate_fed.cli.rehearse import join as run

            only_tell()
    return run(arguments)
