"""What a command costs with all its children: CPU, wall time, memory."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of a command with all its children: CPU and wall seconds, and the peak of their memory in MiB."""

    cpu_s: float
    wall_s: float
    peak_mb: float


def watched(command: Sequence[str]) -> Cost:
    """Run it; children are looked at ten times a second, as those of Ray are waited for by nobody.

    Memory is resident, with what one process has of files; of more than one without what they may share.
    """
    start, spent, peak = time.monotonic(), dict[tuple[int, float], float](), 0.0
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    root = psutil.Popen(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while root.poll() is None:
        held, processes = 0.0, [root, *root.children(recursive=True)]
        for each in processes:
            try:
                with each.oneshot():
                    times, memory = each.cpu_times(), each.memory_info()
                    spent[each.pid, each.create_time()] = times.user + times.system
                    shared = getattr(memory, "shared", 0) if len(processes) > 1 else 0
                    held += (memory.rss - shared) / 2**20
            except psutil.Error:
                continue  # it has just ended
        peak = max(peak, held)
        time.sleep(0.1)
    assert root.returncode == 0
    return Cost(cpu_s=sum(spent.values()), wall_s=time.monotonic() - start, peak_mb=peak)
