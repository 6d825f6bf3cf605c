"""A Ray cluster on this machine: raylets as separate processes, each with its own cache and folders."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

_UP_S = 120.0


class Node:
    """One raylet of one core, with folders of its own under `folder`."""

    def __init__(self, folder: Path, environment: Mapping[str, str], options: list[str]) -> None:
        self.folder = folder
        for name in ("tmp", "cache", "state", "work"):
            (folder / name).mkdir(parents=True)
        own = {
            "TMPDIR": str(folder / "tmp"),
            "PATE_FED_CACHE": str(folder / "cache"),
            "XDG_STATE_HOME": str(folder / "state"),
        }
        command = [str(Path(sys.executable).parent / "ray"), "start", "--block", "--disable-usage-stats"]
        with open(folder / "log", "wb") as log:
            self._process = subprocess.Popen(
                [*command, "--num-cpus=1", "--object-store-memory=80000000", *options],
                env={**environment, **own},
                cwd=folder / "work",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def processes(self) -> list[psutil.Process]:
        """All of its processes that are there."""
        try:
            return psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def workers(self) -> list[psutil.Process]:
        """Processes that play parties."""
        return [each for each in self.processes() if "PartyProcess" in _title(each)]

    def kill(self) -> None:
        """As a machine that loses its power: nothing of it says goodbye."""
        doomed = self.processes()
        for each in [psutil.Process(self._process.pid), *doomed]:
            each.kill()
        self._process.wait()

    def stop(self) -> None:
        """End all of it, politely first."""
        left = self.processes()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        _, alive = psutil.wait_procs(left, timeout=8)
        for each in alive:
            each.kill()
        self._process.kill()
        self._process.wait()


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


class RayNodes:
    """A head and as many other nodes as are asked for; `environment` is what a driver needs to join them."""

    def __init__(self, folder: Path, *, token: str | None) -> None:
        ours = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        mode = {"RAY_AUTH_MODE": "disabled"} if token is None else {"RAY_AUTH_MODE": "token"}
        self.folder, self._added = folder, 0
        self.environment = {**ours, **mode, **({} if token is None else {"RAY_AUTH_TOKEN": token})}
        self.port = _free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.nodes = [
            Node(
                folder / "node-0",
                self.environment,
                ["--head", f"--port={self.port}", "--include-dashboard=false", f"--temp-dir={folder / 'r'}"],
            )
        ]
        _wait_for(self.port)

    def add(self, *options: str) -> Node:
        """One node more, that may still be on its way into the cluster; `options` are `ray start`'s."""
        self._added += 1  # nodes are taken off again, and a name is given once
        self.nodes.append(
            Node(
                self.folder / f"node-{self._added}", self.environment, [f"--address={self.address}", *options]
            )
        )
        return self.nodes[-1]

    def wait(self, count: int) -> None:
        """Until so many nodes are in."""
        code = "import ray, sys, time\nray.init(sys.argv[1], log_to_driver=False)\n"
        code += "while sum(n['Alive'] for n in ray.nodes()) < int(sys.argv[2]): time.sleep(0.2)\n"
        command = [sys.executable, "-c", code, self.address, str(count)]
        subprocess.run(command, env=self.environment, check=True, timeout=_UP_S, capture_output=True)


@contextmanager
def ray_nodes(folder: Path, count: int, *, token: str | None) -> Iterator[RayNodes]:
    """A cluster of `count` nodes of one core; `folder` has a short path, for sockets."""
    cluster = RayNodes(folder, token=token)
    try:
        for _ in range(count - 1):
            cluster.add()
        cluster.wait(count)
        yield cluster
    finally:
        for node in reversed(cluster.nodes):
            node.stop()


@contextmanager
def short_folder() -> Iterator[Path]:
    """A folder with a path that is short enough for Ray's sockets."""
    path = Path(tempfile.mkdtemp(prefix="pft-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return int(place.getsockname()[1])


def _wait_for(port: int) -> None:
    end = time.monotonic() + _UP_S
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(f"no Ray at port {port}")
