"""`pate-fed hospital log` and `account`: what left a hospital, whether its log is whole, what it spent."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pate_fed.cli.parser import add_command, add_format_option, add_option, print_lines
from pate_fed.disk import read_json
from pate_fed.errors import InputError, IntegrityError
from pate_fed.format import counted, delta_text, epsilon_json, epsilon_text, printable
from pate_fed.runtime.run_dir import state_home

if TYPE_CHECKING:
    from clients.account import Booking
    from clients.policy import Policy
    from clients.state_dir import LocalSettings
    from pate_fed.kinds.terms import Terms


STATE_DIR_HELP = "the study's name, or the folder that the hospital ran with as --state-dir"


def state_dir_of(text: str) -> Path:
    """The folder of that path, or the one in the user's state home of the study with that name."""
    from clients.state_dir import LOCAL_SITE

    path = Path(text)
    if path.is_dir():
        return path
    known = {each.parent: _study_of(each.parent) for each in sorted(state_home().glob("*/*/" + LOCAL_SITE))}
    found = [folder for folder, study in known.items() if study == text]
    if len(found) == 1:
        return found[0]
    if found:
        listed = ", ".join(map(str, found))
        raise InputError(f"{text}: more than one state directory is of this study; give one: {listed}")
    studies = printable(", ".join(sorted({study for study in known.values() if study}))) or "none"
    raise InputError(f"{text}: no such state directory, and no study of that name here (known: {studies})")


def last_settings(state_dir: Path) -> LocalSettings | None:
    """What the hospital was last started with there; None where none ran."""
    from clients.state_dir import LOCAL_SITE, LocalSettings

    path = state_dir / LOCAL_SITE
    return LocalSettings.read(path) if path.exists() else None


def settings_of(state_dir: Path) -> LocalSettings:
    """The same; an InputError where none ran."""
    if (found := last_settings(state_dir)) is None:
        raise InputError(f"{state_dir}: no hospital ran there; give the --state-dir of one")
    return found


def agreed_terms(state_dir: Path) -> Terms | None:
    """The terms that were agreed to there; None: none were, or they are gone."""
    from clients.state_dir import TERMS_FILE
    from pate_fed.kinds.terms import Terms

    path = state_dir / TERMS_FILE
    try:
        return Terms.from_json(path.read_text("utf-8")) if path.exists() else None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise InputError(f"{state_dir}: the study's terms cannot be read ({reason})") from error


def identity_of(state_dir: Path, given: str | None) -> Path | None:
    """The folder of a hospital's identity: as given, else of its last run; None where it had no keys."""
    if given is not None:
        return Path(given)
    settings = last_settings(state_dir)
    key = None if settings is None else settings.sum_key
    return None if key is None or not key.exists() else key.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class _Named:
    """What of any terms, also of another release's, is their study's name."""

    study: str


def _study_of(state_dir: Path) -> str | None:
    from clients.state_dir import TERMS_FILE

    with suppress(InputError):  # a folder without its terms is found by its own name
        return read_json(_Named, state_dir / TERMS_FILE, what="the terms of a study", aside=True).study
    study, dash, _ = state_dir.parent.name.rpartition("-")  # before it has the terms its folder has the name
    return study if dash else None


_CHAIN = ("time", "event", "before", "signature")


def add_log_action(actions: argparse._SubParsersAction[Any]) -> None:
    """Register `hospital log`."""
    log = add_command(
        actions,
        "log",
        "what this hospital was asked, answered, refused and sent",
        description="Shows what this hospital was asked, answered, refused and sent. With --verify it checks "
        "that no line was changed, removed or reordered, that the hospital's key signed each, and that the "
        "coordinator's receipt fits; exit code 6 where something does not.",
    )
    log.add_argument("state_dir", metavar="STATE_DIR|STUDY", help=STATE_DIR_HELP)
    add_option(log, "--verify", "check the chain, the signatures and the coordinator's receipt")
    add_option(
        log, "--dir DIR", "the folder of its keys and admission, for --verify (default: as the hospital ran)"
    )
    add_format_option(log)
    log.set_defaults(run=_log)


def _log(arguments: argparse.Namespace) -> int:
    state_dir = state_dir_of(arguments.state_dir)
    if arguments.verify:
        return _verify(state_dir, arguments)
    for line in log_lines(state_dir, as_json=arguments.format == "json"):
        print(line)
    return 0


def _verify(state_dir: Path, arguments: argparse.Namespace) -> int:
    from clients.log_check import check_log

    found = check_log(state_dir, identity_of(state_dir, arguments.dir))
    if arguments.format == "json":
        print(json.dumps({**asdict(found), "verdict": found.verdict}, ensure_ascii=False))
    else:
        print_lines([*found.holds, *(f"PROBLEM: {what}" for what in found.broken), found.verdict])
    return IntegrityError.exit_code if found.broken else 0


