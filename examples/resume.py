"""A study that was ended before its student learnt, gone on with: no ε is spent again."""

from pathlib import Path
from tempfile import TemporaryDirectory

from pate_fed import Run, Step, simulate

study = {"parties": {"num_clients": 250}}


class EndedError(Exception):
    """As by Ctrl-C."""


def end(step: Step) -> None:
    """End it when the student is to learn."""
    if step.phase == "learning":
        raise EndedError


with TemporaryDirectory() as folder:
    try:
        simulate(study, run_dir=Path(folder) / "run", on_progress=end)
    except EndedError:
        print("ended at ε =", Run.load(Path(folder) / "run").epsilon)
    print(simulate(study, run_dir=Path(folder) / "run"))
