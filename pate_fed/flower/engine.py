"""Engines for simulated parties: in one process, or Flower's own on Ray, with parties as actors."""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pate_fed.config.backend import INLINE, cores
from pate_fed.errors import InputError, PateFedError, naming_extras
from pate_fed.flower.compat import apart_from_signals, isolated_job, known_pools, own_token, quiet_flower

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

_LONGEST_FOLDER = 44  # a socket's path has at most 107 bytes, of which Ray's own part takes 63
_TEACHER_GPU_BYTES = 1.5e9  # CUDA context, weights and one batch of a party, with room to spare


def gpu_share(device: str, wanted: float | None, *, actors: int) -> float:
    """The fraction of a GPU that one party takes: as asked for, else from the memory that is free.

    Without torch, as where tables are all that is installed for, nothing takes one.

    Raises:
        InputError: a GPU was asked for by name and there is none.
    """
    if device == "cpu" or (device == "auto" and importlib.util.find_spec("torch") is None):
        return 0.0
    with naming_extras(f"--device {device}"):
        import torch
    count = torch.cuda.device_count()
    if count == 0:
        if device != "auto":
            raise InputError(f"--device {device}: no GPU is visible here; auto and cpu work without one")
        return 0.0
    if wanted is not None:
        return wanted
    free = min(torch.cuda.mem_get_info(gpu)[0] for gpu in range(count))
    by_memory = max(1, int(free // _TEACHER_GPU_BYTES))
    by_cores = max(1, -(-actors // count))
    return 1.0 / min(by_memory, by_cores)


def run_apps(
    server_app: ServerApp,
    load_client: Callable[[], ClientApp],
    *,
    backend: str,
    num_nodes: int,
    device: str = "cpu",
    gpus_per_client: float | None = None,
    folder: Path,
) -> None:
    """Run both apps until the ServerApp's main returns or raises.

    The backend "inline" runs in this process, any other on Flower's engine: a Ray that starts and ends here,
    with one actor a core, never more than parties. Torch in each actor uses one thread, so that votes do not
    depend on how many cores the machine has. Ray's sockets and its workers' logs go to `folder`, which the
    caller removes, where the path is short enough for a socket.

    Raises:
        PateFedError: Ray does not start.
    """
    if backend == INLINE:
        from pate_fed.flower.inline import run_inline

        run_inline(server_app, load_client(), num_nodes=num_nodes)
        return
    import ray

    actors = min(cores(), num_nodes)
    # Ray takes seconds to start, mostly waiting: the imports go on meanwhile. The thread that starts it stays
    # to the end, as Ray's processes die with their parent thread.
    with (
        own_token(),
        ThreadPoolExecutor(1) as aside,
        quiet_flower(),
        known_pools() as end_late,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        started = aside.submit(_start_ray, actors, folder / "ray")
        try:
            from flwr.simulation import run_simulation

            client_app = load_client()
            share = gpu_share(device, gpus_per_client, actors=actors)
            resources: dict[str, dict[str, Any]] = {"client_resources": {"num_cpus": 1, "num_gpus": share}}
            started.result()
            take_back_sigterm()
            app = _ending(server_app, end_late)
            run_simulation(app, client_app, num_supernodes=num_nodes, backend_config=resources)
        finally:
            ray.shutdown()


def _ending(server_app: ServerApp, end_late: Callable[[], None]) -> ServerApp:
    """The app, behind which parties that were given up are ended."""
    from flwr.serverapp import ServerApp

    def main(grid: Grid, context: Context) -> None:
        try:
            server_app(grid, context)
        finally:
            end_late()

    app = ServerApp()
    app.main()(main)
    return app


def take_back_sigterm() -> None:
    """Ray puts a handler of its own before ours, which has SIGTERM abort the process three seconds later."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM) or signal.SIG_DFL)
        signal.alarm(0)  # where the signal came while Ray was starting


def _start_ray(actors: int, folder: Path) -> None:
    """Start Ray on this machine alone; its workers look for modules where this process does."""
    import ray

    known = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*sys.path, *known]))
    try:
        with apart_from_signals():
            ray.init(
                address="local",  # whatever RAY_ADDRESS names
                num_cpus=actors,
                include_dashboard=False,
                job_config=isolated_job(),
                log_to_driver=False,
                logging_level=logging.ERROR,
                object_store_memory=256 * 1024**2,
                _temp_dir=str(folder) if len(str(folder)) <= _LONGEST_FOLDER else None,
            )
    except Exception as error:  # of many kinds, a plain Exception among them
        raise PateFedError(
            f"Ray does not start ({str(error).strip().partition(chr(10))[0]}): try again when the machine is "
            "less busy, or with --backend inline"
        ) from error