def log_lines(state_dir: Path, *, as_json: bool) -> Iterator[str]:
    """The events of a hospital's state directory, one a line, and a sum at the end."""
    from clients.log import LOG_FILE, Answered, read_events

    if not (state_dir / LOG_FILE).is_file():
        raise InputError(f"{state_dir}: holds no {LOG_FILE}: no hospital ran there")
    sent = refused = torn = 0
    given = Answered()
    for line, event in read_events(state_dir):
        if event is None:
            torn += 1
            continue
        sent += int(event["bytes"]) if event["event"] == "sent" else 0
        given.take(event)
        refused += event["event"] == "refused"
        yield line if as_json else printable(_words(event))  # a message's type is its sender's word
    if as_json:
        rest = {"refused": refused, "torn_lines": torn}
        yield json.dumps({"event": "total", "bytes": sent, "rows": dict(given.rows), **rest})
    else:
        cut = f", {counted(torn, 'line')} cut" if torn else ""
        requests = counted(refused, "request")
        yield f"in all: {given.text}, {requests} refused, {counted(sent, 'byte')} sent{cut}"


def _words(event: dict[str, Any]) -> str:
    from pate_fed.protocol.messages import Refusal

    when = datetime.fromtimestamp(float(event["time"]), UTC).strftime("%Y-%m-%d %H:%M:%S")
    kind = str(event["event"])
    if kind == "sent":
        return f"{when}  sent {event['bytes']} bytes ({event['message_type']})"
    if kind in ("answered", "answered again"):
        return f"{when}  {kind}: {counted(int(event['rows']), 'row')} of {event['asks']}"
    if kind == "refused":
        reason = Refusal.__members__.get(str(event["reason"]))
        return f"{when}  " + (f"refused: {event['reason']}" if reason is None else reason.sentence)
    if kind == "handled":
        digest = f" (sha256 of what leaves: {str(event['sha256'])[:16]}…)" if "sha256" in event else ""
        return f"{when}  that took {float(event['seconds']):.1f} s{digest}"
    if kind == "receipt":
        return f"{when}  kept the coordinator's receipt (sha256 {str(event['kept'])[:16]}…)"
    if kind == "student":
        return f"{when}  kept the study's student (sha256 {str(event['kept'])[:16]}…)"
    if kind == "erased":
        return f"{when}  erased {event['name']} (sha256 {str(event['sha256'])[:16]}…)"
    if kind == "ended" and event["status"] == "aborted":
        return f"{when}  the coordinator was interrupted; it may go on"
    if kind == "ended":
        return f"{when}  the coordinator ended the study: {event['status']}"
    if kind == "taught":
        return f"{when}  trained teacher {int(event['teacher']) + 1}"
    rest = {name: value for name, value in event.items() if name not in _CHAIN}
    shown = event.get("sentence") or ", ".join(f"{name} {value}" for name, value in rest.items())
    return f"{when}  {kind}: {str(shown).strip().splitlines()[-1] if shown else '-'}"


_DELTA = 1e-5


def add_account_action(actions: argparse._SubParsersAction[Any]) -> None:
    """Register `hospital account`."""
    account = add_command(
        actions,
        "account",
        "what all studies that this hospital agreed to cost together",
        description="Shows this hospital's own privacy account: each study with the most that it can cost, "
        "against whom, and the sum over all of them. It stays in this house.",
    )
    add_option(account, "--dir DIR", "the folder of its keys and admission (default: here)")
    add_option(account, "--hospital NAME", "this hospital's name (default: of --dir, or the only one here)")
    add_option(account, "--delta X", f"the δ of every ε (default: the policy's, else {delta_text(_DELTA)})")
    add_option(account, "--policy FILE", "its policy.toml, whose limits over all studies are shown too")
    add_format_option(account)
    account.set_defaults(run=_account)


def _account(arguments: argparse.Namespace) -> int:
    from clients.policy import Policy

    policy = None if arguments.policy is None else Policy.load(Path(arguments.policy))
    found = account_figures(_name(arguments), policy, arguments.delta)
    if arguments.format == "json":
        print(json.dumps(found, ensure_ascii=False))
    else:
        print_lines(map(printable, account_lines(found)))
    return 0


