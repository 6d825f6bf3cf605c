"""What leaves a hospital for 1,000 queries and 10 classes, in bytes as Flower sends them: at most 100 KB."""

from __future__ import annotations

import numpy as np
import pytest

from pate_fed.flower import prepare_environment

prepare_environment()

from flwr.app import Message

from pate_fed.flower.compat import set_identity
from pate_fed.flower.records import to_flower
from pate_fed.flower.supernode import _size
from pate_fed.protocol.messages import ANSWER, AnswerReply, EndReply, JoinReply, Reply, SumReply
from pate_fed.secure_sum import CoordinatorSum, HospitalSum, Identity, SumRange

QUERIES, CLASSES, MOST = 1000, 10, 100_000
STUDY = "ab" * 32


def _bytes(*replies: Reply) -> int:
    set_identity(run_id=1, node_id=1)
    return sum(_size(Message(to_flower(reply.to_record()), 2, ANSWER)) for reply in replies)


def test_votes_in_the_plain_stay_below() -> None:
    votes = np.random.default_rng(1).integers(0, 250, (QUERIES, CLASSES), dtype=np.uint8)
    sent = _bytes(
        JoinReply(party="north", terms_digest=STUDY),
        AnswerReply(party="north", batch_digest=STUDY, answer=votes),
        EndReply(party="north"),
    )
    assert QUERIES * CLASSES < sent < MOST // 4


@pytest.mark.parametrize("hospitals", [4, 50])
def test_votes_under_masks_stay_below(hospitals: int) -> None:
    coordinator = CoordinatorSum(Identity.generate(), study=STUDY, places=hospitals)
    machines = {}
    for number in range(hospitals):
        name = f"h{number}"
        machines[name] = HospitalSum.enrol(
            Identity.generate(), coordinator.enrol_request(), party=name, study=STUDY
        )
        coordinator.admit(machines[name].enrolment)
    coordinator.close_roster()
    for name, machine in machines.items():
        coordinator.note_pinned(machine.pin(coordinator.pin_request(name)))
    votes = np.random.default_rng(1).integers(0, 250, (QUERIES, CLASSES))
    batch = coordinator.open_batch(
        batch=0,
        batch_digest="cd" * 32,
        length=votes.size,
        sum_range=SumRange.votes(hospitals * 250),
    )
    sent = dict.fromkeys(machines, 0)
    for requests in batch.rounds():
        for name, request in requests.items():
            reply = machines[name].answer(request, lambda: votes)
            sent[name] += _bytes(SumReply(party=name, step=reply.to_bytes()))
            batch.take(reply)
    np.testing.assert_array_equal(batch.total(), hospitals * votes.reshape(-1))
    assert max(sent.values()) < MOST
