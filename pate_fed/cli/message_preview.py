"""The bytes that would leave a hospital with its votes on a few questions, and what is in them, as text."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pate_fed.flower.records import wire_parts
from pate_fed.format import printable
from pate_fed.kinds.terms import Terms
from pate_fed.protocol.messages import AnswerReply, Question, Record, SumReply
from pate_fed.secure_sum import CoordinatorSum, HospitalSum, Identity, SumRange
from pate_fed.secure_sum.batch import BatchReply
from pate_fed.secure_sum.messages import MaskedVector

_LINE = 16  # bytes in a line of a dump
_MOST_LINES = 6
_MOST_ROWS, _MOST_COLUMNS, _WIDTH = 6, 5, 12
_OTHERS = 3  # throw-away hospitals: with this one the fewest that are summed over

Ints = NDArray[np.int64]


def plain_lines(terms: Terms, party: str, question: Question, votes: Ints) -> Iterator[str]:
    """What a vote matrix, int64 (queries, classes), would look like on its way: its bytes, and its rows."""
    reply = AnswerReply(party=party, batch_digest=question.digest, answer=votes)
    yield from _dump(reply.to_record(), votes.astype("<i8").tobytes())
    yield ""
    yield f"  The {terms.words.answers} in it, {terms.words.shown[1]}. The coordinator sees these:"
    yield from _matrix(terms, votes)


def masked_lines(terms: Terms, party: str, question: Question, votes: Ints, counts: Ints) -> Iterator[str]:
    """The same where votes, or other answers int64 (rows, columns), leave under masks.

    `counts` are they with this hospital's share of the noise. Made with hospitals that do not exist.
    """
    masked, total = mask_once(terms, party, question, counts)
    yield from _dump(SumReply(party=party, step=masked.to_bytes()).to_record(), _packed(masked))
    yield ""
    yield f"  Your {', '.join(terms.words.shown)}. These stay here:"
    yield from _matrix(terms, votes)
    if terms.adds_noise:
        yield "  with this hospital's share of the noise they are"
        yield from _matrix(terms, counts)
    yield "  In the message they are masked: random numbers, other ones every time:"
    yield from _matrix(terms, masked.vector.astype(np.int64).reshape(votes.shape))
    same = "the same as above" if np.array_equal(total, counts) else "NOT the same: do not take part"
    yield f"  Summed with {_OTHERS} invented hospitals that say 0, they are {same}."


def mask_once(terms: Terms, party: str, question: Question, counts: Ints) -> tuple[MaskedVector, Ints]:
    """This hospital's masked counts in a sum with invented hospitals, and that sum, int64 as `counts`."""
    coordinator = CoordinatorSum(Identity.generate(), study=terms.digest)
    names = [party, *(f"invented-{number}" for number in range(_OTHERS))]
    parties = {
        name: HospitalSum.enrol(
            Identity.generate(), coordinator.enrol_request(), party=name, study=terms.digest
        )
        for name in names
    }
    for each in parties.values():
        coordinator.admit(each.enrolment)
    roster = coordinator.close_roster()
    for each in parties.values():
        coordinator.note_pinned(each.pin(roster))
    largest = terms.bounds.largest(terms.num_clients)
    batch = coordinator.open_batch(
        batch=question.batch,
        batch_digest=question.digest,
        length=counts.size,
        sum_range=SumRange.noisy() if largest is None else SumRange.votes(largest),
    )
    masked: MaskedVector | None = None
    for requests in batch.rounds():
        for name, request in requests.items():
            own = name == party
            vector = partial(np.ravel, counts if own else np.zeros_like(counts))
            reply = parties[name].answer(request, vector)
            assert isinstance(reply, BatchReply)  # what a request of a batch is answered with
            masked = reply if own and isinstance(reply, MaskedVector) else masked
            batch.take(reply)
    assert masked is not None
    return masked, batch.total().reshape(counts.shape)


def _packed(masked: MaskedVector) -> bytes:
    """The masked numbers as they stand in the message."""
    return masked.vector.astype(masked.vector.dtype.newbyteorder("<")).tobytes()


def _dump(record: Record, numbers: bytes) -> Iterator[str]:
    """The parts of a message with their sizes, and of the largest the bytes from where its numbers begin."""
    parts = wire_parts(record)
    sizes = ", ".join(f"{kind} {len(content)}" for kind, content in parts)
    yield f"  One message of {sum(len(content) for _, content in parts):,} bytes: {sizes}."
    _, largest = max(parts, key=lambda part: len(part[1]))
    yield from hexdump(largest, start=max(0, largest.find(numbers)))


def hexdump(content: bytes, *, start: int = 0) -> Iterator[str]:
    """The first bytes from `start` on, sixteen a line, in hexadecimal and as far as they are ASCII."""
    end = min(len(content), start + _MOST_LINES * _LINE)
    for place in range(start, end, _LINE):
        line = content[place : min(place + _LINE, end)]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)
        yield f"  {place:06x}  {line.hex(' '):<{3 * _LINE - 1}}  {text}"
    if end < len(content):
        yield f"  … and {len(content) - end:,} bytes more"


def _matrix(terms: Terms, values: Ints) -> Iterator[str]:
    """The first rows and columns of (rows, columns), under the classes' names where there is one for each."""
    shown = min(values.shape[1], _MOST_COLUMNS)
    named = len(terms.classes) == values.shape[1]
    names = [terms.classes[place] if named else str(place) for place in range(shown)]
    more = "  …" if shown < values.shape[1] else ""
    heads = "  ".join(f"{printable(name)[:_WIDTH]:>{_WIDTH}}" for name in names)
    yield f"    {'':>5}  {heads}{more}"
    for number, row in enumerate(values[:_MOST_ROWS]):
        cells = "  ".join(f"{int(value):>{_WIDTH}}" for value in row[:shown])
        yield f"    {number:>5}  {cells}{more}"
