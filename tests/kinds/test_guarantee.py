"""ε is told and weighed before the first message: what means nothing is refused, with what would do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from builders import make_label_terms, make_noisy_terms, make_terms, vary

from pate_fed.errors import InputError
from pate_fed.kinds.terms import Terms, guarantee_lines, largest_messages, require_meaningful
from pate_fed.protocol.messages import MOST_STUDENT, AnswerReply, EndRequest, JoinRequest
from pate_fed.structure import to_record

FEW = make_terms(labels=40, max_queries=100)  # ten teachers
MANY = make_terms(num_clients=250, threshold=200.0, sigma1=150.0, sigma2=40.0, labels=500, max_queries=2000)


def _require(terms: Terms) -> None:
    require_meaningful(terms, terms.ledger_terms(noise="n", private=True))


def test_a_large_epsilon_is_refused_with_what_to_do() -> None:
    _require(MANY)
    with pytest.raises(InputError) as refused:
        _require(FEW)
    text = str(refused.value)
    for part in ("at most 10 is meant", "10 teachers are too few", "--teachers-per-client", "more hospitals"):
        assert part in text
    assert "stay alone" in text and "--allow-weak-privacy" in text
    assert "class sums (--aggregator class-sums --secure-sum)" in text
    _require(vary(FEW, allow_weak=True))
    _require(vary(FEW, epsilon=9.0))  # the budget bounds it


def test_where_planned_noise_would_do_the_refusal_says_so() -> None:
    with pytest.raises(InputError, match=r"250 teachers can have [0-9]+ labels at ε=4: leave out noise"):
        _require(vary(MANY, sigma2=5.0))


def test_a_hospital_that_sways_all_its_votes_is_not_told_to_train_more_teachers() -> None:
    with pytest.raises(InputError) as refused:
        _require(vary(FEW, unit="hospital"))
    assert "--teachers-per-client" not in str(refused.value)


def test_the_guarantee_names_delta_unit_and_adversaries() -> None:
    public, coordinator = guarantee_lines(MANY.ledger_terms(noise="n", private=True))
    for part in ("ε=2.8", "δ=1e-5", "one record replaced", "labels or the student"):
        assert part in public
    assert coordinator == "against the coordinator: unbounded; it sees every hospital's votes"
    assert "not private" in guarantee_lines(MANY.ledger_terms(noise="n", private=False))[2]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"threshold": 34.1, "sigma1": 6.0}, "--threshold 34.1 with 10 teachers .*out of reach"),
        ({"threshold": 0.0}, "--threshold 0: every query would pass"),
        ({"threshold": -3.0}, "--threshold -3"),
        ({"labels": 1501}, "--labels 1501 with --max-queries 1500"),
    ],
)
def test_votes_are_not_spent_for_nothing(changes: dict[str, float], words: str) -> None:
    terms = vary(make_terms(), **changes)
    with pytest.raises(InputError, match=words):
        terms.asks.require_use(terms)
    with pytest.raises(InputError, match=words):
        terms.ledger_terms(noise="n", private=True)


def _reach(terms: Terms) -> None:
    terms.asks.require_use(terms)


def test_what_is_within_reach_passes() -> None:
    _reach(vary(make_terms(), threshold=34.0, sigma1=6.0))
    _reach(vary(make_terms(), aggregator="gnmax", threshold=-3.0))
    with pytest.raises(InputError, match="--sigma2"):  # there the vote's own noise decides
        _reach(vary(make_noisy_terms(), threshold=34.0, sigma1=6.0, sigma2=5.0))


MARGIN = 2**20


def _bytes(message: object) -> int:
    values = to_record(message).values()
    return sum(each.nbytes if isinstance(each, np.ndarray) else len(str(each)) for each in values)


def test_a_batch_of_all_queries_is_smaller_and_a_margin_is_what_is_left() -> None:
    terms = make_terms(pool_size=200_000, max_queries=100_000, num_classes=10, teachers_per_client=3)
    votes = np.zeros((100_000, 10), dtype=np.uint8)
    reply = AnswerReply(party="north", batch_digest="00" * 32, answer=votes)
    allowed = largest_messages(terms).to_coordinator
    assert _bytes(reply) + MARGIN < allowed < _bytes(reply) + 2 * MARGIN


def test_votes_of_one_teacher_are_classes_and_masked_ones_numbers() -> None:
    asked: dict[str, Any] = {"pool_size": 100_000, "max_queries": 100_000, "num_classes": 1000}
    plain, masked = (largest_messages(make_terms(**asked, secure_sum=way)) for way in (False, True))
    assert plain.to_coordinator < 2 * 100_000 + 2 * MARGIN < 4 * 10**8 < masked.to_coordinator


def test_no_study_has_more_questions_than_inputs() -> None:
    few, many = (make_terms(pool_size=2000, max_queries=asked) for asked in (2000, 90_000_000))
    assert largest_messages(few).to_coordinator == largest_messages(many).to_coordinator
    assert largest_messages(few).to_coordinator < 2 * MARGIN


@pytest.mark.parametrize("encoder", [None, "00" * 32])
def test_the_pool_and_the_encoder_of_the_terms_fit(encoder: str | None) -> None:
    terms = make_terms(pool_size=1000, image_shape=(28, 28, 1), encoder=encoder)
    pool = bytes(8 * 1000 * 28 * 28)
    request = JoinRequest(terms=terms.to_json(), pool=pool, file=b"" if encoder is None else bytes(10**7))
    size = len(request.terms) + len(request.pool) + len(request.file)
    allowed = largest_messages(terms).to_hospital
    assert size < allowed
    assert (allowed > len(pool) + 10 * MARGIN) == (encoder is not None)


def test_the_largest_student_and_its_receipt_fit_into_the_end() -> None:
    terms = make_terms(pool_size=2000, max_queries=1500)
    end = EndRequest(status="", exit_code=0, summary="", receipt="x" * 1000, student=bytes(MOST_STUDENT))
    assert len(end.student) + len(end.receipt) < largest_messages(terms).end < MOST_STUDENT + 3 * MARGIN


def test_more_hospitals_send_more_key_material() -> None:
    one, many = (largest_messages(make_terms(num_clients=count, least_clients=1)) for count in (10, 1000))
    assert many.to_coordinator - one.to_coordinator == many.to_hospital - one.to_hospital - 2
    assert many.to_coordinator - one.to_coordinator > 990 * 500


def test_private_labels_of_a_whole_pool_fit() -> None:
    terms = make_label_terms()
    response = np.ones((terms.pool_size, 2), dtype=np.int64)
    reply = AnswerReply(party="north", batch_digest="00" * 32, answer=response)
    assert _bytes(reply) + MARGIN < largest_messages(terms).to_coordinator < 2 * MARGIN


def test_what_grpc_cannot_carry_is_not_asked_for() -> None:
    terms = make_terms(pool_size=100_000_000, image_shape=(1000,))
    assert largest_messages(terms).to_hospital == 2**31 - 1
