"""`pate-fed bench`: methods held against each other on fixed tasks."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from pate_fed.cli.parser import Parser, add_command, add_option
from pate_fed.errors import InputError

_DESCRIPTION = """\
Run methods of private learning on fixed tasks, each under the task's own rules, and write bench.html: a
picture a task, accuracy by ε. What a method claims is computed again from its ledger. A method whose authors'
published figure is not reproduced here is in the tables, but in no picture. An interrupted call goes on with
the same command."""
_EPILOG = """\
Baselines by gradients need Opacus: pip install 'pate-fed[bench]'. All noise is seeded, so nothing is private.
Example: pate-fed bench --quick --data-dir DATA --method pate-fed --method my_method:run"""


def add_bench_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register `bench`."""
    bench = add_command(
        commands, "bench", "methods on fixed tasks, compared", description=_DESCRIPTION, epilog=_EPILOG
    )
    bench.add_argument("--quick", action="store_true", help="ε 1 and one seed; else ε 0.3, 1, 3 and 5 seeds")
    add_option(
        bench, "--task NAME", "one of the tasks, or published; repeat it (default: all)", action="append"
    )
    own = "a method, or your own as module:attribute; repeat it (default: all that are built in)"
    add_option(bench, "--method NAME", own, action="append")
    add_option(bench, "--epsilon E", "in place of the grid's; repeat it", action="append")
    add_option(bench, "--seeds N", "of each cell (default: 5, with --quick 1)")
    add_option(bench, "--limit SECONDS", "the longest that one cell may take", default="3600")
    add_option(bench, "--data-dir DIR", "the folder of MNIST/, FashionMNIST/, adult/ and diabetes130/")
    bench.add_argument("--download", action="store_true", help="fetch digits and garments that are missing")
    add_option(bench, "--run-dir DIR", "where results go", default="runs/bench")
    bench.set_defaults(run=_bench)


def _bench(arguments: argparse.Namespace) -> int:
    from pate_fed.bench.grid import EPSILONS, METHODS, PUBLISHED, SEEDS, Grid, run_grid
    from pate_fed.bench.page import write_page
    from pate_fed.bench.tasks import TASKS

    quick, data = arguments.quick, arguments.data_dir or os.environ.get("PATE_FED_DATA")
    try:
        epsilons = tuple(float(each) for each in arguments.epsilon or ((1.0,) if quick else EPSILONS))
        seeds, limit = int(arguments.seeds or (1 if quick else SEEDS)), float(arguments.limit)
    except ValueError as error:
        raise InputError(f"--epsilon, --seeds and --limit: numbers are meant ({error})") from error
    grid = Grid(
        run_dir=Path(arguments.run_dir),
        data_dir=Path(data) if data else None,
        tasks=tuple(arguments.task or (PUBLISHED, *TASKS)),
        methods=tuple(arguments.method or METHODS),
        epsilons=epsilons,
        seeds=seeds,
        limit_s=limit,
        download=arguments.download,
    )
    run_grid(grid, lambda line: print(line, flush=True))
    for line in write_page(grid):
        print(line)
    return 0
