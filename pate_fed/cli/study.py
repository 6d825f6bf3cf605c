"""`pate-fed study`: a new study, the coordinator's authority, and the hospitals that it admits."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from pate_fed.cli.parser import Parser, add_command, add_option
from pate_fed.cli.study_new import add_new_action
from pate_fed.errors import InputError


def add_study_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register `study`."""
    study = add_command(commands, "study", "at the coordinator: a new study, and who may join it")
    actions = study.add_subparsers(title="actions", required=True, metavar="ACTION")
    add_new_action(actions)
    schema = add_command(actions, "schema", "the JSON schema of study.toml, for editors")
    add_option(schema, "--policy", "of a hospital's policy.toml instead")
    schema.set_defaults(run=_study_schema)
    init = add_command(actions, "init", "make the study's authority and the coordinator's keys")
    init.add_argument("folder", metavar="DIR", help="a new folder; keep ca.key in it as you keep a seal")
    add_option(init, "--config FILE", "the study's study.toml", required=True)
    hospitals = "how many hospitals there are (default: the study's num_clients)"
    add_option(init, "--num-clients N", hospitals, aliases=("--num-hospitals",))
    add_option(init, "--address HOST:PORT", "where hospitals will connect to", required=True)
    add_option(init, "--days N", "until the certificates expire", type=_days, default=365)
    init.set_defaults(run=_study_init)
    admit = add_command(actions, "admit", "sign a hospital's request")
    admit.add_argument("request", metavar="NAME.req", help="what the hospital sent")
    add_option(admit, "--out FILE", "where its admission is written (default NAME.admission)")
    add_option(admit, "--days N", "until its certificate expires", type=_days, default=365)
    admit.set_defaults(run=_study_admit)
    revoke = add_command(actions, "revoke", "shut a hospital out, also of a running study")
    revoke.add_argument("hospital", metavar="NAME", help="the hospital's name")
    revoke.set_defaults(run=_study_revoke)
    listed = add_command(actions, "list", "the admitted hospitals, and when their certificates expire")
    listed.set_defaults(run=_study_list)
    for action in (admit, revoke, listed):
        action.add_argument(
            "--dir", metavar="DIR", default=".", help="the folder of study init (default: here)"
        )


def _days(text: str) -> int:
    days = int(text) if text.lstrip("-").isdigit() else 0
    if not 1 <= days <= 3650:
        raise argparse.ArgumentTypeError(f"{text}: 1 to 3650 days are meant")
    return days


def _study_schema(arguments: argparse.Namespace) -> int:
    from clients.policy import Policy
    from pate_fed.config.json_schema import json_schema, study_schema

    schema = json_schema(Policy, title="policy.toml of pate_fed") if arguments.policy else study_schema()
    print(json.dumps(schema, indent=2, ensure_ascii=False))
    return 0


def _study_init(arguments: argparse.Namespace) -> int:
    from clients.policy import Policy
    from pate_fed.cli.terms import make_terms_of
    from pate_fed.config.study import read_study
    from pate_fed.identity import Authority
    from pate_fed.identity.certificates import spoken
    from pate_fed.kinds.terms import Terms
    from pate_fed.runtime.addresses import split_address

    if split_address(arguments.address, option="--address")[1] is None:
        raise InputError(f"--address {arguments.address}: HOST:PORT is meant; hospitals need a fixed port")
    terms = make_terms_of(Path(arguments.config), num_hospitals=arguments.num_clients)
    made = Authority.init(Path(arguments.folder), address=arguments.address, terms=terms, days=arguments.days)
    print(f"made {made.folder}: the study's authority and the coordinator's keys, for {arguments.days} days")
    if reason := read_study(Path(arguments.config), num_hospitals=arguments.num_clients).resolve().reason:
        print(reason)
    print("the authority's fingerprint, to tell every hospital by telephone:")
    print(f"  {spoken(made.fingerprint)}")
    refused = Policy().objection(Terms.from_json(terms))
    if refused is not None:
        print(f"warning: a hospital without a policy.toml will not take part: {refused[0].value}")
    public = made.ledger_key().public_key().public_bytes_raw().hex()
    print(f"the ledger will be signed; verify it with: pate-fed ledger verify RUN_DIR --public-key {public}")
    print(f"for each request that comes: pate-fed study admit NAME.req --dir {made.folder}")
    return 0


def _study_admit(arguments: argparse.Namespace) -> int:
    from pate_fed.identity import Authority, read_request
    from pate_fed.identity.certificates import spoken

    admission = Authority(Path(arguments.dir)).admit(Path(arguments.request), days=arguments.days)
    asked = read_request(Path(arguments.request))
    out = Path(arguments.out or f"{admission.hospital}.admission")
    admission.write(out)
    print(f"admitted {admission.hospital} for {arguments.days} days and wrote {out}; nothing in it is secret")
    print(f"compare both fingerprints with {admission.hospital} by telephone, then send it that file")
    print("the request's (the hospital was shown it when it made its keys)")
    print(f"  {spoken(asked.fingerprint)}")
    print("the authority's (the hospital sees it before it accepts)")
    print(f"  {spoken(admission.fingerprint)}")
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
