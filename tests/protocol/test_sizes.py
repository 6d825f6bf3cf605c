"""The largest message by the terms: every real one is smaller, and not by orders of magnitude."""

from __future__ import annotations

import numpy as np
import pytest
from builders import make_label_terms, make_terms

from pate_fed.protocol.messages import LabelReply, TeachRequest, VoteReply
from pate_fed.protocol.sizes import largest_messages
from pate_fed.structure import to_record

MARGIN = 2**20


def _bytes(message: object) -> int:
    values = to_record(message).values()
    return sum(each.nbytes if isinstance(each, np.ndarray) else len(str(each)) for each in values)


def test_a_batch_of_all_queries_is_smaller_and_a_margin_is_what_is_left() -> None:
    terms = make_terms(pool_size=200_000, max_queries=100_000, num_classes=10)
    votes = np.zeros((100_000, 10), dtype=np.int64)
    reply = VoteReply(party="north", batch_digest="00" * 32, votes=votes)
    allowed = largest_messages(terms).to_coordinator
    assert _bytes(reply) + MARGIN < allowed < _bytes(reply) + 2 * MARGIN


def test_no_study_has_more_questions_than_inputs() -> None:
    few, many = (make_terms(pool_size=2000, max_queries=asked) for asked in (2000, 90_000_000))
    assert largest_messages(few).to_coordinator == largest_messages(many).to_coordinator
    assert largest_messages(few).to_coordinator < 2 * MARGIN


@pytest.mark.parametrize("encoder", [None, "00" * 32])
def test_the_pool_and_the_encoder_of_the_terms_fit(encoder: str | None) -> None:
    terms = make_terms(pool_size=1000, image_shape=(28, 28, 1), encoder=encoder)
    pool = bytes(8 * 1000 * 28 * 28)
    request = TeachRequest(terms=terms.to_json(), pool=pool, encoder=b"" if encoder is None else bytes(10**7))
    size = len(request.terms) + len(request.pool) + len(request.encoder)
    allowed = largest_messages(terms).to_hospital
    assert size < allowed
    assert (allowed > len(pool) + 10 * MARGIN) == (encoder is not None)


def test_more_hospitals_send_more_key_material() -> None:
    one, many = (largest_messages(make_terms(num_clients=count, least_clients=1)) for count in (10, 1000))
    assert many.to_coordinator - one.to_coordinator == many.to_hospital - one.to_hospital - 2
    assert many.to_coordinator - one.to_coordinator > 990 * 500


def test_private_labels_of_a_whole_pool_fit() -> None:
    terms = make_label_terms()
    every = np.arange(terms.pool_size)
    reply = LabelReply(party="north", terms_digest="00" * 32, index=every, label=every)
    assert _bytes(reply) + MARGIN < largest_messages(terms).to_coordinator < 2 * MARGIN


def test_what_grpc_cannot_carry_is_not_asked_for() -> None:
    terms = make_terms(pool_size=100_000_000, image_shape=(1000,))
    assert largest_messages(terms).to_hospital == 2**31 - 1
