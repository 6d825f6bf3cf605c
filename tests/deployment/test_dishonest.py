"""Hospitals that break the protocol over the wire: each is left out for its reason, honest ones finish."""

from __future__ import annotations

import json
from typing import Any

import pytest
from builders import PLAIN_POLICY

from pate_fed.privacy import verify

pytestmark = pytest.mark.slow

# One process plays them all, each with a SuperNode of its own.
DISHONEST = """
import sys, time
from pathlib import Path
import numpy as np
from pate_fed.flower import prepare_environment
prepare_environment()
from flwr.app import Message
from flwr.clientapp import ClientApp
from pate_fed.flower.records import from_flower, to_flower
from pate_fed.flower import supernode
from pate_fed.flower.supernode import SuperNode
from pate_fed.protocol.messages import EndReply, JoinReply, Question
from pate_fed.kinds.terms import Terms

# An honest program would read its own reply, and not send this one.
supernode.from_flower = lambda content: {}

def votes_of(kind, queries):
    good = np.zeros((queries, 2), dtype=np.uint8)
    good[:, 0] = 3
    return {
        "shape": good[:-1],
        "nan": np.full((queries, 2), np.nan),
        "negative": good + np.array([-4, 4]),
        "many": good * 50,
        "huge": np.zeros((8_000_000, 2), dtype=np.uint8),
    }.get(kind, good)

def make(name):
    app, over = ClientApp(), []
    @app.train("join")
    def teach(message, context):
        terms = Terms.from_json(from_flower(message.content)["terms"])
        reply = JoinReply(party=name, terms_digest=terms.digest)
        return Message(to_flower(reply.to_record()), reply_to=message)
    @app.query("answer")
    def vote(message, context):
        request = Question.from_record(from_flower(message.content))
        votes = votes_of(name, len(request.index))
        record = {"kind": "answer", "party": name, "batch_digest": request.digest, "answer": votes,
                  "statement": b""}
        return Message(to_flower(record), reply_to=message)
    @app.query("end")
    def end(message, context):
        over.append(True)
        return Message(to_flower(EndReply(party=name).to_record()), reply_to=message)
    return app, over

names = sys.argv[2:]
nodes = [(SuperNode(Path(f"dishonest-{number}"), sys.argv[1], tls=None), *make(name))
         for number, name in enumerate(names)]
try:
    while not all(over for _, _, over in nodes):
        for node, app, _ in nodes:
            node.answer_next(app, refuse_bundle=lambda: {})
        time.sleep(0.1)
    time.sleep(8)  # the last replies are on their way
finally:
    for node, _, _ in nodes:
        node.stop()
"""


def test_whatever_a_dishonest_hospital_sends_only_costs_its_own_votes(rehearsal: Any) -> None:
    folder = rehearsal.folder
    study = rehearsal.write_tables(private=False)
    study = study.replace("num_clients = 3", "num_clients = 9").replace("quorum = 0.6", "quorum = 0.33")
    study = study.replace("batch_size = 30", "batch_size = 60")
    (folder / "study.toml").write_text(study, encoding="utf-8")
    (folder / "policy.toml").write_text(PLAIN_POLICY, encoding="utf-8")
    server = rehearsal.server("--insecure")
    kinds = ("shape", "nan", "negative", "many", "huge", "twin", "twin")
    dishonest = rehearsal.start("dishonest", "-c", DISHONEST, rehearsal.address, *kinds)
    options = ("--insecure", "--policy", "policy.toml")
    honest = [rehearsal.hospital(name, f"{name}.csv", *options) for name in ("north", "east")]
    assert server.wait(400) == 0, server.text + dishonest.text
    assert [party.wait(90) for party in honest] == [0, 0]
    assert dishonest.wait(90) == 0, dishonest.text
    lines = (folder / "run" / "log.jsonl").read_text(encoding="utf-8").splitlines()
    out = {
        (event["party"], event["phase"]): event["reason"]
        for event in map(json.loads, lines)
        if event["event"] == "left_out"
    }
    assert out.pop(("twin", "teach")) == "another party is already called twin"
    assert set(out) == {(name, "vote") for name in ("shape", "nan", "negative", "many", "huge")}
    for name, words in {
        "shape": "the answer has the shape (59, 2), not (60, 2)",
        "nan": "not readable",
        "negative": "int64, not uint8",
        "many": "an entry is more than 3",
        "huge": "the shape (8000000, 2)",
    }.items():
        assert words in out[name, "vote"], out
    assert verify(folder / "run" / "ledger.sqlite").answered == 60
