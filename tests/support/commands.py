"""Commands as targets of processes, importable there, and forked where the libraries are loaded."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext

from pate_fed.flower import prepare_environment

prepare_environment()

from pate_fed.simulation import main

LIBRARIES = ["torch", "sklearn.linear_model", "clients.app", "server.app"]


def forks() -> ForkServerContext:
    """Starts processes that have the libraries already; one server for all of a session's tests."""
    context = get_context("forkserver")
    context.set_forkserver_preload(LIBRARIES)
    return context


def simulate(options: Sequence[str], said: str) -> None:
    """`pate_fed.simulation` with these options; what it says goes to the files `said`.out and `said`.err."""
    with open(f"{said}.out", "w") as out, open(f"{said}.err", "w") as err:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
    sys.exit(main(list(options)))


def die_learning(command: Sequence[str]) -> None:
    """`pate-fed` with private labels, killed when it begins to learn."""
    from pate_fed.cli.main import main
    from pate_fed.kinds.label_dp import learners

    learners.train = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
    sys.exit(main(command))
