"""The commands of `pate-fed` for studies with separate hospitals; each imports what it needs when it runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from pate_fed.arguments import Parser

__all__ = ["add_hospital_commands"]


def add_hospital_commands(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register `demo`."""
    demo = commands.add_parser("demo", help="a study with real records and real processes, ready to run")
    kinds = demo.add_subparsers(title="demonstrations", required=True, metavar="NAME")
    hospitals = kinds.add_parser("hospitals", help="four hospitals, breast cancer data, five commands")
    hospitals.add_argument("folder", metavar="DIR", help="where files and commands go; made when missing")
    hospitals.add_argument("--run", dest="execute", action="store_true", help="run the five commands too")
    hospitals.set_defaults(run=_demo)


def _demo(arguments: argparse.Namespace) -> int:
    from pate_fed.demo import make_demo, run_demo

    made = make_demo(Path(arguments.folder))
    print(
        f"wrote four hospitals' records, a public pool and study.toml to {made.folder}; five terminals there:"
    )
    for line in made.lines():
        print(f"  {line}")
    return run_demo(made) if arguments.execute else 0
