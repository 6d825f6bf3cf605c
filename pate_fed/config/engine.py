"""How a study runs here: on which engine and cluster, on which device, and how long answers may take."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pate_fed.config.backend import AUTO, INLINE
from pate_fed.config.sections import BACKENDS, PROCESSES
from pate_fed.structure import check, refusal, setting

__all__ = ["Engine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """How the study runs here; no figure of the result depends on it. Times in seconds."""

    backend: str = setting(
        AUTO,
        flags=("--backend",),
        help="Flower's engine on Ray, all in this process, or whichever takes less time",
        choices=BACKENDS,
        also=(PROCESSES,),
    )
    device: str = setting(
        "auto",
        flags=("--device",),
        help="auto, cpu or cuda",
        pattern=re.compile(r"auto|cpu|cuda(:\d+)?"),
        allowed="auto, cpu, cuda or cuda:N",
    )
    gpus_per_client: float | None = setting(
        None,
        flags=("--gpus-per-client",),
        help="share of a GPU a party takes (default: from free memory)",
        above=0,
        high=1,
    )
    ray_address: str | None = setting(
        None,
        flags=("--ray-address",),
        help="join this Ray cluster, auto or HOST:PORT (default: RAY_ADDRESS, else a Ray of its own)",
        pattern=re.compile(r"auto|\[?[\w.:-]+\]?:\d{1,5}"),
        allowed="auto or HOST:PORT",
    )
    shared_dir: str | None = setting(
        None,
        flags=("--shared-dir",),
        help="folder that all nodes of the cluster share: parties of a lost node go on elsewhere",
    )
    insecure_cluster: bool = setting(
        False,
        flags=("--insecure-cluster",),
        help="join a cluster that asks for no token: its network is closed",
    )
    teach_timeout_s: float = setting(
        86_400.0, help="longest wait for a party's teachers", unit="seconds", above=0, high=10**8
    )
    vote_timeout_s: float = setting(
        14_400.0, help="longest wait for a batch's votes", unit="seconds", above=0, high=10**8
    )

    def __post_init__(self) -> None:
        check(self)
        if self.ray_address is not None and self.backend == INLINE:
            raise refusal(self, "ray_address", "no --backend inline, which is one process,")
