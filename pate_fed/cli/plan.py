"""`pate-fed plan` and `audit`: what a budget affords, and the mechanisms sampled against their ε."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from pate_fed.cli.parser import Parser, add_command, add_format_option, add_option, print_lines
from pate_fed.disk import check_file_path
from pate_fed.errors import IntegrityError

if TYPE_CHECKING:
    from pate_fed.privacy import Plan

__all__ = ["add_audit_command", "add_plan_command"]


def add_plan_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register `plan`."""
    plan = add_command(commands, "plan", "noise, threshold and labels that a budget affords; touches no data")
    add_option(plan, "--epsilon X", "ε against all who see labels", required=True)
    add_option(plan, "--delta X", "δ of that ε", default=1e-5)
    add_option(plan, "--teachers N", "teachers in all hospitals", default=250)
    hospitals = "hospitals that hold them, for advice"
    add_option(plan, "--num-clients N", hospitals, aliases=("--hospitals",), dest="hospitals")
    add_option(plan, "--classes N", "classes to vote for", default=10)
    agreement = "share of teachers that vote right, or a .npy or .npz of a PAST study's totals"
    add_option(plan, "--agreement SHARE|FILE", agreement, default="0.85")
    add_option(plan, "--max-queries N", "public inputs that may be asked about", default=9000)
    add_option(plan, "--unit", "what is protected", choices=("record", "hospital"), default="record")
    adjacency = ("replace-one", "add-or-remove-one")
    add_option(
        plan, "--adjacency", "how neighbours differ in one unit", choices=adjacency, default=adjacency[0]
    )
    add_option(
        plan,
        "--votes-moved N",
        "teachers that one unit can sway (default 1; of a hospital, or of a record that is added or removed: "
        "all teachers of a hospital)",
    )
    add_option(
        plan, "--aggregator NAME", "confident-gnmax, gnmax or lnmax (default: the better of the first two)"
    )
    add_option(plan, "--picture FILE.png", "draw labels against ε")
    add_format_option(plan)
    plan.set_defaults(run=_plan)


def add_audit_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register `audit`."""
    audit = add_command(commands, "audit", "sample the mechanisms, and hold them against the ledger's ε")
    add_option(
        audit, "--trials N", "samples a mechanism; the default notices a tenth less noise", default=10_000
    )
    add_option(audit, "--confidence X", "of the lower bounds", default=0.999)
    shrink = "share of the charged noise that is drawn; below 1 the audit must fail"
    add_option(audit, "--shrink X", shrink, default=1.0)
    add_option(audit, "--seed N", "seeded noise: quicker, and repeatable")
    add_format_option(audit)
    audit.set_defaults(run=_audit)


def _plan(arguments: argparse.Namespace) -> int:
    if arguments.picture:
        check_file_path(Path(arguments.picture), option="--picture")
    made = _make_plan(arguments)
    if arguments.picture:
        from pate_fed.report.plan import draw_plan

        draw_plan(made.to_dict(), Path(arguments.picture))
    if arguments.format == "json":
        print(json.dumps(made.to_dict()))
    else:
        print_lines(made.lines())
    return 0


def _make_plan(arguments: argparse.Namespace) -> Plan:
    from pate_fed.privacy import Protection, plan
    from pate_fed.privacy.planning.vote_model import past_votes_from_file

    votes, moved = _agreement(arguments.agreement), arguments.votes_moved
    if moved is None:
        # As a study reckons: with one record more a hospital's teachers are all dealt other records.
        whole = arguments.unit == "hospital" or arguments.adjacency == "add-or-remove-one"
        known = whole and arguments.hospitals and arguments.hospitals > 0
        moved = max(1, -(-arguments.teachers // arguments.hospitals)) if known else 1
    return plan(
        num_teachers=arguments.teachers,
        num_classes=arguments.classes,
        epsilon=arguments.epsilon,
        delta=arguments.delta,
        votes=votes if isinstance(votes, float) else past_votes_from_file(votes),
        max_queries=arguments.max_queries,
        num_hospitals=arguments.hospitals,
        aggregator=arguments.aggregator,
        protection=Protection(unit=arguments.unit, adjacency=arguments.adjacency, votes_moved=moved),
    )


def _agreement(given: str) -> float | Path:
    """A share of teachers, or a file of past totals."""
    try:
        return float(given)
    except ValueError:
        return Path(given)


def _audit(arguments: argparse.Namespace) -> int:
    from pate_fed.privacy import audit_all, noise_from_seed

    found = audit_all(
        noise_from_seed(arguments.seed),
        trials=arguments.trials,
        confidence=arguments.confidence,
        shrink=arguments.shrink,
    )
    if arguments.format == "json":
        print(json.dumps([{**asdict(result), "passed": result.passed} for result in found]))
    else:
        print_lines(result.line() for result in found)
    return 0 if all(result.passed for result in found) else IntegrityError.exit_code
