"""One batch at the coordinator: what it takes, and when; batches beside and after each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pate_fed.errors import IntegrityError, QuorumError
from pate_fed.secure_sum import (
    RefusedError,
    SumRefusal,
)

VALUES = np.arange(20, dtype=np.int64).reshape(4, 5)


def test_duplicates_late_and_early_replies_are_refused(federation: Any) -> None:
    parties = federation(4)
    batch, other = parties.open(5), parties.open(5)
    shares = parties.ask("hospital-0", batch.opening)
    batch.take(shares)
    with pytest.raises(IntegrityError, match="hospital-0 sent a second message"):
        batch.take(shares)
    with pytest.raises(IntegrityError, match="answered another batch"):
        other.take(shares)
    for name in parties.names[1:]:
        batch.take(parties.ask(name, batch.opening))
    vector = parties.ask("hospital-0", batch.mask_requests()["hospital-0"], VALUES[0])
    batch.take(vector)
    with pytest.raises(IntegrityError, match="second"):
        batch.take(vector)
    with pytest.raises(IntegrityError, match="after that step was closed"):
        batch.take(shares)
    with pytest.raises(IntegrityError, match="before that step was opened"):
        other.take(replace(vector, **other.opening.head))


def test_a_hospital_declared_lost_cannot_come_back(federation: Any) -> None:
    parties = federation(4)
    batch = parties.until("share", VALUES)
    requests = batch.mask_requests()
    replies = [parties.ask(name, requests[name], VALUES[i]) for i, name in enumerate(parties.names)]
    for reply in replies[:3]:
        batch.take(reply)
    notice = batch.survivor_notice()
    assert batch.survivors == ("hospital-0", "hospital-1", "hospital-2")
    with pytest.raises(IntegrityError, match=r"hospital-3 sent .* after that step was closed"):
        batch.take(replies[3])
    with pytest.raises(RefusedError) as caught:
        parties.ask("hospital-3", notice)
    assert caught.value.reason is SumRefusal.SURVIVORS


def test_a_vector_that_is_withdrawn_is_not_in_the_sum(federation: Any, vectors: Any) -> None:
    parties, values = federation(5), vectors(5, 5)
    batch = parties.until("share", values)
    requests = batch.mask_requests()
    replies = [parties.ask(name, requests[name], values[i]) for i, name in enumerate(parties.names)]
    for reply in replies[:4]:
        batch.take(reply)
    with pytest.raises(IntegrityError, match="no vector that could be withdrawn"):
        batch.withdraw(replies[4])
    batch.take(replies[4])
    batch.withdraw(replies[2])
    notice, left = batch.survivor_notice(), [0, 1, 3, 4]
    assert batch.survivors == tuple(parties.names[number] for number in left)
    for number in left:
        batch.take(parties.ask(parties.names[number], notice))
    request = batch.unmask_request()
    for number in left:
        batch.take(parties.ask(parties.names[number], request))
    np.testing.assert_array_equal(batch.total(), values[left].sum(axis=0))
    with pytest.raises(IntegrityError, match="after that step was closed"):
        batch.withdraw(replies[3])


def test_a_batch_after_a_void_one_is_exact(federation: Any, vectors: Any) -> None:
    parties, values = federation(5), vectors(5, 5)
    with pytest.raises(QuorumError):
        parties.total(values, drop={"mask": {0, 1, 2}})
    np.testing.assert_array_equal(parties.total(values), values.sum(axis=0))


def test_a_hospital_that_was_lost_takes_part_in_the_next_batch(federation: Any, vectors: Any) -> None:
    parties, values = federation(5), vectors(5, 5)
    for _ in range(3):
        np.testing.assert_array_equal(parties.total(values, drop={"mask": {2}}), values[[0, 1, 3, 4]].sum(0))
        np.testing.assert_array_equal(parties.total(values), values.sum(axis=0))


def test_batches_may_overlap(federation: Any, vectors: Any) -> None:
    parties, values = federation(4), vectors(4, 5)
    first = parties.until("share", values)
    np.testing.assert_array_equal(parties.total(values), values.sum(axis=0))
    for step in ("mask", "consent", "unmask"):
        for name, request in parties.requests(first, step, parties.names).items():
            first.take(parties.ask(name, request, values[parties.names.index(name)]))
    np.testing.assert_array_equal(first.total(), values.sum(axis=0))
