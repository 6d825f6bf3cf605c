"""Tasks side by side: what workers make, and what ends them."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from multiprocessing import active_children
from pathlib import Path

import psutil
import pytest

from pate_fed.errors import PateFedError
from pate_fed.runtime.workers import as_ready

THREADS = partial(eval, "(__import__('os').environ['OMP_NUM_THREADS'], __import__('os').getpid())")


def test_every_task_is_done_once() -> None:
    assert list(as_ready(math.sqrt, [9.0, 1.0, 4.0], workers=1)) == [3.0, 1.0, 2.0]


def test_workers_are_other_processes_of_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    said = list(as_ready(THREADS, [{}, {}, {}], workers=2))
    assert len(said) == 3 and {threads for threads, _ in said} == {"1"}
    assert os.getpid() not in {pid for _, pid in said} and not active_children()
    assert os.environ["OMP_NUM_THREADS"] == "7"


def test_an_error_in_a_worker_is_the_calls() -> None:
    with pytest.raises(ValueError, match=r"math domain error|nonnegative"):
        list(as_ready(math.sqrt, [-1.0, 4.0, 9.0, 1.0], workers=2))
    assert not active_children()


def test_a_killed_worker_is_told_of() -> None:
    with pytest.raises(PateFedError, match="smaller --workers goes on"):
        list(as_ready(signal.raise_signal, [signal.SIGKILL, signal.SIGKILL], workers=2))
    assert not active_children()


@pytest.mark.parametrize(
    ("number", "said"),
    [
        pytest.param(signal.SIGINT, "interrupted\n", id="Ctrl-C"),
        pytest.param(signal.SIGKILL, "", id="killed", marks=pytest.mark.slow),
    ],
)
def test_workers_end_with_the_call(tmp_path: Path, number: signal.Signals, said: str) -> None:
    script = tmp_path / "run.py"
    script.write_text(
        "import signal, time\n"
        "from pate_fed.runtime.workers import as_ready\n"
        "if __name__ == '__main__':\n"
        "    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` has it ignored\n"
        "    try:\n"
        "        list(as_ready(time.sleep, [300, 300], workers=2))\n"
        "    except KeyboardInterrupt:\n"
        "        print('interrupted')\n",
        encoding="utf-8",
    )
    call = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        children: list[psutil.Process] = []
        until = time.monotonic() + 60
        while len(children) < 3 and time.monotonic() < until:  # two workers and what tracks their semaphores
            children = psutil.Process(call.pid).children()
            time.sleep(0.02)
        if number == signal.SIGINT:
            os.killpg(call.pid, number)  # as a terminal does
        else:
            call.send_signal(number)
        out, complaints = call.communicate(timeout=180)  # until the last process that could write is gone
        _, left = psutil.wait_procs(children, timeout=30)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(call.pid, signal.SIGKILL)
    assert (out.decode(), left) == (said, [])
    if number == signal.SIGINT:
        assert complaints == b"" and call.returncode == 0
