"""The bytes that would leave: those of the real messages, plain or masked, and what is in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from builders import make_sum_terms, make_terms

from pate_fed.cli.rehearse import hexdump, mask_once, masked_lines, plain_lines
from pate_fed.flower.records import wire_parts
from pate_fed.protocol.messages import AnswerReply, Question, SumReply

INDEX = np.arange(8)
VOTES = np.random.default_rng(1).multinomial(5, [0.2, 0.3, 0.5], size=8).astype(np.int64)
TERMS = make_terms(
    num_clients=5, least_clients=4, teachers_per_client=5, classes=("ill", "well\x1b[2J", "dead")
)
MASKED = make_terms(num_clients=5, least_clients=4, teachers_per_client=5, secure_sum=True)
NOISY = make_terms(
    num_clients=5,
    least_clients=4,
    teachers_per_client=5,
    secure_sum=True,
    noise_at="hospitals",
    sigma_party=3.0,
    colluders=1,
)


def _question(terms: Any) -> Question:
    return Question(terms_digest=terms.digest, batch=0, index=INDEX)


def test_plain_votes_are_shown_byte_by_byte_and_row_by_row() -> None:
    question = _question(TERMS)
    lines = list(plain_lines(TERMS, "north", question, VOTES))
    votes = VOTES.astype(np.uint8)
    sent = wire_parts(AnswerReply(party="north", batch_digest=question.digest, answer=votes).to_record())
    assert f"One message of {sum(len(part) for _, part in sent):,} bytes" in lines[0]
    # The first line of the dump is where the matrix begins, as it would travel.
    shown = bytes.fromhex(lines[1][10:57])
    assert shown == votes.tobytes()[:16]
    assert any(shown in part for _, part in sent)
    rows = [line.split() for line in lines if line.startswith("    ") and line.split()[0].isdigit()]
    assert [[int(cell) for cell in row[1:]] for row in rows] == VOTES[:6].tolist()
    assert max(map(len, lines[1:])) <= 80 and not any("\x1b" in line for line in lines)


@pytest.mark.parametrize("terms", [MASKED, NOISY], ids=["masked", "noisy"])
def test_masked_votes_are_other_numbers_every_time(terms: Any) -> None:
    question = _question(terms)
    first, total = mask_once(terms, "north", question, VOTES)
    second, again = mask_once(terms, "north", question, VOTES)
    assert np.array_equal(total, VOTES) and np.array_equal(again, VOTES)
    assert not np.array_equal(first.vector, second.vector)
    assert (first.vector != VOTES.ravel()).mean() > 0.9
    assert SumReply(party="north", step=first.to_bytes()).to_record()["step"] == first.to_bytes()
    text = "\n".join(masked_lines(terms, "north", question, VOTES, VOTES + 1 if terms.adds_noise else VOTES))
    assert "the same as above" in text and "random numbers" in text
    assert ("share of the noise" in text) is terms.adds_noise


def test_a_dump_says_where_and_how_much_more() -> None:
    lines = list(hexdump(b"0123456789abcdef\x00\xff" * 20, start=16))
    assert lines[0].startswith("  000010  00 ff 30 31") and lines[0].endswith("..0123456789abcd")
    assert lines[-1] == f"  … and {18 * 20 - 16 - 96} bytes more" and len(lines) == 7
    assert list(hexdump(b"ab")) == [f"  000000  {'61 62':<47}  ab"]


@pytest.mark.parametrize("at_hospitals", [True, False])
def test_class_sums_are_shown_as_what_they_are(at_hospitals: bool) -> None:
    terms = make_sum_terms(at_hospitals=at_hospitals, num_clients=5, least_clients=4)
    sums = np.arange(60, dtype=np.int64).reshape(20, 3) * 10_000
    question = Question(terms_digest=terms.digest, batch=0, index=np.arange(20))
    text = "\n".join(masked_lines(terms, "north", question, sums, sums + 1 if at_hospitals else sums))
    assert "Your sums by class, of the first features. These stay here:" in text
    assert "the same as above" in text and "vote" not in text
    assert ("this hospital's share of the noise" in text) is at_hospitals
