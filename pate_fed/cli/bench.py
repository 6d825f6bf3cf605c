"""`pate-fed bench`: methods held against each other on fixed tasks."""

from __future__ import annotations

import argparse
import os
from functools import partial
from pathlib import Path

from pate_fed.cli.parser import Parser, add_command, add_option

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
    tasks = "one of the tasks, or published; repeat it (default: all)"
    own = "a method, or your own as module:attribute; repeat it (default: all that are built in)"
    add_option(bench, "--quick", "ε 1 and one seed; else ε 0.3, 1, 3 and 5 seeds")
    add_option(bench, "--task NAME", tasks, action="append")
    add_option(bench, "--method NAME", own, action="append")
    add_option(bench, "--epsilon X", "in place of the grid's; repeat it", action="append")
    add_option(bench, "--seeds N", "of each cell (default: 5, with --quick 1)")
    add_option(bench, "--limit SECONDS", "the longest that one cell may take", default=3600, type=float)
    add_option(bench, "--data-dir DIR", "the folder of MNIST/, FashionMNIST/, adult/ and diabetes130/")
    add_option(bench, "--download", "fetch digits and garments that are missing")
    add_option(bench, "--run-dir DIR", "where results go", default="runs/bench")
    bench.set_defaults(run=_bench)


def _bench(arguments: argparse.Namespace) -> int:
    from pate_fed.bench.grid import EPSILONS, METHODS, PUBLISHED, Grid, run_grid
    from pate_fed.bench.page import summary, write_page
    from pate_fed.bench.tasks import TASKS

    quick, data = arguments.quick, arguments.data_dir or os.environ.get("PATE_FED_DATA")
    grid = Grid(
        out_dir=Path(arguments.run_dir),
        data_dir=Path(data) if data else None,
        tasks=tuple(arguments.task or (PUBLISHED, *TASKS)),
        methods=tuple(arguments.method or METHODS),
        epsilons=tuple(arguments.epsilon or ((1.0,) if quick else EPSILONS)),
        seeds=(1 if quick else 5) if arguments.seeds is None else arguments.seeds,
        limit_s=arguments.limit,
        download=arguments.download,
    )
    log = partial(print, flush=True)
    for line in run_grid(grid, log, lines=partial(summary, grid), show=partial(write_page, grid)):
        print(line)
    print(f"wrote {grid.out_dir / 'bench.html'}")
    return 0
