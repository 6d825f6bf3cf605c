"""Flower's long-running commands as child processes that end with their parent, in private folders."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from pate_fed.disk import write_private
from pate_fed.errors import PateFedError, naming_refusal
from pate_fed.flower import prepare_environment
from pate_fed.runtime.addresses import free_port

if TYPE_CHECKING:
    from pate_fed.flower.transport import LinkGuard, NodeGuard

PROTECTED = frozenset(
    f"/flwr.proto.Runtime/{name}" for name in ("AcquireTask", "PullPendingTasks", "ClaimTask")
)
"""Calls to a child that only who knows its secret may make."""

GUARD = "PATE_FED_GUARD"
"""The variable of a child with what `pate_fed.flower.guard` needs there, no secret among it."""

SECRET = "executor.secret"
"""The file of a child's secret, in its folder while it runs."""

_INTERNAL = "FLWR_INTERNAL_"  # variables that open further ports of a SuperLink, which nothing guards
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
    return [sys.executable, "-m", "pate_fed.flower.processes", command, str(os.getpid())]


class Child:
    """A SuperLink or SuperNode as a child process, whose tasks this process takes itself.

    `folder` holds all its state, its output among it, of the user's alone. It serves this process at
    `local_address`; only who knows its `secret` gets a task. `guard` is what `pate_fed.flower.guard` needs
    there; None: nothing guards it.
    """

    def __init__(
        self,
        command: str,
        arguments: Sequence[str],
        *,
        folder: Path,
        guard: LinkGuard | NodeGuard | None = None,
    ) -> None:
        port, self._secret_file = str(free_port()), private_folder(folder) / SECRET
        self.local_address, self.secret = f"127.0.0.1:{port}", secrets.token_hex(32).encode()
        write_private(self._secret_file, self.secret, durable=False)
        own = ["--host", "127.0.0.1", "--port", port, "--isolation", "process"]
        own += ["--superexec-auth-secret-file", str(self._secret_file)]
        self.log, self._read = folder / f"{command.removeprefix('flower-')}.log", 0
        handle = os.open(self.log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        try:
            self._process = subprocess.Popen(
                [*_started(command), *own, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=handle,
                stderr=handle,
                env=_environment(folder) | {GUARD: json.dumps(asdict(guard)) if guard else ""},
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
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_INTERNAL)}
    return {
        **inherited,
        "FLWR_HOME": str(private_folder(home / "flwr")),
        "TMPDIR": str(private_folder(home / "tmp")),
        "NO_COLOR": "1",
        "PYTHONUNBUFFERED": "1",
    }


def private_folder(path: Path) -> Path:
    """The folder, made when missing, readable by its owner alone; InputError where it cannot be made."""
    with naming_refusal(f"{path}: the folder cannot be made"):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


_WATCH_S = 0.5
_END_S = 5.0


def main() -> None:
    """Run one of Flower's commands in this process: its name, the parent's process id, its own arguments.

    However the parent ends, also when it is killed, this process notices within a second and goes too. With
    TLS its environment holds what `pate_fed.flower.guard` needs.
    """
    command, parent = sys.argv[1], int(sys.argv[2])
    prepare_environment()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    sys.argv = [command, *sys.argv[3:]]
    code = 1
    try:
        _run(command)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    # Flower's own threads would keep a SuperNode alive whose main thread is gone.
    sys.stderr.flush()
    os._exit(code)


def _run(command: str) -> None:
    if settings := os.environ.pop(GUARD, ""):
        from pate_fed.flower.line_1_39 import install

        install(command, settings)
    if command == "flower-superlink":
        from flwr.superlink.cli.flower_superlink import flower_superlink

        from pate_fed.flower.line_1_39 import patch_superlink

        patch_superlink()
        flower_superlink()
    elif command == "flower-supernode":
        from flwr.supernode.cli.flower_supernode import flower_supernode

        from pate_fed.flower.line_1_39 import patch_supernode

        patch_supernode()
        flower_supernode()
    else:
        raise ValueError(f"unknown command {command!r}")


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_WATCH_S)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_END_S)
    os._exit(1)


if __name__ == "__main__":
    main()
