"""`pate-fed ledger` and `report`: a run's privacy ledger in words or recomputed, and its report.html."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from pate_fed.cli.parser import Parser, add_command, add_format_option, add_option, print_lines
from pate_fed.errors import InputError


def add_ledger_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register `ledger`."""
    ledger = add_command(commands, "ledger", "read or check a run's privacy ledger")
    actions = ledger.add_subparsers(title="actions", required=True, metavar="ACTION")
    show = add_command(actions, "show", "the ledger in words")
    add_format_option(show)
    show.set_defaults(run=_ledger_show)
    verify = add_command(
        actions,
        "verify",
        "recompute every ε, and check the hash chain, and the labels, every ε and the counts beside it",
        description="Recompute every ε from the ledger's rows, check its hash chain, and hold against it: "
        "labels.npz, and of metrics.json every ε, δ, teachers, classes and the counts of queries. "
        "Accuracies, the student and report.html are on no row, and not checked.",
    )
    add_format_option(verify)
    add_option(verify, "--public-key HEX", "the coordinator's Ed25519 key, which must have signed every row")
    add_option(
        verify, "--head HASH", "a row's hash noted before (verify's last line), which must be in the chain"
    )
    add_option(
        verify,
        "--aggregator NAME",
        "module:attribute of a mechanism of your own, whose code may be loaded to check what it claims",
    )
    verify.set_defaults(run=_ledger_verify)
    for action in (show, verify):
        action.add_argument("run_dir", metavar="RUN_DIR", help="the --run-dir of a run")


def add_report_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register `report`."""
    report = add_command(commands, "report", "write a run's report.html again")
    report.add_argument("run_dir", metavar="RUN_DIR", help="the --run-dir of a run")
    publishable = "write report-publishable.html, without what comes from private votes"
    add_option(report, "--publishable", publishable)
    report.set_defaults(run=_report)


def _ledger_show(arguments: argparse.Namespace) -> int:
    from pate_fed.privacy.ledger.report import describe, verify

    path = _ledger_path(arguments.run_dir)
    if arguments.format == "json":
        report = verify(path, aggregators=None)
        print(json.dumps({**report.to_dict(), "releases": report.releases()}))
    else:
        print_lines(describe(path))
    return 0


def _ledger_verify(arguments: argparse.Namespace) -> int:
    from pate_fed.privacy.ledger.report import verify_run
    from pate_fed.structure.parts import full_name, search_folder

    named = arguments.aggregator
    if named is not None:
        search_folder(Path.cwd())
    report = verify_run(
        Path(arguments.run_dir),
        public_key=arguments.public_key,
        head=arguments.head,
        aggregators=() if named is None else (full_name(named, "aggregator"),),
    )
    if arguments.format == "json":
        print(json.dumps(report.to_dict()))
    else:
        print_lines(report.lines())
    report.require_checked()
    return 0


def _ledger_path(run_dir: str) -> Path:
    path = Path(run_dir) / "ledger.sqlite"
    if not path.is_file():
        raise InputError(f"{run_dir}: holds no ledger.sqlite; give the --run-dir of a run")
    return path


def _report(arguments: argparse.Namespace) -> int:
    from pate_fed.report.comparison import BROKEN, NO_LEDGER, ledger_state
    from pate_fed.report.html import write_report
    from pate_fed.report.log import read_result

    run_dir = Path(arguments.run_dir)
    path = run_dir / ("report-publishable.html" if arguments.publishable else "report.html")
    write_report(read_result(run_dir), path, publishable=arguments.publishable)
    print(f"wrote {path}")
    said = {
        NO_LEDGER: "holds no ledger.sqlite, so nothing proves the report's ε",
        BROKEN: "its ledger does not pass its check, so do not rely on the report's ε; pate-fed ledger "
        "verify says what is wrong",
    }.get(ledger_state(run_dir))
    if said is not None:
        print(f"warning: {run_dir}: {said}", file=sys.stderr)
    return 0
