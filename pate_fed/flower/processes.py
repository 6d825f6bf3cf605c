"""Child processes that are started, watched and ended here, and the free ports and folders that they get."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pate_fed.disk import write_private
from pate_fed.errors import InputError, PateFedError
from pate_fed.flower.environment import GUARD

PROTECTED = frozenset(
    f"/flwr.proto.Runtime/{name}" for name in ("AcquireTask", "PullPendingTasks", "ClaimTask")
)
"""Calls to a child that only who knows its secret may make."""

SECRET = "executor.secret"
"""The file of a child's secret, in its folder while it runs."""

_GRACE_S = 8.0
_VERSION_S = 60.0


def version_of(command: str, *, home: Path) -> str:
    """The version that one of Flower's commands tells when it is started as a study starts it.

    Raises:
        PateFedError: it does not start.
    """
    try:
        done = subprocess.run(
            [*_started(command), "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_VERSION_S,
            env=_environment(home),
            start_new_session=True,
        )
    except subprocess.TimeoutExpired as error:
        raise PateFedError(f"{command} does not start within {_VERSION_S:.0f} s: try again") from error
    if done.returncode:
        last = (done.stderr.strip() or "no word").splitlines()[-1]
        raise PateFedError(f"{command} does not start ({last}): install pate_fed again")
    return done.stdout.split()[-1] if done.stdout.strip() else "?"


def _started(command: str) -> list[str]:
    return [sys.executable, "-m", "pate_fed.flower.child", command, str(os.getpid())]


class Child:
    """A SuperLink or SuperNode as a child process, whose tasks this process takes itself.

    `folder` holds all its state, its output among it, of the user's alone. It serves this process at
    `local_address`; only who knows its `secret` gets a task. `guard` is what `pate_fed.flower.guard` needs
    there, empty where nothing guards it.
    """

    def __init__(self, command: str, arguments: Sequence[str], *, folder: Path, guard: str = "") -> None:
        port, secret = str(free_port()), private_folder(folder) / SECRET
        self._secret_file = secret
        self.local_address, self.secret = f"127.0.0.1:{port}", _write_secret(secret)
        own = ["--host", "127.0.0.1", "--port", port, "--isolation", "process"]
        own += ["--superexec-auth-secret-file", str(secret)]
        self.log, self._read = folder / f"{command.removeprefix('flower-')}.log", 0
        handle = os.open(self.log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        try:
            self._process = subprocess.Popen(
                [*_started(command), *own, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=handle,
                stderr=handle,
                env={**_environment(folder), GUARD: guard},
                start_new_session=True,  # a signal to the user's process group is the parent's to handle
            )
        finally:
            os.close(handle)

    @property
    def running(self) -> bool:
        """Whether the process is still there."""
        return self._process.poll() is None

    def new_lines(self) -> list[str]:
        """Whole lines that the process wrote since the last call."""
        if self.log.stat().st_size == self._read:
            return []
        with open(self.log, "rb") as file:
            file.seek(self._read)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole.decode("utf-8", "replace").splitlines()

    def stop(self) -> None:
        """End the process, gently first, and remove its secret; may be called twice."""
        if self.running:
            self._process.terminate()
        try:
            self._process.wait(timeout=_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._secret_file.unlink(missing_ok=True)


def _environment(home: Path) -> dict[str, str]:
    """This process's environment, but with Flower's state and all temporary files inside `home`."""
    return {
        **os.environ,
        "FLWR_HOME": str(private_folder(home / "flwr")),
        "TMPDIR": str(private_folder(home / "tmp")),
        "NO_COLOR": "1",
        "PYTHONUNBUFFERED": "1",
    }


def private_folder(path: Path) -> Path:
    """The folder, made when missing, readable by its owner alone.

    Raises:
        InputError: it cannot be made.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path}: the folder cannot be made ({error.strerror})") from error
    return path


def _write_secret(path: Path) -> bytes:
    """A fresh random secret in a file that only its owner reads."""
    secret = secrets.token_bytes(32).hex().encode()
    path.unlink(missing_ok=True)
    write_private(path, secret, durable=False)
    return secret


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port that is free on `host` now."""
    with _socket(host) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def check_port(host: str, port: int, *, option: str) -> None:
    """Make sure that one may listen there.

    Raises:
        InputError: the port is taken, needs rights, or the host is not one of this machine's.
    """
    try:
        with _socket(host) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        raise InputError(
            f"{option} {host}:{port}: cannot listen there ({error.strerror}); give another port, or none for "
            "one that is free"
        ) from error


def _socket(host: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)


def split_address(address: str, *, option: str) -> tuple[str, int | None]:
    """Host and port of HOST:PORT or [HOST]:PORT; the port is None where it is left out.

    Raises:
        InputError: neither.
    """
    host, separator, port = address.rpartition(":")
    if not separator or address.endswith("]"):
        host, port = address, ""
    host = host.removeprefix("[").removesuffix("]")
    if not host or (port and not (port.isdigit() and 0 < int(port) < 65536)):
        raise InputError(f"{option} {address}: HOST:PORT is meant, such as 127.0.0.1:9092")
    return host, int(port) if port else None


def is_loopback(host: str) -> bool:
    """Whether every address of `host` is on this machine's loopback."""
    try:
        found = socket.getaddrinfo(host, None)
    except OSError:
        return False
    addresses = {entry[4][0] for entry in found}
    return all(str(address).startswith("127.") or address == "::1" for address in addresses)
