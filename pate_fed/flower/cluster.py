"""Parties on a Ray cluster that is there already: who is let in, which nodes play, and the Grid over them.

Flower's own engine on Ray has one pool of actors for all nodes: it sends a party's messages anywhere, goes on
giving messages to an actor that died, and works on no more of them at once than the driver has cores. So here
Flower's apps and messages go over a Grid of our own, whose actors keep to their nodes (`cluster_grid`).
"""

from __future__ import annotations

import logging
import os
import secrets
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pate_fed.errors import InputError, PateFedError
from pate_fed.flower.engine import take_back_sigterm
from pate_fed.flower.party_process import PROBE_FILE, PartySetup, installed_here
from pate_fed.runtime.object_store import stored_disks
from pate_fed.runtime.run_dir import check_writable, simulated_disks
from pate_fed.structure.faults import Tell, grouped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp

_MODE = "RAY_AUTH_MODE"
_SWITCHES = (  # what a party's process needs from the first import on; all else is set in it
    "FLWR_TELEMETRY_ENABLED",
    "FLWR_DISABLE_UPDATE_CHECK",
    "OMP_WAIT_POLICY",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """Which cluster, and what is taken of it.

    `insecure` says that its network is closed and it may ask for no token. `shared_dir` is a folder that all
    nodes share, or the URL of an object store.
    """

    address: str
    insecure: bool = False
    shared_dir: str | None = None
    device: str = "cpu"
    gpus_per_client: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartyKit:
    """What makes a process of any node play parties.

    `enter` makes the ClientApp from the folder of the parties' disks, what `things` gives and `data`, which
    go through Ray's object store; `disk` is a party's own folder in it. `things` and `together` are told the
    device on which parties train and how many processes play them; `together` neighbours are played by one
    process. `tell` hears at the end what went wrong at parties.
    """

    enter: Callable[[Path, Any, Any], ClientApp]
    disk: Callable[[Path, int], Path]
    things: Callable[[str, int], Any]
    data: Any
    together: Callable[[str, int], int]
    tell: Tell


def run_on_cluster(
    server_app: ServerApp, kit: PartyKit, cluster: ClusterSettings, *, num_nodes: int
) -> tuple[float, int]:
    """Run the ServerApp here and the parties on the cluster's nodes, until the ServerApp's main returns.

    The seconds in which parties worked, over all processes that played them, and how many those were.

    Raises:
        InputError: the cluster is not there, lets nobody in, lets everybody in, or has not what is asked for.
        PateFedError: its processes do not start, or none is left.
    """
    from pate_fed.flower.compat import quiet_flower

    with _joined(cluster), quiet_flower(), _shared_disk(cluster.shared_dir) as (where, probe):
        from pate_fed.flower.cluster_grid import ClusterGrid, free_places
        from pate_fed.flower.inline import run_on

        places, share = free_places(cluster.device, cluster.gpus_per_client, most=num_nodes)
        device = "cuda" if share else "cpu"
        work = PartySetup(
            enter=kit.enter,
            disk=kit.disk,
            things=kit.things(device, len(places)),
            installed=installed_here(),
            run=secrets.token_hex(8),
            shared=where if isinstance(where, Path) else None,
            store=where if isinstance(where, str) else None,
            probe=probe,
        )
        together = kit.together(device, len(places))
        with ClusterGrid(
            work, kit.data, places, num_nodes=num_nodes, num_gpus=share, together=together
        ) as grid:
            run_on(grid, server_app)
        kit.tell(grouped(grid.faults), None)
        return grid.seconds, len(places)


@contextmanager
def _joined(cluster: ClusterSettings) -> Iterator[None]:
    """Be in a cluster: its token is the user's own, which Ray finds where it always does."""
    mode_before = os.environ[_MODE]
    if cluster.insecure:
        os.environ[_MODE] = "disabled"  # read once, when Ray is imported
    try:
        from pate_fed.flower.compat import find_cluster, token_mode

        if token_mode() is cluster.insecure:
            raise PateFedError(
                "Ray was imported before, in another RAY_AUTH_MODE: start the study in a process of its own"
            )
        address = find_cluster(cluster.address)
        check_token(address, cluster)
        try:
            _join(address)
            yield
        finally:
            import ray

            ray.shutdown()
    finally:
        os.environ[_MODE] = mode_before


def check_token(address: str, cluster: ClusterSettings) -> None:
    """Hold that a cluster lets this user in, and nobody without a token unless its network is closed.

    Raises:
        InputError: it does not, or lets anyone in, or asks for a token where `insecure` says it does not.
    """
    from pate_fed.flower.compat import asks_for_token, token_header

    where, asks = f"the cluster at {address}", asks_for_token(address, {})
    if cluster.insecure and asks:
        raise InputError(f"--insecure-cluster: {where} asks for a token, so leave this option away")
    if cluster.insecure:
        return
    if not asks:
        raise InputError(
            f"{where} asks for no token: whoever reaches it can run code beside the parties' records. Start "
            "it with RAY_AUTH_MODE=token, or say by --insecure-cluster that its network is closed"
        )
    header = token_header()
    if not header or asks_for_token(address, header):
        what = "does not take this token" if header else "asks for a token"
        raise InputError(
            f"{where} {what}: Ray looks for it in RAY_AUTH_TOKEN, in the file that RAY_AUTH_TOKEN_PATH names "
            "and in ~/.ray/auth_token"
        )


def _join(address: str) -> None:
    """Make this process a driver of the cluster."""
    import ray

    from pate_fed.flower.compat import isolated_job, unheard_errors

    try:
        with unheard_errors(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(
                address=address,
                job_config=isolated_job(),
                runtime_env={"env_vars": {name: os.environ[name] for name in _SWITCHES}},
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
    except Exception as error:  # of many kinds, a plain Exception among them
        why = str(error).strip().partition("\n")[0]
        raise PateFedError(
            f"--ray-address {address}: the cluster is not joined ({why}); "
            "run this on one of its nodes, with the Python and the Ray that it has"
        ) from error
    take_back_sigterm()


@contextmanager
def _shared_disk(shared: str | None) -> Iterator[tuple[Path | str | None, str]]:
    """A new folder in the one that all nodes share, and what its probe holds, which is locked here.

    In an object store its URL, with a probe that nobody can put again.
    """
    probe = secrets.token_hex(16)
    if shared is None:
        yield None, ""
        return
    if "://" in shared:
        with stored_disks(shared, probe.encode()) as url:
            yield url, probe
        return
    parent = Path(shared)
    check_writable(parent / "any", option="--shared-dir")
    with simulated_disks(parent.absolute()) as folder, open(folder / PROBE_FILE, "w+") as file:
        file.write(probe)
        file.flush()
        os.fsync(file.fileno())
        flock(file, LOCK_EX)
        yield folder, probe
