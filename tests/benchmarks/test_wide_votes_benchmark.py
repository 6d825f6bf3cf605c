"""What 10^5 queries of 1,000 classes take of a hospital with one teacher: bytes on the wire, and memory.

    pytest -m benchmark -s tests/benchmarks/test_wide_votes_benchmark.py

Batches are as large as a study's default. Memory is the most that Python and NumPy hold at once for one
batch, from the teacher's classes to the parts that Flower sends.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from builders import make_terms

from pate_fed.cli.rehearse import mask_once
from pate_fed.config.sections import Queries
from pate_fed.flower import prepare_environment
from pate_fed.protocol.messages import AnswerReply, Question, Record, SumReply
from pate_fed.secure_sum import HospitalSum

pytestmark = pytest.mark.benchmark

QUERIES, CLASSES, BATCH = 100_000, 1000, Queries().batch_size
CHOSEN = np.random.default_rng(0).integers(0, CLASSES, BATCH)  # by the teacher
INDEX = np.arange(BATCH, dtype=np.int64)


def _dense() -> np.ndarray:
    votes = np.zeros((BATCH, CLASSES), dtype=np.int64)
    votes[INDEX, CHOSEN] = 1
    return votes


def _measured(work: Callable[[], Record]) -> tuple[int, float]:
    """Bytes of a message's parts, and the most MiB at once."""
    prepare_environment()
    from pate_fed.flower.records import wire_parts

    tracemalloc.start()
    size = sum(len(part) for _, part in wire_parts(work()))
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    return size, peak


def test_bytes_and_memory_of_a_hospital(monkeypatch: pytest.MonkeyPatch) -> None:
    terms = make_terms(num_classes=CLASSES, pool_size=QUERIES, max_queries=QUERIES)
    bounds, batches = terms.bounds, QUERIES // BATCH
    reply = AnswerReply(party="north", batch_digest="00" * 32, answer=CHOSEN.astype(bounds.dtype))
    bounds.check(reply.answer, rows=BATCH)
    plain, held = _measured(reply.to_record)
    dense, dense_held = _measured(lambda: replace(reply, answer=_dense()).to_record())
    print(
        f"\nin the open: {batches * plain:,} bytes, {held:.1f} MiB; as a matrix {batches * dense:,} bytes, "
        f"{dense_held:.1f} MiB"
    )
    print(f"{dense / plain:,.0f} times as few bytes")
    total = np.zeros((BATCH, CLASSES), dtype=np.int64)
    for _ in range(250):
        bounds.add(total, reply.answer)
    assert total.sum() == 250 * BATCH and batches * plain < 2**20

    asked = Question(terms_digest=terms.digest, batch=0, index=INDEX)
    masked, peaks = make_terms(num_classes=CLASSES, pool_size=QUERIES, secure_sum=True), list[float]()
    whole = HospitalSum.answer

    def answer(machine: HospitalSum, request: object, vector: object) -> object:
        def work() -> Record:
            nonlocal found
            found = whole(machine, request, lambda: _dense().ravel())  # type: ignore[arg-type]
            return SumReply(party="north", step=found.to_bytes()).to_record()

        found: object = None
        size, peak = _measured(work)
        peaks.append(peak)
        sizes.append(size)
        return found

    sizes = list[int]()
    monkeypatch.setattr(HospitalSum, "answer", answer)
    mask_once(masked, "north", asked, _dense())
    print(f"under masks: {batches * max(sizes):,} bytes, {max(peaks):.1f} MiB at once")
    assert max(peaks) < 64
