"""log.jsonl: what is written comes back, half lines do no harm, and nobody else can read it."""

from __future__ import annotations

import json
import stat
import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from pate_fed.errors import InputError, IntegrityError
from pate_fed.report.log import EVENTS, PartyWork, RunLog, Taught, Voted, Waiting, read_log, read_result
from pate_fed.report.result import LeftOut, ReleasedBatch, RunResult, Samples


def write_run(result: RunResult, path: Path) -> None:
    times = iter([result.started, *[result.ended] * 1000])
    with RunLog(path, now=lambda: datetime.fromisoformat(next(times))) as log:
        log.write(result.study)
        log.write(Taught(clients=250, seconds=212.4))
        log.write(Waiting(phase="vote", asked=250, answered=248, missing=("party-017",), patience_s=600.0))
        log.write(Voted(batch=0, clients=249, queries=1000, seconds=9.0))
        if result.engine_seconds is not None:
            log.write(PartyWork(seconds=230.1, engine_seconds=result.engine_seconds))
        if result.spending is not None:
            log.write(result.spending)
        for event in (*result.releases, *result.left_out, *result.epochs, result.evaluation):
            log.write(event)
        if result.samples is not None:
            log.write(result.samples)
        log.write(result.outcome)


def test_the_result_comes_back_from_the_log_alone(run_result: RunResult, tmp_path: Path) -> None:
    write_run(run_result, tmp_path / "log.jsonl")
    read = read_result(tmp_path)
    assert read.samples is not None and run_result.samples is not None
    np.testing.assert_array_equal(read.samples.images, run_result.samples.images)
    assert replace(read, samples=None) == replace(run_result, samples=None)


def test_every_line_is_an_event_with_its_time_and_flag(run_result: RunResult, tmp_path: Path) -> None:
    write_run(run_result, tmp_path / "log.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {line["event"] for line in lines} == set(EVENTS) - {
        "fault",
        "label_study",
    }  # of private labels: no votes
    assert all(datetime.fromisoformat(line["time"]).tzinfo == UTC for line in lines)
    hidden = {line["event"] for line in lines if not line["publish"]}
    assert hidden == {"evaluation", "outcome"}


def test_only_the_owner_may_read(tmp_path: Path) -> None:
    with RunLog(tmp_path / "log.jsonl"):
        pass
    assert stat.S_IMODE((tmp_path / "log.jsonl").stat().st_mode) == 0o600


@pytest.mark.parametrize("cut", [1, 7, 40])
def test_a_half_written_last_line_is_left_out_and_counted(
    run_result: RunResult, tmp_path: Path, cut: int
) -> None:
    path = tmp_path / "log.jsonl"
    write_run(run_result, path)
    path.write_bytes(path.read_bytes()[:-cut])
    read = read_result(tmp_path)
    if cut == 1:  # only the line's end is lost
        assert read.outcome == run_result.outcome
        return
    assert read.torn_lines == 1
    assert read.outcome.status == "aborted"
    assert read.outcome.privacy.student is None and "ledger" in (read.outcome.privacy.student_reason or "")
    assert read.releases == run_result.releases


def test_every_cut_of_the_log_reads_or_says_that_there_is_no_study(
    run_result: RunResult, tmp_path: Path
) -> None:
    path = tmp_path / "log.jsonl"
    write_run(replace(run_result, samples=None, epochs=run_result.epochs[:1]), path)
    whole = path.read_bytes()
    first = whole.index(b"\n")
    for size in range(0, len(whole), 97):
        path.write_bytes(whole[:size])
        if size < first:
            with pytest.raises(InputError, match="no study"):
                read_result(tmp_path)
        else:
            assert read_result(tmp_path).study == run_result.study


def test_a_run_that_goes_on_after_a_crash_starts_a_line_of_its_own(
    run_result: RunResult, tmp_path: Path
) -> None:
    path = tmp_path / "log.jsonl"
    with RunLog(path) as log:
        log.write(run_result.study)
    with path.open("ab") as stream:
        stream.write(b'{"event": "release", "ba')
    with RunLog(path) as log:
        log.write(run_result.releases[0])
    read = read_result(tmp_path)
    assert read.releases == run_result.releases[:1]
    assert read.torn_lines == 1


def test_a_whole_line_with_wrong_fields_is_named(run_result: RunResult, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with RunLog(path) as log:
        log.write(run_result.study)
    for wrong in (
        '{"event": "release", "batch": 0}',
        '{"event": "left_out", "party": 3, "phase": "", "reason": ""}',
    ):
        whole = path.read_bytes()
        path.write_bytes(whole + wrong.encode() + b"\n")
        with pytest.raises(IntegrityError, match="line 2"):
            read_result(tmp_path)
        path.write_bytes(whole)


def test_events_of_a_later_version_are_left_aside(run_result: RunResult, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with RunLog(path) as log:
        log.write(run_result.study)
    with path.open("ab") as stream:
        stream.write(b'{"event": "weather", "time": "", "sunny": true}\n[1, 2]\n')
    assert [event for _, event in read_log(path)] == [run_result.study]


def test_a_bomb_in_an_image_does_not_unfold(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with RunLog(path) as log:
        log.write(Samples(images=np.zeros((4, 8, 8, 1), np.uint8)))
    text = path.read_text(encoding="utf-8").replace("[4, 8, 8, 1]", "[1, 1, 1, 1]")
    path.write_text(text, encoding="utf-8")
    with pytest.raises(IntegrityError, match="image"):
        list(read_log(path))


def test_threads_do_not_mix_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with RunLog(path) as log:

        def write(batch: int) -> None:
            for _ in range(50):
                log.write(ReleasedBatch(batch=batch, asked=1000, answered=400, epsilon=1.5))

        threads = [threading.Thread(target=write, args=(batch,)) for batch in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    events = [event for _, event in read_log(path)]
    assert len(events) == 200 and None not in events


def test_nothing_but_the_known_events_can_be_written(tmp_path: Path) -> None:
    with RunLog(tmp_path / "log.jsonl") as log, pytest.raises(KeyError):
        log.write({"votes": [[1, 2]]})  # type: ignore[arg-type]


def test_a_closed_log_and_an_unwritable_place_are_said(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log.jsonl")
    log.close()
    log.close()
    with pytest.raises(InputError, match="closed"):
        log.write(LeftOut(party="a", phase="vote", reason="late"))
    with pytest.raises(InputError, match="cannot be written"):
        RunLog(tmp_path / "nowhere" / "log.jsonl")
    with pytest.raises(InputError, match="nowhere: holds no run"):
        read_result(tmp_path / "nowhere")


def test_numbers_that_are_not_finite_become_null(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with RunLog(path) as log:
        log.write(ReleasedBatch(batch=0, asked=1, answered=1, epsilon=float("inf")))
    assert json.loads(path.read_text(encoding="utf-8"))["epsilon"] is None
