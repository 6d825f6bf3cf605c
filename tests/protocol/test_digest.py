"""A message's digest: the same on either side of the wire, another one for whatever differs."""

from __future__ import annotations

import numpy as np
import pytest
from builders import make_terms

from pate_fed.flower import prepare_environment

prepare_environment()

from pate_fed.flower.records import from_flower, to_flower
from pate_fed.protocol.messages import Agreed, AnswerReply, Record, parse_reply, record_digest

VOTES = AnswerReply(party="north", batch_digest="ab", answer=np.arange(6).reshape(2, 3))


def test_both_sides_compute_the_same() -> None:
    sent = VOTES.to_record()
    received = parse_reply(from_flower(to_flower(sent))).to_record()
    assert record_digest(sent) == record_digest(received)


def test_whatever_differs_has_another_digest() -> None:
    record: Record = {"kind": "a", "x": 1, "y": "1", "z": b"1"}
    changed: list[Record] = [
        record,
        {**record, "x": 1.0},
        {**record, "x": "1"},
        {**record, "y": b"1"},
        {**record, "z": "1"},
        {**record, "x": 2},
        {"kind": "a", "x": 1, "y": "1"},
        {"kind": "a", "x": 1, "y": "1", "zz": b"1"},
        VOTES.to_record(),
        {**VOTES.to_record(), "answer": VOTES.answer.reshape(3, 2)},
        {**VOTES.to_record(), "answer": VOTES.answer.T.copy()},
        {**VOTES.to_record(), "answer": VOTES.answer + 1},
    ]
    assert len({record_digest(each) for each in changed}) == len(changed)


def test_terms_are_written_out_once_for_their_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for with every message; other terms have their own."""
    written: list[str] = []
    whole = Agreed.to_json

    def count(terms: Agreed) -> str:
        written.append(whole(terms))
        return written[-1]

    monkeypatch.setattr(Agreed, "to_json", count)
    terms, other = make_terms(), make_terms(labels=201)
    found = [each.digest for each in (terms, other, terms, other, terms)]
    assert len(set(found)) == len(written) == 2 and found[0] == found[2] == found[4]


def test_what_no_message_has_is_refused() -> None:
    for value in (np.zeros(2), None, [1]):
        with pytest.raises(TypeError):
            record_digest({"kind": "a", "x": value})  # type: ignore[dict-item]
