"""A termination signal while Ray runs is this program's to handle: Ray would abort it three seconds later."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from pate_fed.flower import prepare_environment
prepare_environment()
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from pate_fed.flower.engine import run_on_ray

seen = []
signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
app = ServerApp()

@app.main()
def main(grid, context):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(4)  # one more than Ray's patience

run_on_ray(app, ClientApp, num_nodes=1, device="cpu", gpus_per_client=None, folder=Path(sys.argv[1]))
assert seen == [signal.SIGTERM]
print("ended as it chose")
"""


@pytest.mark.slow  # Ray starts once in the default run
def test_a_termination_signal_does_not_abort(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    )
    assert ended.returncode == 0, ended.stderr
    assert "ended as it chose" in ended.stdout
    assert "*** SIGTERM received" not in ended.stderr
