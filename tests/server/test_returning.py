"""A hospital without a key that is started again: another node, the same member once the old one is gone."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from pate_fed.flower import prepare_environment

prepare_environment()

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from pate_fed.flower.inline import InlineGrid
from pate_fed.flower.records import from_flower, to_flower
from pate_fed.protocol.messages import ANSWER, AnswerReply, JoinReply, JoinRequest, Question, RefusalReply
from server import exchange as module
from server.exchange import Presence, Returning, exchange

TERMS = "ab" * 32
MEMBERS = {2: "north", 3: "east"}  # the nodes 4 and 5 connect later


class _Grid(InlineGrid):
    """Messages to a node that is gone wait for ever, as Flower's do."""

    def __init__(self, names: dict[int, str], online: set[int]) -> None:
        self.names, self.online, self.voted = names, online, list[int]()
        app = ClientApp()

        def teach(message: Message, context: Context) -> Message:
            name = names[context.node_id]
            reply: Any = JoinReply(party=name, terms_digest=TERMS)
            if name == "stranger":
                reply = RefusalReply(party="north", code="POLICY_STUDY")
            return Message(to_flower(reply.to_record()), reply_to=message)

        def vote(message: Message, context: Context) -> Message:
            self.voted.append(context.node_id)
            digest = Question.from_record(from_flower(message.content)).digest
            votes = np.ones((1, 1), dtype=np.int64)
            reply = AnswerReply(party=names[context.node_id], batch_digest=digest, answer=votes)
            return Message(to_flower(reply.to_record()), reply_to=message)

        app.train("join")(teach)
        app.query("answer")(vote)
        super().__init__(app, num_nodes=4)

    def get_node_ids(self) -> list[int]:
        return sorted(self.online)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        reachable = [
            known for known in message_ids if self._waiting[known].metadata.dst_node_id in self.online
        ]
        return super().pull_messages(reachable)


def _vote(grid: _Grid, monkeypatch: pytest.MonkeyPatch, *, seconds: float = 3) -> dict[int, str | None]:
    monkeypatch.setattr(module, "_LOOK_S", 0.02)
    request = JoinRequest(terms="{}").to_record()
    question = Question(terms_digest=TERMS, batch=0, index=np.arange(1, dtype=np.int64)).to_record()
    returning = Returning(grid, MEMBERS, request)
    answers = exchange(
        grid,
        dict.fromkeys(MEMBERS, question),
        message_type=ANSWER,
        timeout_s=seconds,
        stop=threading.Event(),
        presence=Presence(grid, returning=returning),
    )
    return {answer.node: answer.reply and answer.reply.party for answer in answers}


def test_a_member_answers_from_its_new_node(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = _Grid({2: "north", 3: "east", 4: "stranger", 5: "north"}, {3, 4, 5})
    assert _vote(grid, monkeypatch) == {2: "north", 3: "east"}
    assert sorted(grid.voted) == [3, 5]


def test_a_name_whose_node_is_still_there_is_not_given_away(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = _Grid({2: "north", 3: "east", 4: "east", 5: "other"}, {3, 4, 5})
    assert _vote(grid, monkeypatch, seconds=0.3) == {2: None, 3: "east"}
    assert grid.voted == [3]


def test_it_is_taken_back_once_the_old_node_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = _Grid({2: "north", 3: "east", 4: "north", 5: "other"}, {3, 4})
    returning = Returning(grid, {2: "north", 3: "east"}, JoinRequest(terms="{}").to_record())
    grid.online = {2, 3, 4}
    assert returning.online({2, 3, 4}) == {2, 3}
    assert returning.node_of(2) == 2
    assert returning.online({3, 4}) == {3}
    assert returning.online({3, 4}) == {2, 3}
    assert (returning.node_of(2), returning.node_of(3), returning.node_of(9)) == (4, 3, 9)
