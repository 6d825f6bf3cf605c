"""Which engine plays the parties: its settings, and the cheaper one where they leave it open."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from pate_fed.errors import InputError
from pate_fed.learning.settings import CLOSED_FORM, STACKED, TABLE_TEACHERS
from pate_fed.structure import check, refusal, setting

AUTO, RAY, INLINE = "auto", "ray", "inline"
CLUSTER = "cluster"
PROCESSES = "grpc"  # separate processes: set by python -m pate_fed.server, not by a user
# Stores that can put an object only where none is; credentials are where their libraries look for them.
_OBJECTS = re.compile(r"(s3|gs)://[\w.-]+(/[\w./-]*)?")
BACKENDS = (AUTO, RAY, INLINE)

# Seconds of one core, measured (tests/benchmarks/test_backend_benchmark.py prints them).
_TEACHER_S = {**dict.fromkeys(CLOSED_FORM, 0.1), STACKED: 0.15, **dict.fromkeys(TABLE_TEACHERS, 1.5)}
_HEAVY_S = 10.0  # a deep network takes 40, and of a user's own nobody knows
_PARTY_S = 0.15  # more where messages go through Ray's processes
_START_S = 15.0  # of Ray, and of torch in its processes
_WORTH_S = 30.0  # saved below which everything stays in one process


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """How the study runs here; no figure of the result depends on it. Times in seconds."""

    backend: str = setting(
        AUTO,
        "Flower's engine on Ray, all in this process, or whichever takes less time",
        "--backend",
        choices=BACKENDS,
        also=(PROCESSES,),
    )
    device: str = setting(
        "auto",
        "auto, cpu or cuda",
        "--device",
        pattern=re.compile(r"auto|cpu|cuda(:\d+)?"),
        allowed="auto, cpu, cuda or cuda:N",
    )
    gpus_per_client: float | None = setting(
        None, "share of a GPU a party takes (default: from free memory)", "--gpus-per-client", above=0, high=1
    )
    ray_address: str | None = setting(
        None,
        "join this Ray cluster, auto or HOST:PORT (default: RAY_ADDRESS, else a Ray of its own)",
        "--ray-address",
        pattern=re.compile(r"auto|\[?[\w.:-]+\]?:\d{1,5}"),
        allowed="auto or HOST:PORT",
    )
    shared_dir: str | None = setting(
        None,
        "folder or s3:// or gs:// that all nodes share: parties of a lost node go on elsewhere",
        "--shared-dir",
    )
    insecure_cluster: bool = setting(
        False, "join a cluster that asks for no token: its network is closed", "--insecure-cluster"
    )
    teach_timeout_s: float = setting(
        86_400.0, "longest wait for a party's teachers", unit="seconds", above=0, high=10**8
    )
    vote_timeout_s: float = setting(
        14_400.0, "longest wait for a batch's votes", unit="seconds", above=0, high=10**8
    )

    @property
    def played_on(self) -> str:
        """The backend as logs and reports tell it; "cluster" for a Ray that was there before."""
        joins = self.backend == RAY and self.ray_address is not None
        return CLUSTER if joins else self.backend

    def __post_init__(self) -> None:
        check(self)
        if self.backend == INLINE:
            for name in (
                "ray_address",
                "shared_dir",
                "insecure_cluster",
            ):  # auto leaves none
                if getattr(self, name) not in (None, False):
                    wanted = "would have no effect with --backend inline, one process; leave it out"
                    raise refusal(self, name, wanted)
        shared = self.shared_dir
        if shared is not None and "://" in shared and not _OBJECTS.fullmatch(shared):
            raise InputError(  # without the value: there may be a key in it
                "--shared-dir: a folder, s3://BUCKET/FOLDER or gs://BUCKET/FOLDER is meant, without a key; "
                "other stores are not known to put an object only where none is, on which journals rest"
            )


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cluster_address() -> str | None:
    """The cluster that Ray's own RAY_ADDRESS names: auto or HOST:PORT; None where it names none.

    Raises:
        InputError: it names a service of Ray that no study can join.
    """
    address = os.environ.get("RAY_ADDRESS", "")
    if "://" in address:
        raise InputError(
            f"RAY_ADDRESS {address}: auto or HOST:PORT of a cluster is meant, on one of its nodes; unset it, "
            "or give --backend inline"
        )
    return address if address not in ("", "local") else None


def cheaper_backend(teacher: str, *, num_clients: int, num_teachers: int, available: int) -> str:
    """The engine for so many parties and teachers of a kind on so many cores: Ray if it saves half a minute.

    In one process a single core works, on Ray all of them; but Ray takes its time to start, and every message
    goes through several processes. So Ray is for teachers that train for long, or for a great many parties on
    many cores.
    """
    work = num_teachers * _TEACHER_S.get(teacher, _HEAVY_S)
    on_ray = _seconds_on_ray(work, num_clients=num_clients, available=available)
    return RAY if work - on_ray >= _WORTH_S else INLINE


def teaching_seconds(
    teacher: str, *, backend: str, num_clients: int, num_teachers: int, available: int
) -> float | None:
    """Roughly how long teaching takes; of hospitals apart, at each. None: nobody knows of this teacher."""
    if teacher not in _TEACHER_S:
        return None
    work = num_teachers * _TEACHER_S[teacher]
    if backend == RAY:
        return _seconds_on_ray(work, num_clients=num_clients, available=available)
    return work if backend == INLINE else work / num_clients


def _seconds_on_ray(work: float, *, num_clients: int, available: int) -> float:
    return _START_S + (work + num_clients * _PARTY_S) / max(1, min(available, num_clients))
