"""Commands as targets of processes, which have to be importable there."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from pate_fed.flower import prepare_environment

prepare_environment()

from pate_fed.simulation import main


def simulate(options: Sequence[str], said: str) -> None:
    """`pate_fed.simulation` with these options; what it says goes to the files `said`.out and `said`.err."""
    with open(f"{said}.out", "w") as out, open(f"{said}.err", "w") as err:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
    sys.exit(main(list(options)))
