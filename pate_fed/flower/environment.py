"""Environment switches of Flower and Ray, set before either is imported: nothing phones home."""

from __future__ import annotations

import os
import sys
from pathlib import Path

GUARD = "PATE_FED_GUARD"  # what `guard` needs in a child, no secret among it

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
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
    _spare_loopback()
    scripts = str(Path(sys.executable).parent)
    path = os.environ.get("PATH", "")
    if scripts not in path.split(os.pathsep):
        # Flower starts its helpers (flower-superexec) by bare name.
        os.environ["PATH"] = os.pathsep.join([scripts, path]) if path else scripts


def _spare_loopback() -> None:
    """No proxy between Flower's parts here; one of SOCKS is none for gRPC, and HTTPX fails at it."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        if os.environ[name].lower().startswith("socks"):
            del os.environ[name]
    for name in {"no_proxy", "NO_PROXY"} | ({"no_grpc_proxy"} & os.environ.keys()):
        spared = [each for each in os.environ.get(name, "").split(",") if each]
        os.environ[name] = ",".join([*spared, *(each for each in _LOOPBACK if each not in spared)])


def rest_idle_threads() -> None:
    """Before torch is loaded: threads that wait in a loop make it several times slower on shared cores."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
