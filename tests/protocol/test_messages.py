"""Messages survive the wire, and nothing malformed gets past it."""

from __future__ import annotations

import numpy as np
import pytest
from builders import make_terms

from pate_fed.errors import IntegrityError
from pate_fed.protocol.messages import (
    MOST_STUDENT,
    AnswerReply,
    EndRequest,
    JoinReply,
    JoinRequest,
    Question,
    Refusal,
    RefusalReply,
    parse_reply,
)

TERMS = make_terms()


@pytest.mark.parametrize("summary", ["\x1b[2J all is well", "two\nSUCCESS  ε=0", "a" * 301])
def test_what_a_coordinator_says_at_the_end_cannot_steer_a_terminal(summary: str) -> None:
    fair = EndRequest(status="success", exit_code=0, summary="ε=1.000 δ=1e-05 labels=3")
    assert EndRequest.from_record(fair.to_record()) == fair
    with pytest.raises(IntegrityError, match="printable"):
        EndRequest.from_record({**fair.to_record(), "summary": summary})


def test_no_student_comes_that_is_too_large() -> None:
    fair = EndRequest(status="success", exit_code=0, summary="", student=bytes(MOST_STUDENT))
    with pytest.raises(IntegrityError, match="at most 67,108,864 bytes"):
        EndRequest.from_record({**fair.to_record(), "student": bytes(MOST_STUDENT + 1)})


def _request(**changes: object) -> Question:
    values = {"terms_digest": TERMS.digest, "batch": 0, "index": np.arange(5)}
    return Question(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "message",
    [
        JoinReply(party="a", terms_digest="d"),
        AnswerReply(party="a", batch_digest="d", answer=np.eye(3, dtype=np.int64)),
        RefusalReply(party="a", code=Refusal.POOL.name),
    ],
)
def test_replies_survive(message: JoinReply | AnswerReply | RefusalReply) -> None:
    got = parse_reply(message.to_record())
    assert got.to_record().keys() == message.to_record().keys()
    for name, value in message.to_record().items():
        np.testing.assert_array_equal(got.to_record()[name], value)


def test_fields_missing_unknown_or_of_the_wrong_type_are_refused() -> None:
    good = JoinReply(party="a", terms_digest="d").to_record()
    for bad in (
        {**good, "weights": np.zeros(3)},
        {name: value for name, value in good.items() if name != "party"},
        {**good, "num_teachers": 2.0},
        {**good, "num_teachers": True},
        {**good, "party": 3},
        {**good, "kind": "gradients"},
        {},
    ):
        with pytest.raises(IntegrityError):
            parse_reply(bad)
    votes = AnswerReply(party="a", batch_digest="d", answer=np.eye(2, dtype=np.int64)).to_record()
    with pytest.raises(IntegrityError):
        parse_reply({**votes, "votes": np.eye(2)})


def test_a_request_survives() -> None:
    request = _request()
    assert Question.from_record(request.to_record()).digest == request.digest
    assert JoinRequest.from_record(JoinRequest(terms="t").to_record()) == JoinRequest(terms="t")


def test_batches_have_different_digests() -> None:
    changes = [
        {},
        {"batch": 1},
        {"measured": 1},
        {"index": np.arange(6)},
        {"index": np.arange(5)[::-1]},
    ]
    assert len({_request(**change).digest for change in changes}) == len(changes)


@pytest.mark.parametrize(("measured", "released"), [(0, [0, 1, 2, 3, 4]), (2, [0, 1, 2]), (5, []), (7, [])])
def test_of_the_last_places_nothing_is_released(measured: int, released: list[int]) -> None:
    assert _request(measured=measured).released.tolist() == released


def test_no_fewer_places_than_none_are_measured() -> None:
    with pytest.raises(IntegrityError, match="measured"):
        Question.from_record({**_request().to_record(), "measured": -1})


def test_an_unknown_refusal_is_a_fault() -> None:
    assert RefusalReply(party="a", code="my patient is Ann").refusal is Refusal.FAULT


def test_votes_are_hidden_in_a_repr() -> None:
    assert "31" not in repr(AnswerReply(party="a", batch_digest="d", answer=np.full((2, 2), 31)))
