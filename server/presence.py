"""Which of a study's nodes are connected and admitted, over all its exchanges; who comes back as which node.

Where hospitals have keys, a node keeps its id. Without keys (one machine, rehearsals) one that was started
again is another node to Flower: whoever connects while a member is away is asked for the terms once more; if
it answers under the member's name, it is the member from then on. A name whose old node is still connected is
not given away.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from flwr.app import Message
from flwr.serverapp import Grid

from pate_fed.errors import IntegrityError
from pate_fed.flower.records import from_flower, to_flower
from pate_fed.protocol.messages import JOIN, JoinReply, Record, parse_reply

PATIENCE_S = 90.0
"""How long a node that is away may take to come back before the others go on without it.

Flower holds a lost node's seat for 20 s (`pate_fed.flower.guard`); starting again takes some more.
"""
_LOOK_S = 2.0
_ASK_S = 3600.0  # a hospital that lost its teachers trains them again first


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


class Returning:
    """The members' nodes of now. `members` are names by the node that each was first; that stays their id."""

    def __init__(self, grid: Grid, members: Mapping[int, str], request: Record) -> None:
        self._grid, self._request = grid, request
        self._member = {name: node for node, name in members.items()}
        self._now = {node: node for node in members}
        self._asked: dict[str, int] = {}
        self._claims: dict[int, str] = {}
        self._seen = set(members)

    def node_of(self, member: int) -> int:
        """The node that plays a member now."""
        return self._now.get(member, member)

    def online(self, nodes: set[int]) -> set[int]:
        """Which members are among the connected `nodes`; those that are new are asked who they are."""
        away = {member for member, node in self._now.items() if node not in nodes}
        if away:
            self._ask(nodes - self._seen)
        self._hear()
        for node, name in self._claims.items():
            member = self._member.get(name)
            if node in nodes and member in away:
                self._now[member] = node
        # One that is back counts from the next look on, so that whoever watches has seen it away.
        return set(self._now) - away

    def _ask(self, nodes: set[int]) -> None:
        new = sorted(nodes)
        messages = [Message(to_flower(self._request), node, JOIN, ttl=_ASK_S) for node in new]
        self._asked.update(zip(self._grid.push_messages(messages), new, strict=True))
        self._seen |= nodes

    def _hear(self) -> None:
        for message in list(self._grid.pull_messages(list(self._asked))) if self._asked else ():
            node = self._asked.pop(message.metadata.reply_to_message_id, None)
            if node is not None:
                self._claims[node] = _name(message)


def _name(message: Message) -> str:
    """Under whose name a node agreed to the terms; empty where it did not."""
    try:
        reply = None if message.has_error() else parse_reply(from_flower(message.content))
    except IntegrityError:
        return ""
    return reply.party if isinstance(reply, JoinReply) else ""
