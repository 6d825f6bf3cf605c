"""What a hospital remembers of its answers, also from a process that is gone."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from clients.journal import Journal


def test_claims_survive_and_days_pass(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    assert journal.claim("a" * 64, np.arange(30))
    assert journal.claim("b" * 64, np.arange(30, 42))
    assert not journal.claim("a" * 64, np.arange(30))
    assert Journal(tmp_path).answered() == 42
    assert Journal(tmp_path).answered(since=time.time() + 60) == 0


def test_no_query_is_claimed_twice_and_kinds_are_counted_apart(tmp_path: Path) -> None:
    journal, other = Journal(tmp_path), Journal(tmp_path, answered=tmp_path / "labels")
    assert journal.claim("a" * 64, np.arange(3)) and journal.claimed("a" * 64)
    assert not journal.claim("b" * 64, np.arange(2, 5))
    assert other.claim("b" * 64, np.arange(2, 5)) and (journal.answered(), other.answered()) == (3, 3)
