"""`pate-fed plan` and `audit`: what a budget affords, and the mechanisms sampled against their ε."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from pate_fed.cli.help import add_command, add_format_option
from pate_fed.cli.parser import Parser, print_lines
from pate_fed.disk import check_file_path
from pate_fed.errors import IntegrityError

if TYPE_CHECKING:
    from pate_fed.privacy import Plan

__all__ = ["add_audit_command", "add_plan_command"]


def add_plan_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register `plan`."""
    plan = add_command(commands, "plan", "noise, threshold and labels that a budget affords; touches no data")
    plan.add_argument(
        "--epsilon", type=float, metavar="X", required=True, help="ε against all who see labels"
    )
    plan.add_argument("--delta", type=float, metavar="X", default=1e-5, help="δ of the budget (default 1e-5)")
    plan.add_argument(
        "--teachers", type=int, metavar="N", default=250, help="teachers in all hospitals (default 250)"
    )
    plan.add_argument("--hospitals", type=int, metavar="N", help="hospitals that hold them, for advice")
    plan.add_argument("--classes", type=int, metavar="N", default=10, help="classes (default 10)")
    plan.add_argument(
        "--agreement",
        default="0.85",
        metavar="SHARE|FILE",
        help="share of teachers that vote right, or a .npy or .npz of a PAST study's totals (default 0.85)",
    )
    plan.add_argument(
        "--max-queries", type=int, metavar="N", default=9000, help="public inputs to ask about (default 9000)"
    )
    plan.add_argument(
        "--unit", choices=("record", "hospital"), default="record", help="what is protected (default record)"
    )
    plan.add_argument(
        "--adjacency",
        choices=("replace-one", "add-or-remove-one"),
        default="replace-one",
        help="how neighbouring data sets differ in one unit (default replace-one)",
    )
    plan.add_argument(
        "--votes-moved",
        type=int,
        metavar="N",
        help="teachers that one unit can sway (default 1; of a hospital, or of a record that is added or "
        "removed: all teachers of a hospital)",
    )
    plan.add_argument("--picture", metavar="FILE.png", help="draw labels against ε")
    add_format_option(plan)
    plan.set_defaults(run=_plan)


def add_audit_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register `audit`."""
    audit = add_command(commands, "audit", "sample the mechanisms, and hold them against the ledger's ε")
    audit.add_argument(
        "--trials", type=int, metavar="N", default=10_000, help="samples a mechanism (default 10000)"
    )
    audit.add_argument(
        "--confidence", type=float, metavar="X", default=0.999, help="of the lower bounds (default 0.999)"
    )
    audit.add_argument(
        "--shrink",
        type=float,
        metavar="X",
        default=1.0,
        help="share of the charged noise that is drawn; below 1 the audit must fail (default 1)",
    )
    audit.add_argument("--seed", type=int, metavar="N", help="seeded noise: quicker, and repeatable")
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
    from pate_fed.privacy import Protection, past_votes_from_file, plan

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
    print_lines(result.line() for result in found)
    return 0 if all(result.passed for result in found) else IntegrityError.exit_code
