"""The hospital's log: chained, signed, and whole again after a crash."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clients.log import HEAD_FILE, LOG_FILE, NO_LINE, HospitalLog, read_events
from pate_fed.identity import make_request
from pate_fed.identity.keys import KEY_FILE


def test_it_is_the_hospitals_own_and_each_line_names_the_one_before(tmp_path: Path) -> None:
    log = HospitalLog(tmp_path)
    log.note("voted", queries=3)
    log.fault(ValueError("Ann Smith" * 2000))  # longer than what is read back at first
    log.note("voted", queries=4)
    path = tmp_path / LOG_FILE
    lines = path.read_bytes().splitlines()
    first, second, third = map(json.loads, lines)
    assert (first["event"], first["queries"], second["event"]) == ("voted", 3, "fault")
    assert "Ann Smith" in second["error"] and stat.S_IMODE(path.stat().st_mode) == 0o600
    digests = [hashlib.sha256(line).hexdigest() for line in lines[:2]]
    assert [first["before"], second["before"], third["before"]] == [NO_LINE, *digests]
    assert "signature" not in first and not (tmp_path / HEAD_FILE).exists()


def test_with_a_key_each_line_is_signed(tmp_path: Path) -> None:
    make_request(tmp_path / "keys", "north")
    HospitalLog(tmp_path, key=tmp_path / "keys" / KEY_FILE, durable=True).note("voted", queries=3)
    [line] = (tmp_path / LOG_FILE).read_text().splitlines()
    assert list(json.loads(line))[-2:] == ["before", "signature"]
    head = json.loads(json.loads((tmp_path / HEAD_FILE).read_bytes())["head"])
    assert head == {"bytes": len(line) + 1, "digest": hashlib.sha256(line.encode()).hexdigest()}


def test_after_a_line_that_was_cut_short_it_goes_on_from_the_last_whole_one(tmp_path: Path) -> None:
    log, path = HospitalLog(tmp_path), tmp_path / LOG_FILE
    log.note("voted", queries=3)
    whole = path.read_bytes()
    log.note("voted", queries=4)
    path.write_bytes(path.read_bytes()[:-9])
    torn = path.read_bytes()[len(whole) :]
    log.note("voted", queries=5)
    first, second, cut, last = path.read_bytes().splitlines()
    assert (first + b"\n", second) == (whole, torn)
    said = json.loads(cut)
    assert (said["event"], said["bytes"], said["torn"]) == (
        "cut",
        len(torn),
        hashlib.sha256(torn).hexdigest(),
    )
    assert said["before"] == hashlib.sha256(first).hexdigest()
    assert json.loads(last)["before"] == hashlib.sha256(cut).hexdigest()


def test_a_full_disk_leaves_no_part_of_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log, path = HospitalLog(tmp_path), tmp_path / LOG_FILE
    log.note("voted", queries=3)
    before, write = path.read_bytes(), os.write
    monkeypatch.setattr(os, "write", lambda handle, content: write(handle, content[:10]))
    log.note("voted", queries=4)
    assert path.read_bytes() == before and "cannot be written" in capsys.readouterr().err
    with pytest.raises(OSError, match="space"):
        log.record("handled", kind="votes")


def test_without_its_key_nothing_is_noted_unsigned(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="key"):
        HospitalLog(tmp_path, key=tmp_path / KEY_FILE).record("handled", kind="votes")
    assert not (tmp_path / LOG_FILE).read_bytes()


def test_writers_at_once_keep_one_chain(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:  # each opens the file for itself, as processes do
        list(pool.map(lambda number: HospitalLog(tmp_path).note("voted", queries=number), range(100)))
    before = NO_LINE
    for line in (tmp_path / LOG_FILE).read_bytes().splitlines():
        assert json.loads(line)["before"] == before
        before = hashlib.sha256(line).hexdigest()
    assert len((tmp_path / LOG_FILE).read_bytes().splitlines()) == 100


def test_a_line_that_a_crash_cut_is_told_from_events(tmp_path: Path) -> None:
    assert list(read_events(tmp_path)) == []
    log = HospitalLog(tmp_path)
    log.note("voted", queries=3)
    with (tmp_path / LOG_FILE).open("a", encoding="utf-8") as file:
        file.write('{"event": "vo')
    log.note("refused", sentence="not this one")
    events = [event for _, event in read_events(tmp_path)]
    assert [event and event["event"] for event in events] == ["voted", None, "cut", "refused"]
