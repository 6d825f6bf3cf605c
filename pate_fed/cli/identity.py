"""The commands of `pate-fed` for studies with separate hospitals; each imports what it needs when it runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from pate_fed.cli.parser import Parser
from pate_fed.errors import InputError

__all__ = ["add_hospital_commands"]


def add_hospital_commands(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register `demo`, `study` and `hospital`."""
    _add_study(commands)
    _add_hospital(commands)
    demo = commands.add_parser("demo", help="a study with real records and real processes, ready to run")
    kinds = demo.add_subparsers(title="demonstrations", required=True, metavar="NAME")
    hospitals = kinds.add_parser("hospitals", help="four hospitals, breast cancer data, five commands")
    hospitals.add_argument("folder", metavar="DIR", help="where files and commands go; made when missing")
    hospitals.add_argument("--run", dest="execute", action="store_true", help="run the five commands too")
    hospitals.set_defaults(run=_demo)


def _add_study(commands: argparse._SubParsersAction[Parser]) -> None:
    study = commands.add_parser("study", help="at the coordinator: who may join a study")
    actions = study.add_subparsers(title="actions", required=True, metavar="ACTION")
    init = actions.add_parser("init", help="make the study's authority and the coordinator's keys")
    init.add_argument("folder", metavar="DIR", help="a new folder; keep ca.key in it as you keep a seal")
    init.add_argument("--config", metavar="FILE", required=True, help="the study's study.toml")
    init.add_argument("--num-hospitals", type=int, metavar="N", help="hospitals (default: from the study)")
    init.add_argument("--address", metavar="HOST:PORT", required=True, help="where hospitals will connect to")
    init.add_argument("--days", type=_days, default=365, help="until the certificates expire (default 365)")
    init.set_defaults(run=_study_init)
    admit = actions.add_parser("admit", help="sign a hospital's request")
    admit.add_argument("request", metavar="NAME.req", help="what the hospital sent")
    admit.add_argument("--out", metavar="FILE", help="what it gets back (default NAME.admission)")
    admit.add_argument("--days", type=_days, default=365, help="until its certificate expires (default 365)")
    admit.set_defaults(run=_study_admit)
    revoke = actions.add_parser("revoke", help="shut a hospital out, also of a running study")
    revoke.add_argument("hospital", metavar="NAME")
    revoke.set_defaults(run=_study_revoke)
    listed = actions.add_parser("list", help="the admitted hospitals")
    listed.set_defaults(run=_study_list)
    for action in (admit, revoke, listed):
        action.add_argument("--dir", metavar="DIR", default=".", help="the study's folder (default: here)")


def _add_hospital(commands: argparse._SubParsersAction[Parser]) -> None:
    hospital = commands.add_parser("hospital", help="at a hospital: its key, its admission, its log")
    actions = hospital.add_subparsers(title="actions", required=True, metavar="ACTION")
    request = actions.add_parser("request", help="make this hospital's key, and a request to be admitted")
    request.add_argument("--name", metavar="NAME", required=True, help="this hospital's name")
    request.set_defaults(run=_hospital_request)
    accept = actions.add_parser("accept", help="take the admission that came back")
    accept.add_argument("admission", metavar="NAME.admission")
    accept.add_argument("--fingerprint", metavar="HEX", help="the authority's, as the coordinator told you")
    accept.set_defaults(run=_hospital_accept)
    log = actions.add_parser("log", help="what this hospital was asked, answered, refused and sent")
    log.add_argument("state_dir", metavar="STATE_DIR", help="the --state-dir of python -m pate_fed.client")
    log.add_argument("--format", choices=("text", "json"), default="text")
    log.set_defaults(run=_hospital_log)
    for action in (request, accept):
        action.add_argument("--dir", metavar="DIR", default=".", help="its identity's folder (default: here)")


