"""A process on a node of a cluster that plays parties: what Ray starts there, one a core or share of a GPU.

Nothing of Flower is imported before the switches are set that keep it from phoning home.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import os
import platform
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pate_fed.errors import InputError, naming_refusal
from pate_fed.flower import prepare_environment
from pate_fed.runtime.object_store import ObjectStore, StoredFolder
from pate_fed.runtime.run_dir import disk_on_node, simulated_disks
from pate_fed.structure.faults import PartyFault, read_faults

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp

PROBE_FILE = "probe"  # in a shared folder: what it holds, and that it is locked, is seen from every node

_MOST_TRIES = 3  # to answer for a party that another process answers for at the same time
_COMPARED = ("pate_fed", "flwr", "numpy", "torch", "scikit-learn")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartySetup:
    """What a process needs to play parties, wherever it runs.

    `enter` makes the ClientApp from the folder of the parties' disks, `things` and the data; `disk` is where
    in it a party's own lies, by its number. `installed` is what the driver has. `shared` is the folder that
    all nodes have, or `store` the URL of objects, with `probe` in it; neither: each node has its own folder,
    called after `run`.
    """

    enter: Callable[[Path, Any, Any], ClientApp]
    things: Any
    installed: dict[str, str]
    run: str
    disk: Callable[[Path, int], Path]
    shared: Path | None = None
    store: str | None = None
    probe: str = ""

    @property
    def outlives_nodes(self) -> bool:
        """Whether parties' folders are where other nodes can go on with them."""
        return self.shared is not None or self.store is not None


class PartyProcess:
    """One process that plays parties in turn, as a Ray actor."""

    def __init__(self, work: PartySetup, node: str) -> None:
        self._work, self._node = work, node
        self._held = ExitStack()
        self._app: ClientApp | None = None
        self._folder: Path | None = None
        self._store: ObjectStore | None = None
        self._stored: dict[int, StoredFolder] = {}

    def enter(self, data: Any) -> None:
        """Get ready: the same versions as the driver's, the parties' folder, the study, its data.

        Raises:
            InputError: this node is not one that can play parties of this study.
        """
        prepare_environment()
        work = self._work
        _check_installed(work.installed, self._node)
        if work.shared is not None:
            _check_shared(work.shared, work.probe, self._node)
            folder = work.shared
        elif work.store is not None:
            self._store = ObjectStore(work.store)
            self._store.check(work.probe.encode())
            folder = self._held.enter_context(simulated_disks())
        else:
            folder = self._held.enter_context(disk_on_node(f"{work.run}-{self._node[:8]}"))
        self._folder = folder
        try:
            self._app = work.enter(folder, work.things, data)
        except InputError as error:
            raise InputError(f"node {self._node[:8]} of the cluster: {error}") from error

    def answer(self, message: Message, context: Context) -> tuple[Message, float]:
        """A party's reply, and the seconds that it took."""
        from pate_fed.flower.compat import set_identity

        set_identity(run_id=context.run_id, node_id=context.node_id)
        start = time.perf_counter()
        return self._answer(message, context), time.perf_counter() - start

    def _answer(self, message: Message, context: Context) -> Message:
        from pate_fed.flower.inline import answer_message, failed

        if self._app is None or self._folder is None:
            raise RuntimeError("asked before it was ready")
        if self._store is None:
            return answer_message(self._app, message, context)
        number = int(str(context.node_config["partition-id"]))
        disk = self._work.disk(self._folder, number)
        stored = self._stored.setdefault(number, StoredFolder(self._store, disk.name, disk))
        try:
            for _ in range(_MOST_TRIES):
                stored.fetch()
                reply = answer_message(self._app, message, context)
                if stored.commit():
                    return reply
        except Exception as error:  # of many kinds; nobody knows whether it was put, so nothing is sent
            stored.drop()
            return failed(message, reason=type(error).__name__)
        return failed(message, reason="others answer for this party")

    def leave(self) -> list[PartyFault]:
        """Leave the parties' folder; the last process of a node takes it away. What went wrong at them."""
        found = [] if self._folder is None else read_faults(self._folder)
        self._held.close()
        return found


def installed_here() -> dict[str, str]:
    """Versions on which a vote may depend; what is not installed is left out."""
    found = {"Python": ".".join(platform.python_version_tuple()[:2])}
    for name in _COMPARED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _check_installed(wanted: dict[str, str], node: str) -> None:
    here = installed_here()
    for name in wanted.keys() | here.keys():
        ours, theirs = here.get(name, "none"), wanted.get(name, "none")
        if ours != theirs:
            raise InputError(
                f"node {node[:8]} of the cluster has {name} {ours}, this command {theirs}: install the same "
                "on all nodes, best by one container image"
            )


def _check_shared(folder: Path, probe: str, node: str) -> None:
    """Hold that a folder is the driver's own, and that a lock of its is seen here: journals rest on it."""
    what = f"--shared-dir {folder.parent}: on node {node[:8]} of the cluster"
    with naming_refusal(f"{what} it is another folder, or cannot be written"):
        handle = os.open(folder / PROBE_FILE, os.O_RDWR)
    try:
        if os.read(handle, 1000).decode() != probe:
            raise InputError(f"{what} it is another folder")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        raise InputError(
            f"{what} locks of other nodes are not seen; use a file system with locks over the network, such "
            "as NFS 4, or Lustre mounted with flock"
        )
    finally:
        os.close(handle)
