"""`pate-fed hospital account`: what all studies of a hospital cost its patients together."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pate_fed.cli.parser import add_command, add_format_option, add_option, print_lines
from pate_fed.errors import InputError
from pate_fed.format import delta_text, epsilon_json, epsilon_text, printable

if TYPE_CHECKING:
    from clients.account import Account, Booking

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
    from clients.account import Account
    from clients.policy import Policy

    policy = None if arguments.policy is None else Policy.load(Path(arguments.policy))
    delta = arguments.delta if arguments.delta is not None else _DELTA if policy is None else policy.delta
    if not 0 < delta < 1:
        raise InputError(f"--delta {delta:g}: a number above 0 and below 1 is meant")
    name = arguments.hospital or _name_in(arguments.dir) or _only_name()
    account = Account(name)
    if arguments.hospital is not None and not account.path.exists():
        raise InputError(f"--hospital {name}: no account here is of that name{_listed()}")
    found = _figures(account, name, delta)
    found["limits"] = {
        "public": None if policy is None else policy.epsilon_public_total,
        "coordinator": None if policy is None else policy.epsilon_coordinator_total,
        "delta": None if policy is None else policy.delta,
    }
    if arguments.format == "json":
        print(json.dumps(found, ensure_ascii=False))
    else:
        print_lines(map(printable, _lines(found)))
    return 0


def _name_in(folder: str | None) -> str | None:
    from pate_fed.identity import HospitalIdentity
    from pate_fed.identity.admission import ADMISSION_FILE

    if folder is None and not Path(ADMISSION_FILE).exists():
        return None
    return HospitalIdentity.open(Path(folder or ".")).admission.hospital


def _only_name() -> str:
    names = _names()
    if len(names) == 1:
        return names[0]
    raise InputError(f"--hospital: give the hospital's name, or --dir with its keys{_listed()}")


def _names() -> list[str]:
    from clients.account import account_folder

    return sorted(path.stem for path in account_folder().glob("*.sqlite"))


def _listed() -> str:
    return f" (accounts here: {', '.join(_names()) or 'none'})"


def _figures(account: Account, name: str, delta: float) -> dict[str, Any]:
    """The account for `--format json`."""
    from clients.study_cost import COORDINATOR, PUBLIC, total_epsilon

    bookings = account.bookings()
    counted = [each.cost for each in bookings if each.asked]
    totals: list[dict[str, Any]] = []
    for target in dict.fromkeys(cost.stated for cost in counted):
        outside = [each.study for each in bookings if each.asked and not each.cost.covers(target)]
        totals.append(
            {
                "protects": target,
                "public": epsilon_json(total_epsilon(counted, target, PUBLIC, delta=delta)),
                "coordinator": epsilon_json(total_epsilon(counted, target, COORDINATOR, delta=delta)),
                "not_in_this_sum": outside,
            }
        )
    studies = [_study(each, delta) for each in bookings]
    where = str(account.path)
    return {"hospital": name, "account": where, "delta": delta, "studies": studies, "totals": totals}


def _study(booked: Booking, delta: float) -> dict[str, Any]:
    from clients.study_cost import COORDINATOR, PUBLIC, total_epsilon

    cost, stated = booked.cost, booked.cost.stated
    seeded = not cost.terms[stated].private
    counted = [cost] if booked.asked else []
    return {
        "study": booked.study,
        "terms_digest": booked.terms_digest,
        "agreed": datetime.fromtimestamp(booked.time, UTC).strftime("%Y-%m-%d %H:%M:%S"),
        "data": booked.data,
        "protects": stated,
        "public": epsilon_json(total_epsilon(counted, stated, PUBLIC, delta=delta)),
        "coordinator": epsilon_json(total_epsilon(counted, stated, COORDINATOR, delta=delta)),
        "seeded_noise": seeded,
        "claimed": [each.warning for each in cost.terms[stated].assumptions.each],
        "asked": booked.asked,
    }


def _lines(found: dict[str, Any]) -> Iterator[str]:
    delta = delta_text(found["delta"])
    yield f"privacy account of {found['hospital']} ({found['account']})"
    yield f"each study counts with the most that it can cost, from the day it was agreed to; ε at δ={delta}"
    for study in found["studies"]:
        yield f"{study['agreed']}  {study['study']} ({study['terms_digest'][:12]}…), data {study['data']}"
        if not study["asked"]:
            yield "  left before anything was asked: costs nothing"
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
