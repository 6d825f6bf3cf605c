"""`pate-fed audit`: the mechanisms sampled, and held against the ε that the ledger charges."""

from __future__ import annotations

import argparse

from pate_fed.cli.checks import name_option
from pate_fed.cli.parser import Parser, print_lines
from pate_fed.errors import InputError, IntegrityError

__all__ = ["add_audit_command"]


def add_audit_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register `audit`."""
    audit = commands.add_parser("audit", help="sample the mechanisms and hold them against the ledger's ε")
    audit.add_argument("--trials", type=int, default=10_000, help="samples a mechanism (default 10000)")
    audit.add_argument("--confidence", type=float, default=0.999, help="of the lower bounds (default 0.999)")
    audit.add_argument(
        "--shrink", type=float, default=1.0, help="draw less noise than is charged: a test fault"
    )
    audit.add_argument("--seed", type=int, help="seeded noise: quicker, and repeatable")
    audit.set_defaults(run=_audit)


def _audit(arguments: argparse.Namespace) -> int:
    from pate_fed.privacy import audit_all, noise_from_seed

    try:
        found = audit_all(
            noise_from_seed(arguments.seed),
            trials=arguments.trials,
            confidence=arguments.confidence,
            shrink=arguments.shrink,
        )
    except InputError as error:
        names = ("trials", "confidence", "shrink")
        raise name_option(error, {name: f"--{name}" for name in names}) from error
    print_lines(result.line() for result in found)
    return 0 if all(result.passed for result in found) else IntegrityError.exit_code
