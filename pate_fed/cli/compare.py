"""`pate-fed compare`: runs side by side, on the terminal and as a page."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pate_fed.cli.parser import Parser, add_command, add_format_option, add_option, print_lines
from pate_fed.errors import InputError

if TYPE_CHECKING:
    from pate_fed.report.comparison import Comparison

_DESCRIPTION = """\
Put finished runs side by side: ε and δ, labels, accuracies with their 95 % intervals, time, whether the
ledger passes its check, and the settings in which the runs differ."""

_EPILOG = "Example: pate-fed compare runs/first runs/second --html compare.html"


def add_compare_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register `compare`."""
    compare = add_command(commands, "compare", "runs side by side", description=_DESCRIPTION, epilog=_EPILOG)
    compare.add_argument("runs", metavar="RUN_DIR", nargs="+", help="the --run-dir of a run; two or more")
    add_option(compare, "--html FILE", "write the page with pictures, too")
    add_option(compare, "--analyst", "with figures from private votes, which may not be published")
    add_format_option(compare)
    compare.set_defaults(run=_compare)


def _compare(arguments: argparse.Namespace) -> int:
    from pate_fed.disk import check_file_path, write_result
    from pate_fed.report.comparison import Comparison, load_run, name_runs
    from pate_fed.report.comparison_page import render_comparison

    paths = [Path(each) for each in arguments.runs]
    if len(paths) < 2:
        raise InputError(f"{paths[0]}: one run alone; give two or more to compare")
    page = None if arguments.html is None else Path(arguments.html)
    if page is not None:
        check_file_path(page, option="--html")
    runs = [load_run(path, name=name) for path, name in zip(paths, name_runs(paths), strict=True)]
    comparison = Comparison(runs=tuple(runs), analyst=arguments.analyst)
    if page is not None:
        write_result(page, render_comparison(comparison, title="Comparison").encode())
    if arguments.format == "json":
        print(json.dumps(comparison.to_dict(), ensure_ascii=False))
    else:
        print_comparison(comparison)
        if page is not None:
            print(f"wrote {page}")
    return 0


def print_comparison(comparison: Comparison) -> None:
    """The tables and notes on standard output."""
    _print_table(comparison.header, comparison.rows)
    differing = comparison.differing_table
    if differing is not None:
        print("\nwhat differs")
        _print_table(*differing)
    else:
        print("\nall settings are the same")
    if comparison.notes:
        print()
        print_lines((f"note: {note}" for note in comparison.notes), indent=6)


def _print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Aligned columns; on a terminal that is narrower, a block of lines for each row."""
    from pate_fed.format import printable

    lines = [[printable(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[place]) for row in lines) for place in range(len(header))]
    if sys.stdout.isatty() and sum(widths) + 2 * len(widths) > _columns():
        longest = max(map(len, lines[0][1:]))
        for row in lines[1:]:
            print(f"{row[0]}")
            for name, cell in zip(lines[0][1:], row[1:], strict=True):
                print(f"  {name:<{longest}}  {cell}")
        return
    for row in lines:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


def _columns() -> int:
    import shutil

    return shutil.get_terminal_size().columns