def _days(text: str) -> int:
    days = int(text) if text.lstrip("-").isdigit() else 0
    if not 1 <= days <= 3650:
        raise argparse.ArgumentTypeError(f"{text}: 1 to 3650 days are meant")
    return days


def _study_init(arguments: argparse.Namespace) -> int:
    from pate_fed.flower.processes import split_address
    from pate_fed.identity import Authority, make_terms_of

    if split_address(arguments.address, option="--address")[1] is None:
        raise InputError(f"--address {arguments.address}: HOST:PORT is meant; hospitals need a fixed port")
    terms = make_terms_of(Path(arguments.config), num_hospitals=arguments.num_hospitals)
    made = Authority.init(Path(arguments.folder), address=arguments.address, terms=terms, days=arguments.days)
    print(f"made {made.folder}: the study's authority and the coordinator's keys, for {arguments.days} days")
    print(f"authority's fingerprint (tell every hospital another way): {made.fingerprint}")
    public = made.ledger_key().public_key().public_bytes_raw().hex()
    print(f"the ledger will be signed; verify it with: pate-fed ledger verify RUN_DIR --public-key {public}")
    return 0


def _study_admit(arguments: argparse.Namespace) -> int:
    from pate_fed.identity import Authority

    admission = Authority(Path(arguments.dir)).admit(Path(arguments.request), days=arguments.days)
    out = Path(arguments.out or f"{admission.hospital}.admission")
    admission.write(out)
    print(f"admitted {admission.hospital} for {arguments.days} days; send it {out} (nothing in it is secret)")
    print(f"authority's fingerprint: {admission.fingerprint}")
    return 0


def _study_revoke(arguments: argparse.Namespace) -> int:
    from pate_fed.identity import Authority

    Authority(Path(arguments.dir)).revoke(arguments.hospital)
    print(f"revoked {arguments.hospital}; a running coordinator shuts it out within seconds")
    return 0


def _study_list(arguments: argparse.Namespace) -> int:
    from pate_fed.identity import Authority
    from pate_fed.identity.certificates import days_left

    for name, certificate in Authority(Path(arguments.dir)).admitted():
        left = days_left(certificate)
        print(f"{name}  {'expired' if left < 0 else f'{left} days left'}")
    return 0


def _hospital_request(arguments: argparse.Namespace) -> int:
    from pate_fed.identity import make_request, sum_fingerprint

    path = make_request(Path(arguments.dir), arguments.name)
    print(f"made this hospital's keys (they stay here, mode 0600) and {path}: send that to the coordinator")
    print(f"for other hospitals' [trusted] (tell them another way): {sum_fingerprint(Path(arguments.dir))}")
    return 0


def _hospital_accept(arguments: argparse.Namespace) -> int:
    from pate_fed.identity import HospitalIdentity, cost_text

    found = HospitalIdentity.accept(
        Path(arguments.dir), Path(arguments.admission), expected=arguments.fingerprint
    ).admission
    print(f"accepted: {found.hospital} may connect to {found.address}")
    print(f"the study's terms, and what they cost at most: {cost_text(found.terms)}")
    if arguments.fingerprint is None:
        print(f"compare this fingerprint with the coordinator's, by telephone: {found.fingerprint}")
    return 0


def _hospital_log(arguments: argparse.Namespace) -> int:
    from pate_fed.cli.hospital_log import log_lines

    for line in log_lines(Path(arguments.state_dir), as_json=arguments.format == "json"):
        print(line)
    return 0


def _demo(arguments: argparse.Namespace) -> int:
    from pate_fed.cli.demo import make_demo, run_demo, waiting_demo

    waiting = waiting_demo(Path(arguments.folder)) if arguments.execute else None
    made = waiting or make_demo(Path(arguments.folder))
    done = f"found in {made.folder}" if waiting else f"wrote to {made.folder}"
    print(f"{done}: four hospitals' records, a public pool and study.toml; five terminals there:")
    for line in made.lines():
        print(f"  {line}")
    return run_demo(made) if arguments.execute else 0
