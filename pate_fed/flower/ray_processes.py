"""Parties' processes as Ray actors, each bound to its node of a cluster that this process has joined."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import ray
from flwr.app import Context, Message
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pate_fed.errors import InputError, PateFedError
from pate_fed.flower.party_pool import LostError
from pate_fed.flower.party_process import PartyProcess, PartySetup
from pate_fed.structure.faults import PartyFault


def free_places(device: str, wanted: float | None, *, most: int) -> tuple[list[str], float]:
    """Nodes that play parties, each as often as it has a core and its share of a GPU, and that share.

    With the device auto GPUs play where the cluster has any, as a core is far slower. At most `most` places
    are told, from all nodes alike.

    Raises:
        InputError: the cluster has none of what is asked for.
    """
    nodes = [node for node in _nodes() if node["Alive"]]
    gpus = {node["NodeID"]: float(node["Resources"].get("GPU", 0.0)) for node in nodes}
    cores = {node["NodeID"]: int(node["Resources"].get("CPU", 0.0)) for node in nodes}
    share = 0.0 if device == "cpu" or not any(gpus.values()) else wanted or 1.0
    if device.startswith("cuda") and not share:
        raise InputError(
            f"--device {device}: no node of the cluster has a GPU; auto and cpu work without one"
        )
    room = dict(cores)
    if share:
        room = {node: min(cores[node], math.floor(gpus[node] / share + 1e-9)) for node in cores}
    rounds = range(max(room.values(), default=0))
    places = [node for number in rounds for node in room if room[node] > number][:most]
    if not places:
        raise InputError("--ray-address: the cluster has no core for a party; give its nodes some")
    return places, share


class RayProcesses:
    """`Processes` of a pool: actors of this Ray job, which end with it.

    `data` are put into Ray's object store once, and each node's processes share one copy.
    """

    def __init__(
        self, work: PartySetup, data: Any, contexts: Mapping[int, Context], *, num_gpus: float
    ) -> None:
        self._work, self._data, self._contexts = work, ray.put(data), contexts
        self._num_gpus = num_gpus

    def start(self, node: str) -> tuple[Any, Any]:
        """A new process on a node, and the reference to its being ready."""
        where = NodeAffinitySchedulingStrategy(node, soft=False)
        actor: Any = ray.remote(PartyProcess)
        process = actor.options(
            num_cpus=1, num_gpus=self._num_gpus, max_restarts=0, scheduling_strategy=where
        ).remote(self._work, node)
        return process, process.enter.remote(self._data)

    def ask(self, process: Any, message: Message) -> Any:
        """Have a process answer a message; the reference to its reply and the seconds it took."""
        return process.answer.remote(message, self._contexts[message.metadata.dst_node_id])

    def wait(self, references: Sequence[Any], timeout_s: float) -> list[Any]:
        """Those that have come, once there is one or the time is over."""
        ready, _ = ray.wait(list(references), num_returns=1, timeout=timeout_s)
        if ready:  # and whatever else is there already
            ready, _ = ray.wait(list(references), num_returns=len(references), timeout=0)
        return list(ready)

    def result(self, reference: Any) -> Any:
        """What a reference stands for.

        Raises:
            LostError: its process is gone.
            PateFedError: the process says why it cannot play parties.
        """
        try:
            return ray.get(reference)
        except RayTaskError as error:
            cause = error.cause
            if isinstance(cause, PateFedError):
                raise type(cause)(str(cause)) from None
            raise PateFedError(f"a party's process on the cluster failed ({type(cause).__name__})") from error
        except RayError as error:  # the actor, its node, or what it needed is gone
            raise LostError(_told(error)) from error

    def stop(self, process: Any) -> None:
        """End a process that may not have died."""
        ray.kill(process)

    def lives(self, node: str) -> bool:
        """Whether a node is still in the cluster."""
        return any(each["NodeID"] == node and each["Alive"] for each in _nodes())

    def leave(self, processes: Sequence[Any], timeout_s: float) -> list[PartyFault]:
        """Have processes leave their folders and end; who does not within the time ends all the same.

        What went wrong at the parties of those that did.
        """
        left = [process.leave.remote() for process in processes]
        found: list[PartyFault] = []
        for done in ray.wait(left, num_returns=len(left), timeout=timeout_s)[0] if left else ():
            with suppress(RayError):  # it is gone
                found += ray.get(done)
        return found


def _nodes() -> list[dict[str, Any]]:
    untyped: Any = ray
    return list(untyped.nodes())


def _told(error: RayError) -> str:
    """What of Ray's error is for a user: the last line of what went wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    found = [line for line in lines if "Error: " in line]
    return (found or lines or [type(error).__name__])[-1][:300]
