"""Flower's Grid over the nodes of a Ray cluster that this process has joined."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self

from flwr.app import Message

from pate_fed.flower.inline import PartiesGrid
from pate_fed.flower.party_pool import PartyPool
from pate_fed.flower.party_process import PartySetup
from pate_fed.flower.ray_processes import RayProcesses
from pate_fed.structure.faults import PartyFault

_FIRST_S, _OTHERS_S = 180.0, 60.0  # until a first process plays, and until all do
_SLICE_S = 1.0
_LEAVE_S = 10.0


class ClusterGrid(PartiesGrid):
    """Delivers messages to processes on `places`, each the node of one process, and ends them with itself.

    `seconds` are those in which parties worked; `faults`, at the end, what went wrong at them.
    """

    def __init__(
        self,
        work: PartySetup,
        data: Any,
        places: Sequence[str],
        *,
        num_nodes: int,
        num_gpus: float,
        together: int,
    ) -> None:
        super().__init__(num_nodes=num_nodes)
        self.seconds = 0.0
        self.faults: list[PartyFault] = []
        self._processes = RayProcesses(work, data, self._contexts, num_gpus=num_gpus)
        self._pool = PartyPool(
            self._processes,
            places,
            numbers={node: number for number, node in enumerate(self._contexts)},
            together=together,
            shared=work.outlives_nodes,
        )

    def __enter__(self) -> Self:
        self._pool.begin(most_s=_FIRST_S, others_s=_OTHERS_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.faults = self._processes.leave(self._pool.processes(), _LEAVE_S)

    def _queue(self, messages: dict[str, Message]) -> None:
        self._pool.put(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Replies that are there, else those that come within a second."""
        found = self._pool.take(set(message_ids), _SLICE_S)
        self.seconds += sum(seconds for _, seconds in found)
        return [reply for reply, _ in found]
