"""`pate-fed reproduce`: a paper's figures, ours beside the published ones."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pate_fed.cli.help import RawHelpFormatter, add_command
from pate_fed.cli.parser import Parser

__all__ = ["add_reproduce_command"]

# How long --quick takes, of 5 seeds; spelt out, as pate_fed.reproduce takes long to import.
_REPRODUCTIONS = {
    "pate++-fashion-mnist": "within an hour",
    "pate++-mnist-votes": "minutes the first student, an hour all",
    "fashion-mnist-frontier": "many hours; the first student's in the first",
    "fashion-mnist-threshold": "some minutes",
    "interactive-gnmax": "20 minutes the first student, an hour the second",
    "scalable-glyph": "a quarter to half an hour",
    "pate-2017-mnist": "hours the GAN, some minutes the other students",
    "pate-2017-questions": "an hour or more",
    "pate-2017-adult": "minutes",
    "pate-2017-diabetes": "minutes",
    "label-dp-fashion-mnist": "an hour with --seeds 1, three with 5",
}


def add_reproduce_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register `reproduce`."""
    times = "\n".join(f"  {name:<24} {time}" for name, time in _REPRODUCTIONS.items())
    again = add_command(
        commands,
        "reproduce",
        "a paper's figures, ours beside the published ones",
        formatter_class=RawHelpFormatter,
        epilog=f"NAME, and roughly how long --quick takes on 2 idle cores:\n{times}\n"
        "Those of an hour and more go on where they were stopped.",
    )
    again.add_argument("name", metavar="NAME", help="one of those below")
    scale = again.add_mutually_exclusive_group()
    scale.add_argument("--quick", action="store_true", help="small networks and few epochs (default)")
    scale.add_argument(
        "--paper",
        action="store_true",
        help="the paper's networks and epochs, on a GPU; of pate++-fashion-mnist, pate-2017-mnist and "
        "label-dp-fashion-mnist",
    )
    again.add_argument(
        "--seeds",
        type=int,
        default=5,
        metavar="N",
        help="students a figure; not scalable-glyph (default 5)",
    )
    again.add_argument(
        "--tables",
        type=int,
        nargs="+",
        choices=(1, 2, 3, 4),
        metavar="N",
        help="of pate++-fashion-mnist: Tables 1 to 3, and 4, Table 1 with a public encoder (default 1 2 3)",
    )
    again.add_argument("--data-dir", metavar="DIR", help="folder of the data files (default $PATE_FED_DATA)")
    again.add_argument("--out", default="reproduced", metavar="DIR", help="for results (default reproduced)")
    again.add_argument(
        "--totals",
        metavar="FILE",
        help="ready totals (.npz or .npy) in place of teachers; of pate++-fashion-mnist, pate++-mnist-votes, "
        "fashion-mnist-threshold, interactive-gnmax and pate-2017-questions",
    )
    again.add_argument("--device", default="cpu", metavar="NAME", help="cpu, cuda or auto (default cpu)")
    again.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="students trained side by side, of pate++-fashion-mnist, pate++-mnist-votes, "
        "fashion-mnist-frontier and pate-2017-mnist (default one a core, at most 8; on a GPU 1)",
    )
    again.set_defaults(run=_reproduce)


def _reproduce(arguments: argparse.Namespace) -> int:
    from pate_fed.reproduce import Reproduction, reproduce, usual_workers

    name, workers = arguments.name, arguments.workers
    plan = Reproduction(
        data_dir=None if arguments.data_dir is None else Path(arguments.data_dir),
        out_dir=Path(arguments.out),
        paper=arguments.paper,
        seeds=arguments.seeds,
        tables=None if arguments.tables is None else tuple(arguments.tables),
        device=arguments.device,
        totals=None if arguments.totals is None else Path(arguments.totals),
        workers=usual_workers(name, arguments.device) if workers is None else workers,
    )
    for line in reproduce(name, plan, on_progress=lambda line: print(line, file=sys.stderr)):
        print(line)
    print(f"wrote {arguments.out}")
    return 0
