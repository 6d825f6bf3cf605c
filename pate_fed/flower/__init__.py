"""The only room that knows Flower and Ray: environment, processes, messages, and the guard of the port.

Import nothing of flwr before `prepare_environment` has run: Flower and Ray read their switches at import.

Begin with `engine.py`, which plays a simulation, and `transport.py`, which says what carries a deployment:
`superlink.py` at the coordinator, `supernode.py` at a hospital. `host.py` and `connection.py` keep them at
work, `host.py` knows whose keys may come, `guard.py` stands between a stranger and the coordinator;
`line_1_39.py` has all that is bound to the inside of that Flower. `cluster.py` and `cluster_grid.py` are for
a Ray cluster: who is let in, and who plays where.
"""

import pate_fed.runtime.isolation  # noqa: F401  # first, for `python -m pate_fed.flower.processes`

# isort: split
import os
import sys
from pathlib import Path

__all__ = ["prepare_environment", "rest_idle_threads"]

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
