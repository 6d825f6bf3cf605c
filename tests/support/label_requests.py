"""Five hospitals with private labels: the requests that a coordinator sends them, as messages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from pate_fed.flower import prepare_environment

prepare_environment()

from flwr.app import Message

import clients.app
from pate_fed.flower.inline import InlineGrid
from pate_fed.flower.records import from_flower, to_flower
from pate_fed.kinds.labels import clusters_file
from pate_fed.kinds.make import PublicClusters, PublicPool, label_terms
from pate_fed.kinds.terms import Terms
from pate_fed.protocol.messages import ANSWER, JOIN, JoinReply, JoinRequest, Question, Record, parse_reply

RECORDS, CLASSES, HOSPITALS, CLUSTERS = 600, 4, 5, 6
POOL = "ab" * 32
LABEL = np.random.default_rng(1).integers(0, CLASSES, RECORDS)
CLUSTER = (LABEL + (np.arange(RECORDS) % 5 == 0)) % CLASSES
PARTS = tuple(np.sort(part) for part in np.array_split(np.random.default_rng(2).permutation(RECORDS), 5))
NOTHING = np.empty(0, dtype=np.int64)


def labels_terms(clusters: np.ndarray | None = None, **changes: Any) -> Terms:
    delta = changes.pop("delta", 1e-5)
    made = label_terms(
        PublicPool(size=RECORDS, digest=POOL, num_classes=CLASSES, shape=(8, 8, 1)),
        num_clients=HOSPITALS,
        quorum=0.8,
        epsilon=changes.pop("epsilon", 1.0),
        seed=changes.pop("seed", None),
        clusters=None if clusters is None else PublicClusters(place=clusters, count=CLUSTERS, delta=delta),
    )
    return replace(made, **changes)


def send_to(number: int, message_type: str, record: Record) -> Any:
    """One message to one hospital's ClientApp, and its reply."""
    grid = InlineGrid(clients.app.app, num_nodes=HOSPITALS)
    node = grid.get_node_ids()[number]
    (reply,) = grid.send_and_receive([Message(to_flower(record), node, message_type)])
    assert not reply.has_error()
    return parse_reply(from_flower(reply.content))


def ask_labels(number: int, terms: Terms, clusters: np.ndarray = NOTHING, enrol: bytes = b"") -> Any:
    """The reply to the terms or, where nothing is masked and it agreed, to the question."""
    request = JoinRequest(terms=terms.to_json(), file=clusters_file(clusters), enrol=enrol)
    reply = send_to(number, JOIN, request.to_record())
    if terms.secure_sum or not isinstance(reply, JoinReply):
        return reply
    every = np.arange(terms.pool_size, dtype=np.int64)
    return send_to(number, ANSWER, Question(terms_digest=terms.digest, batch=0, index=every).to_record())


def refusal_of(reply: Any) -> str:
    return str(getattr(reply, "code", f"no refusal: {type(reply).__name__}"))