def _name(arguments: argparse.Namespace) -> str:
    """The hospital's name: as given, of its keys, or that of the only account here."""
    from clients.account import account_folder
    from pate_fed.identity import HospitalIdentity
    from pate_fed.identity.admission import ADMISSION_FILE

    names = sorted(path.stem for path in account_folder().glob("*.sqlite"))
    listed = f" (accounts here: {', '.join(names) or 'none'})"
    if (given := arguments.hospital) is not None:
        if given in names:
            return str(given)
        raise InputError(f"--hospital {given}: no account here is of that name{listed}")
    if arguments.dir is not None or Path(ADMISSION_FILE).exists():
        return HospitalIdentity.open(Path(arguments.dir or ".")).admission.hospital
    if len(names) == 1:
        return names[0]
    raise InputError(f"--hospital: give the hospital's name, or --dir with its keys{listed}")


def account_figures(name: str, policy: Policy | None, delta: float | None = None) -> dict[str, Any]:
    """A hospital's account for `--format json`, with what the policy allows over all studies."""
    from clients.account import Account

    delta = delta if delta is not None else _DELTA if policy is None else policy.delta
    if not 0 < delta < 1:
        raise InputError(f"--delta {delta:g}: a number above 0 and below 1 is meant")
    account = Account(name)
    bookings = account.bookings()
    counted = [each.cost for each in bookings if each.asked]
    totals: list[dict[str, Any]] = []
    for target in dict.fromkeys(cost.stated for cost in counted):
        outside = [each.study for each in bookings if each.asked and not each.cost.covers(target)]
        totals.append({"protects": target, **_epsilons(counted, target, delta), "not_in_this_sum": outside})
    studies = [_study(each, delta) for each in bookings]
    limits = {
        "public": None if policy is None else policy.epsilon_public_total,
        "coordinator": None if policy is None else policy.epsilon_coordinator_total,
        "delta": None if policy is None else policy.delta,
    }
    found = {"hospital": name, "account": str(account.path), "delta": delta, "studies": studies}
    return {**found, "totals": totals, "limits": limits}


def _epsilons(counted: list[Any], target: Any, delta: float) -> dict[str, float | None]:
    """What these studies cost together, against whom."""
    from clients.account import COORDINATOR, PUBLIC, total_epsilon

    against = {"public": PUBLIC, "coordinator": COORDINATOR}
    return {
        name: epsilon_json(total_epsilon(counted, target, each, delta=delta))
        for name, each in against.items()
    }


def _study(booked: Booking, delta: float) -> dict[str, Any]:
    cost, stated = booked.cost, booked.cost.stated
    seeded = not cost.terms[stated].private
    counted = [cost] if booked.asked else []
    return {
        "study": booked.study,
        "terms_digest": booked.terms_digest,
        "agreed": datetime.fromtimestamp(booked.time, UTC).strftime("%Y-%m-%d %H:%M:%S"),
        "data": booked.data,
        "protects": stated,
        **_epsilons(counted, stated, delta),
        "seeded_noise": seeded,
        "claimed": [each.warning for each in cost.terms[stated].assumptions.each],
        "asked": booked.asked,
    }


def account_lines(found: dict[str, Any]) -> Iterator[str]:
    """The same in words."""
    delta = delta_text(found["delta"])
    yield f"privacy account of {found['hospital']} ({found['account']})"
    yield f"each study counts with the most that it can cost, from its first question on; ε at δ={delta}"
    for study in found["studies"]:
        yield f"{study['agreed']}  {study['study']} ({study['terms_digest'][:12]}…), data {study['data']}"
        if not study["asked"]:
            yield "  nothing was asked that follows from records: costs nothing"
            continue
        why = " (seeded noise: no bound)" if study["seeded_noise"] else ""
        yield f"  {_both(study)}; protects one {study['protects']}{why}"
        yield from (f"  NOT PROVEN: {claim}" for claim in study["claimed"])
    if not found["studies"]:
        yield "no study was agreed to yet"
    for total in found["totals"]:
        yield f"all together: {_both(total)}; protects one {total['protects']}"
        if any(study["asked"] and study["claimed"] for study in found["studies"]):
            yield "  NOT PROVEN: it holds if the code that is none of ours keeps its word"
        if total["not_in_this_sum"]:
            listed = ", ".join(total["not_in_this_sum"])
            yield f"  not in this sum, as features count as public there: {listed}"
    for against in ("public", "coordinator"):
        most = found["limits"][against]
        if most is not None:
            at = delta_text(found["limits"]["delta"])
            yield f"the policy allows ε={most:g} against the {against} over all studies, at δ={at}"


def _both(figures: dict[str, Any]) -> str:
    public, coordinator = (_shown(figures[against]) for against in ("public", "coordinator"))
    return f"{public} against the public, {coordinator} against the coordinators"


def _shown(epsilon: float | None) -> str:
    return "no bound" if epsilon is None else f"ε={epsilon_text(epsilon)}"
