"""`pate-fed report`: a run's report.html written again."""

from __future__ import annotations

import argparse
from pathlib import Path

from pate_fed.cli.parser import Parser

__all__ = ["add_report_command"]


def add_report_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register `report`."""
    report = commands.add_parser("report", help="write report.html of a run again")
    report.add_argument("run_dir", metavar="RUN_DIR")
    report.add_argument("--publishable", action="store_true", help="leave out what comes from private votes")
    report.set_defaults(run=_report)


def _report(arguments: argparse.Namespace) -> int:
    from pate_fed.report import read_result, write_report

    run_dir = Path(arguments.run_dir)
    path = run_dir / ("report-publishable.html" if arguments.publishable else "report.html")
    write_report(read_result(run_dir), path, publishable=arguments.publishable)
    print(f"wrote {path}")
    return 0
