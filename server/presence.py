"""Which of a study's nodes are connected and admitted, over all its exchanges."""

from __future__ import annotations

import time
from collections.abc import Callable

from flwr.serverapp import Grid

from server.returning import Returning

PATIENCE_S = 90.0
"""How long a node that is away may take to come back before the others go on without it.

Flower holds a lost node's seat for 20 s (`pate_fed.flower.guard`); starting again takes some more.
"""
_LOOK_S = 2.0


class Presence:
    """Who is away, and since when; looked at every few seconds while answers are waited for.

    `returning` knows under which other node a party without a key has come back. `admitted` says of a node
    whether it may be asked and heard, at any time anew; None: all may.
    """

    def __init__(
        self, grid: Grid, *, returning: Returning | None = None, admitted: Callable[[int], bool] | None = None
    ) -> None:
        self.returning, self._grid, self._admitted = returning, grid, admitted
        self._away: dict[int, float] = {}
        self._next = 0.0

    def begin(self) -> None:
        """A new exchange begins: who has come back since the last one is not away.

        Who has been away for long stays so, and is not waited for each time anew.
        """
        self._next = time.monotonic() + _LOOK_S
        if self._away:
            online = self._online()
            self._away = {node: since for node, since in self._away.items() if node not in online}

    def is_admitted(self, node: int) -> bool:
        """Whether a node may be asked and heard now."""
        return self._admitted is None or self._admitted(node)

    def node_of(self, node: int) -> int:
        """Under which node to reach who was first known as `node`."""
        return node if self.returning is None else self.returning.node_of(node)

    def miss(self, node: int) -> None:
        """Note that a node is away, however short."""
        self._away.setdefault(node, time.monotonic())

    def look(self, asked: set[int]) -> tuple[set[int], set[int]]:
        """Of the nodes that were asked those that have been away for too long, and those that are back."""
        now = time.monotonic()
        if now < self._next:
            return set(), set()
        self._next = now + _LOOK_S
        online = self._online()
        for node in asked - online:
            self._away.setdefault(node, now)
        back = {node for node in self._away if node in online and node in asked}
        self._away = {node: since for node, since in self._away.items() if node not in online}
        gone = {node for node, since in self._away.items() if now - since > PATIENCE_S and node in asked}
        return gone, back

    def _online(self) -> set[int]:
        online = set(self._grid.get_node_ids())
        return online if self.returning is None else self.returning.online(online)
