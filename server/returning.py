"""Hospitals without keys that were started again: other nodes to Flower, the same to us by their names.

Where hospitals have keys, a node keeps its id and this is not needed. Without keys (one machine, rehearsals)
whoever connects while a member is away is asked for the terms once more; if it answers under the member's
name, it is the member from then on. A name whose old node is still connected is not given away.
"""

from __future__ import annotations

from collections.abc import Mapping

from flwr.app import Message
from flwr.serverapp import Grid

from pate_fed.errors import IntegrityError
from pate_fed.flower.records import from_flower, to_flower
from pate_fed.protocol.messages import JOIN, JoinReply, Record, parse_reply

_ASK_S = 3600.0  # a hospital that lost its teachers trains them again first


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
