"""Real processes: a coordinator, hospitals, and what they leave behind."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]


TABLE = """
[study]
name = "table"
seed = 5
[privacy]
allow_weak = true
[parties]
num_clients = {count}
teachers_per_client = 3
quorum = 0.6
[data]
dataset = "table"
pool = "pool.csv"
{private}
[data.table]
label = "ill"
classes = ["no", "yes"]
patient = "patient"
[data.table.columns]
age = "number"
dose = "number"
sex = ["f", "m"]
[teacher]
name = "random-forest"
trees = 10
[aggregation]
aggregator = "gnmax"
sigma2 = 2.0
[queries]
labels = 60
batch_size = 30
evaluate = false
[student]
name = "forest"
"""
NAMES = ("north", "east", "west")


@dataclass
class Party:
    """One command in its own process; its output goes to a file."""

    name: str
    process: subprocess.Popen[bytes]
    out: Path

    @property
    def text(self) -> str:
        return self.out.read_text(encoding="utf-8", errors="replace")

    @property
    def last_line(self) -> str:
        lines = self.text.strip().splitlines()
        return lines[-1] if lines else ""

    def wait(self, seconds: float = 240) -> int:
        try:
            return self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end within {seconds} s:\n{self.text}") from None

    def wait_for(self, words: str, seconds: float = 180) -> None:
        end, ended = time.monotonic() + seconds, False
        while words not in self.text:
            assert time.monotonic() < end, f"{self.name} never said {words!r}:\n{self.text}"
            assert not ended, f"{self.name} ended before {words!r}:\n{self.text}"
            time.sleep(0.1)
            ended = self.process.poll() is not None  # its last words are read after its end


@dataclass
class Rehearsal:
    """Starts commands in one folder and knows every process that came of it."""

    folder: Path
    cache: Path
    address: str
    parties: list[Party] = field(default_factory=list)

    def start(
        self,
        name: str,
        *command: str,
        folder: Path | None = None,
        stdin: int = subprocess.DEVNULL,
        **environment: str,
    ) -> Party:
        out = self.folder / f"{name}.out"
        safe = ["-P"] if command[0] == "-c" else []  # such a program is not one of our commands
        with open(out, "ab") as file:
            process = subprocess.Popen(
                [sys.executable, *safe, *command],
                cwd=folder or self.folder,
                stdin=stdin,
                stdout=file,
                stderr=file,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "PATE_FED_CACHE": str(self.cache),
                    "HOME": str(self.folder / "home"),
                    "XDG_STATE_HOME": str(self.folder / "state"),
                    "OMP_NUM_THREADS": "1",
                    **environment,
                },
            )
        party = Party(name, process, out)
        self.parties.append(party)
        return party

    def server(self, *options: str, name: str = "server") -> Party:
        base = ["-m", "pate_fed.server", "--config", "study.toml", "--address", self.address]
        return self.start(name, *base, "--run-dir", "run", *options)

    def hospital(self, name: str, data: str, *options: str) -> Party:
        base = ["-m", "pate_fed.client", "--hospital", name, "--data", data, "--server", self.address]
        return self.start(name, *base, *options)

    def state_of(self, name: str) -> Path:
        """The state directory of an admitted hospital, where its command chose it."""
        [found] = (self.folder / "state" / "pate_fed").glob(f"*/{name}")
        return found

    def running(self) -> list[str]:
        """Command lines of every process that works in or below this folder's files."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            line = " ".join(process.info["cmdline"] or [])
            if str(self.folder) in line or self.address in line:
                found.append(line)
        return found

    def write_tables(self, *, private: bool, names: Sequence[str] = NAMES) -> str:
        """The hospitals' records, a pool, and a study that a simulation can run with `private`."""
        stream = np.random.default_rng(3)
        for name, count in (("pool", 80), *((name, 90) for name in names)):
            lines = ["patient,age,dose,sex,ill"]
            for number in range(count):
                age, dose, sex = stream.integers(20, 90), stream.normal(), stream.choice(["f", "m"])
                ill = age / 45 + dose + (sex == "m") > 1.8
                shown = "" if stream.random() < 0.05 else f"{dose:.4f}"
                lines.append(f"{number // 2},{age},{shown},{sex},{'yes' if ill else 'no'}")
            (self.folder / f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        files = ", ".join(f'"{name}.csv"' for name in names)
        return TABLE.format(count=len(names), private=f"private = [{files}]" if private else "")

    def stop(self) -> None:
        for party in self.parties:
            if party.process.poll() is None:
                party.process.kill()
                party.process.wait()


@pytest.fixture
def rehearsal(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    plant_foreign_code: Callable[[Path], None],
) -> Iterator[Rehearsal]:
    """Processes that all work in one folder, beside foreign code that none of them may import."""
    plant_foreign_code(tmp_path)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    cache = tmp_path_factory.getbasetemp() / "rehearsal-cache"
    made = Rehearsal(tmp_path, cache, f"127.0.0.1:{port}")
    yield made
    made.stop()


@pytest.fixture
def small_disk(rehearsal: Rehearsal) -> Iterator[Path]:
    """A real disk of 8 MB and 400 files at the folder `disk`."""
    disk = rehearsal.folder / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", "tmpfs", "-o", "size=8m,nr_inodes=400", "tmpfs", str(disk)]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system is not permitted here")
    yield disk
    rehearsal.stop()
    subprocess.run(["umount", "-l", str(disk)], check=True)
