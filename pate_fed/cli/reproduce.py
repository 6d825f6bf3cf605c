"""`pate-fed reproduce`: a paper's figures, ours beside the published ones."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pate_fed.cli.parser import Parser, RawHelpFormatter, add_command, add_option

# How long --quick takes, of 5 seeds; spelt out, as pate_fed.reproduce takes long to import.
_REPRODUCTIONS = {
    "pate++-fashion-mnist": "an hour or more",
    "pate++-mnist-votes": "minutes the first student, an hour all",
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
    add_option(scale, "--quick", "small networks and few epochs (default)")
    add_option(
        scale,
        "--paper",
        "the paper's networks and epochs, on a GPU; of pate++-fashion-mnist, pate-2017-mnist, "
        "label-dp-fashion-mnist",
    )
    add_option(again, "--seeds N", "students a figure; not scalable-glyph", default=5)
    add_option(
        again,
        "--tables NAME",
        "of pate++-fashion-mnist: the paper's I, II and III; not the paper's: steps from it to the default, "
        "encoder (default all but encoder)",
        nargs="+",
        choices=("I", "II", "III", "steps", "encoder"),
    )
    add_option(again, "--data-dir DIR", "folder of the data files (default $PATE_FED_DATA)")
    add_option(again, "--run-dir DIR", "for results", default="reproduced", aliases=("--out",), dest="out")
    add_option(
        again,
        "--totals FILE",
        "ready totals (.npz or .npy) in place of teachers; of pate++-fashion-mnist, pate++-mnist-votes, "
        "interactive-gnmax, pate-2017-questions",
    )
    add_option(again, "--device NAME", "cpu, cuda or auto", default="cpu")
    add_option(
        again,
        "--workers N",
        "students trained side by side, of pate++-fashion-mnist, pate++-mnist-votes, pate-2017-mnist "
        "(default one a core, at most 8; on a GPU 1)",
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
