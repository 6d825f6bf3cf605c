"""What a hospital remembers of its answers, also from a process that is gone."""

from __future__ import annotations

import json
import stat
import time
from pathlib import Path

import numpy as np

from clients.journal import Journal, read_events


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


def test_its_log_is_its_own(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.note("voted", queries=3)
    journal.fault(ValueError("Ann Smith"))
    path = tmp_path / "log.jsonl"
    first, second = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    assert (first["event"], first["queries"], second["event"]) == ("voted", 3, "fault")
    assert "Ann Smith" in second["error"] and stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_line_that_a_crash_cut_is_told_from_events(tmp_path: Path) -> None:
    assert list(read_events(tmp_path)) == []
    journal = Journal(tmp_path)
    journal.note("voted", queries=3)
    with (tmp_path / "log.jsonl").open("a", encoding="utf-8") as log:
        log.write('{"event": "vo\n')
    journal.note("refused", sentence="not this one")
    events = [event for _, event in read_events(tmp_path)]
    assert [event and event["event"] for event in events] == ["voted", None, "refused"]
