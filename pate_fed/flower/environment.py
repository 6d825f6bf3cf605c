"""Environment switches of Flower and Ray, set before either is imported: nothing phones home."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["GUARD", "prepare_environment", "rest_idle_threads"]

GUARD = "PATE_FED_GUARD"  # what `guard` needs in a child, no secret among it

_SWITCHES = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",  # Ray listens on every interface; the token is each run's own, see `engine`
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DISABLE_DOCKER_CPU_WARNING": "1",
    "RAY_DEDUP_LOGS": "0",
    "RAY_worker_niceness": "0",  # the parties are the job itself, not work in the background
    "GRPC_VERBOSITY": "ERROR",
}


def prepare_environment() -> None:
    """Switch telemetry, update checks and usage statistics off, and put this Python's scripts on PATH.

    Telemetry stays off even where the user's environment asks for it: a hospital's promise is not a default.
    """
    os.environ.update(_SWITCHES)
    rest_idle_threads()
    scripts = str(Path(sys.executable).parent)
    path = os.environ.get("PATH", "")
    if scripts not in path.split(os.pathsep):
        # Flower starts its helpers (flower-superexec) by bare name.
        os.environ["PATH"] = os.pathsep.join([scripts, path]) if path else scripts


def rest_idle_threads() -> None:
    """Before torch is loaded: threads that wait in a loop make it several times slower on shared cores."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
