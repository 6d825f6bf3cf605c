"""A coordinator that dies at any moment: the next one goes on, charges nothing twice, asks nobody twice."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from world import World

from pate_fed.flower import prepare_environment

prepare_environment()

import server.base
from clients.hospital import Hospital
from clients.local import read_site
from pate_fed.config.backend import Engine
from pate_fed.config.sections import Aggregation, Data, Parties, Privacy, Queries
from pate_fed.config.study import Study
from pate_fed.config.trust import TrustModel
from pate_fed.data import GlyphSettings
from pate_fed.errors import IntegrityError
from pate_fed.learning import TeacherSettings
from pate_fed.learning.settings import StudentSettings
from pate_fed.privacy import Ledger, verify
from pate_fed.protocol.messages import EndRequest, Refusal
from pate_fed.report.log import read_log
from pate_fed.report.result import Outcome
from pate_fed.secure_sum.messages import BatchShares, MaskedVector, SurvivorConsent, UnmaskShares
from server.base import clear_finished
from server.exchange import Stopped
from server.federation import Federation
from server.learning import Learner
from server.masked import MaskedRounds
from server.state import CoordinatorState

PARTIES, BATCH = 4, 10
PLAIN = Study(
    parties=Parties(num_clients=PARTIES, teachers_per_client=2),
    data=Data(glyph=GlyphSettings(classes=3, private=120, public=40)),
    teacher=TeacherSettings(name="hog-linear"),
    aggregation=Aggregation(aggregator="confident-gnmax", threshold=4.0, sigma1=4.0, sigma2=2.0),
    queries=Queries(labels=25, batch_size=BATCH, evaluate=False),
    privacy=Privacy(sanitise=True, allow_weak=True, adjacency="add-or-remove-one"),  # one vote moves
    student=StudentSettings(name="supervised", epochs=1),
    engine=Engine(backend="grpc", device="cpu"),
).resolve()
GNMAX = Aggregation(aggregator="gnmax", sigma2=2.0)
MASKED = replace(PLAIN, secrecy=TrustModel(secure_sum=True)).resolve()


def _second(arguments: Any) -> bool:
    """Of `charge`, the call with the second batch."""
    return bool(arguments[0].index[0] == BATCH)


@pytest.mark.parametrize("after", [False, True], ids=["before a release", "after a release"])
def test_votes_and_totals_outlive_the_coordinator(
    after: bool, dying: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(PLAIN, tmp_path, monkeypatch)
    with dying(server.base, "charge", _second, after=after):
        world.run(resume=False)
    assert world.run(resume=True) == 0
    entries = world.check()
    asked = [event["rows"] for event in world.events("answered")]
    # Once a batch each; of the last one fewer queries than were voted on may be looked at.
    assert len(asked) == PARTIES * len(entries)
    assert sum(asked) >= PARTIES * sum(entry.event.asked for entry in entries)
    metrics = json.loads((world.run_dir / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["privacy"]["student"]["data_dependent_do_not_publish"] > 0
    assert metrics["privacy"]["student"]["sanitised"] > 0
    assert metrics["accuracy_do_not_publish"]["ensemble"] > 0


def test_totals_that_were_not_released_are_added_up_again(
    dying: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is revoked in between does not count: kept totals would have its votes."""
    world = World(PLAIN, tmp_path, monkeypatch)
    with dying(server.base, "charge", _second, after=False):
        world.run(resume=False)
    opened = json.loads((world.run_dir / "private" / "batch.json").read_text())["digest"]
    collected, collect = list[str](), Federation.collect

    def note(self: Federation, question: Any, **named: Any) -> Any:
        collected.append(question.digest)
        return collect(self, question, **named)

    monkeypatch.setattr(Federation, "collect", note)
    assert world.run(resume=True) == 0
    assert collected[0] == opened
    world.check()


@pytest.mark.parametrize(
    ("owner", "name", "after"),
    [
        (CoordinatorState, "keep_answer", False),
        (Learner, "learn", True),
        pytest.param(CoordinatorState, "begin_batch", True, marks=pytest.mark.slow),
        pytest.param(CoordinatorState, "keep_answer", True, marks=pytest.mark.slow),
        pytest.param(CoordinatorState, "keep_totals", False, marks=pytest.mark.slow),
        pytest.param(server.base, "charge", True, marks=pytest.mark.slow),
        pytest.param(CoordinatorState, "note_all_asked", False, marks=pytest.mark.slow),
        pytest.param(Learner, "learn", False, marks=pytest.mark.slow),
    ],
)
def test_whenever_it_dies_each_question_gets_one_answer(
    owner: Any, name: str, after: bool, dying: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(replace(PLAIN, aggregation=GNMAX), tmp_path, monkeypatch, real=True)
    with dying(owner, name, after=after):
        world.run(resume=False)
    with dying(owner, name, after=after):
        world.run(resume=True)
    [first, *_] = world.run_dir.glob("private/batch.json")
    asked = json.loads(first.read_text())["digest"]
    assert world.run(resume=True) == 0
    entries = world.check()
    assert [entry.event.asked for entry in entries] == [BATCH, BATCH, 5]
    assert asked in [entry.batch_digest for entry in entries]
    assert sum(event["rows"] for event in world.events("answered")) == PARTIES * BATCH * 3


def test_once_all_is_asked_no_hospital_is_needed(
    dying: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(replace(PLAIN, aggregation=GNMAX), tmp_path, monkeypatch)
    with dying(CoordinatorState, "note_all_asked", after=False):
        world.run(resume=False)
    with dying(Learner, "learn", after=False):  # one that did not say so yet sees it on its ledger
        world.run(resume=True, hospitals=0)
    assert world.run(resume=True, hospitals=0) == 0
    assert len(world.check()) == 3


def test_what_hospitals_kept_goes_with_the_studys_success_alone(
    dying: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(replace(PLAIN, aggregation=GNMAX), tmp_path, monkeypatch, real=True)
    with dying(CoordinatorState, "keep_answer", after=False):
        world.run(resume=False)
    kept = [*world.parties.glob("*/answer.npz")]
    assert len(kept) >= 1 and {oct(path.stat().st_mode)[-3:] for path in kept} == {"600"}
    for code, left in ((4, len(kept)), (0, 0)):
        for number in range(PARTIES):
            hospital = Hospital(read_site({"partition-id": number}))
            hospital.end(EndRequest(status="over", exit_code=code, summary=""))
        assert len([*world.parties.glob("*/answer.npz")]) == left


def test_what_is_private_in_a_finished_run_is_removed_by_the_next_command(
    dying: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(PLAIN, tmp_path, monkeypatch)
    with dying(CoordinatorState, "remove_private", after=False):
        world.run(resume=False)
    assert (world.run_dir / "private").exists()
    link = world.run_dir / "flower"  # of a coordinator with hospitals apart that was killed
    link.mkdir()
    for name in ("executor.secret", "superlink.log"):
        (link / name).touch()
    clear_finished(world.run_dir)
    assert [path.name for path in link.iterdir()] == ["superlink.log"]
    assert not (world.run_dir / "private").exists() and (world.run_dir / "metrics.json").exists()


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "told by an earlier release"])
def test_a_sanitised_epsilon_is_drawn_once_however_often_the_end_dies(
    kept: bool, dying: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each draw is paid for, and their mean would be the private figure."""
    world = World(PLAIN, tmp_path, monkeypatch)
    with dying(server.base, "write_metrics", after=False):
        world.run(resume=False)
    if not kept:
        (world.run_dir / "private" / "sanitised.json").unlink()
    with dying(server.base, "write_report", after=True):
        world.run(resume=True, hospitals=0)
    assert world.run(resume=True, hospitals=0) == 0
    told = [
        (event.privacy.sanitised, event.privacy.sanitised_sd)
        for _, event in read_log(world.run_dir / "log.jsonl")
        if isinstance(event, Outcome)
    ]
    assert len(told) == 3 and len({*told}) == 1
    metrics = json.loads((world.run_dir / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["privacy"]["student"]["sanitised"] == pytest.approx(told[0][0], abs=1e-6)


def test_a_sanitised_epsilon_is_on_the_disk_before_it_is_told(
    dying: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(PLAIN, tmp_path, monkeypatch)
    with dying(CoordinatorState, "keep_sanitised", after=True):
        world.run(resume=False)
    kept = json.loads((world.run_dir / "private" / "sanitised.json").read_text())["epsilon"]
    assert not any(isinstance(event, Outcome) for _, event in read_log(world.run_dir / "log.jsonl"))
    assert world.run(resume=True, hospitals=0) == 0
    metrics = json.loads((world.run_dir / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["privacy"]["student"]["sanitised"] == pytest.approx(kept, abs=1e-6)


@pytest.mark.parametrize("broken", ["engine", "ledger"])
def test_what_an_earlier_process_released_is_not_told_as_nothing(
    broken: str,
    dying: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    world = World(PLAIN, tmp_path, monkeypatch)
    with dying(server.base, "charge", _second):
        world.run(resume=False)
    path = world.run_dir / "ledger.sqlite"
    promised = verify(path).to_dict()["guaranteed"]["student"]
    if broken == "engine":
        assert world.run(resume=True, broken=True) == 1
    else:
        with Ledger.open(path):  # as another process that goes on with the same run
            assert world.run(resume=True) == 6
    told = json.loads((world.run_dir / "metrics.json").read_text(encoding="utf-8"))["privacy"]["student"]
    assert told["data_independent"] >= promised > 0
    assert " ε=0 " not in capsys.readouterr().out


@pytest.mark.parametrize("lost", ["gone", "an older copy"])
def test_a_ledger_that_lost_what_the_log_tells_of_is_not_gone_on_with(
    lost: str, dying: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(PLAIN, tmp_path, monkeypatch)
    with dying(server.base, "charge", _second):
        world.run(resume=False)
    path = world.run_dir / "ledger.sqlite"
    chain = verify(path).chain
    for part in world.run_dir.glob("ledger.sqlite*"):
        part.unlink()
    if lost == "an older copy":
        Ledger.create(path, chain.terms).close()
    assert world.run(resume=True) == 6
    captured = capsys.readouterr()
    assert lost in captured.err and f"log.jsonl tells of {BATCH} queries" in captured.err
    assert " ε=0 " not in captured.out
    assert len(world.events("answered")) == 2 * PARTIES  # nobody was asked again


def test_totals_that_are_lost_leave_only_the_bound_that_holds_anyway(
    dying: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(PLAIN, tmp_path, monkeypatch)
    with dying(server.base, "charge", _second):
        world.run(resume=False)
    [first, *_] = verify(world.run_dir / "ledger.sqlite").chain.entries
    (world.run_dir / "private" / f"totals-{first.batch_digest}.npz").unlink()
    assert world.run(resume=True) == 2
    assert "not all there (folder private of the run directory)" in capsys.readouterr().err


@pytest.mark.parametrize("after", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["sent", "heard"])
@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(BatchShares, marks=pytest.mark.slow),
        MaskedVector,
        pytest.param(SurvivorConsent, marks=pytest.mark.slow),
        UnmaskShares,
    ],
)
def test_a_batch_under_masks_that_was_cut_off_goes_on_where_it_was(
    reply: type, after: bool, dying: Any, takes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = replace(MASKED, privacy=Privacy(allow_weak=True), aggregation=GNMAX)
    world = World(study, tmp_path, monkeypatch, real=True)
    with dying(MaskedRounds, "_take", takes(reply, batch=1), after=after):
        world.run(resume=False)
    last = json.loads((world.run_dir / "private" / "batch.json").read_text())
    assert world.run(resume=True) == 0
    entries = world.check()
    assert [(entry.event.asked, entry.event.answered) for entry in entries] == [(BATCH, BATCH)] * 2 + [(5, 5)]
    assert entries[1].batch_digest == last["digest"]
    assert sum(event["rows"] for event in world.events("answered")) == PARTIES * BATCH * 3


@pytest.mark.parametrize("reply", [MaskedVector, pytest.param(UnmaskShares, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("fault", "code"),
    [(Stopped, 130), (IntegrityError, 4), (ConnectionError, 2)],
    ids=["the user stopped", "nobody was heard", "a fault of code like this"],
)
def test_a_masked_batch_that_a_small_fault_cut_off_goes_on_and_is_charged_once(
    fault: type[Exception],
    code: int,
    reply: type,
    takes: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    study = replace(MASKED, privacy=Privacy(allow_weak=True), aggregation=GNMAX)
    world = World(study, tmp_path, monkeypatch, real=True)
    whole, when = MaskedRounds._take, takes(reply, batch=1)

    def cut_off(*arguments: Any) -> None:
        if when(arguments[1:]):
            raise fault
        whole(*arguments)

    for resume in (False, True):
        with monkeypatch.context() as patch:
            patch.setattr(MaskedRounds, "_take", cut_off)
            assert world.run(resume=resume) == code
        assert len(verify(world.run_dir / "ledger.sqlite").chain.entries) == 1  # nothing of it was released
    assert world.run(resume=True) == 0
    entries = world.check()
    assert [(entry.event.asked, entry.event.answered) for entry in entries] == [(BATCH, BATCH)] * 2 + [(5, 5)]
    assert sum(event["rows"] for event in world.events("answered")) == PARTIES * BATCH * 3


def test_a_batch_under_masks_that_hospitals_do_not_go_on_with_is_void_and_charged(
    dying: Any, takes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = replace(MASKED, privacy=Privacy(allow_weak=True), aggregation=GNMAX)
    world = World(study, tmp_path, monkeypatch, real=True)
    with dying(MaskedRounds, "_take", takes(SurvivorConsent, batch=1), after=False):
        world.run(resume=False)
    for number in range(PARTIES):  # their replies are gone
        Hospital(read_site({"partition-id": number})).end(
            EndRequest(status="success", exit_code=0, summary="")
        )
    assert world.run(resume=True) == 0
    assert {event["reason"] for event in world.events("refused")} == {"REPEATED in secure summation"}
    entries = verify(world.run_dir / "ledger.sqlite").chain.entries
    assert [entry.event.answered for entry in entries] == [BATCH, 0, BATCH, 5]
    with np.load(world.run_dir / "labels.npz") as labels:
        assert len(np.unique(labels["index"])) == len(labels["index"]) == 3 * BATCH + 5


def test_the_same_parties_with_other_keys_are_not_taken_back(
    dying: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(replace(MASKED, privacy=Privacy(allow_weak=True)), tmp_path, monkeypatch)
    with dying(server.base, "charge", _second):
        world.run(resume=False)
    [party] = list(world.parties.glob("*1/secure_sum"))
    for path in party.iterdir():
        path.unlink()
    assert world.run(resume=True) == 4  # the terms want all four
    log = (world.run_dir / "log.jsonl").read_text(encoding="utf-8")
    assert "other keys than before the coordinator was started again" in log


@pytest.mark.parametrize("study", [PLAIN, MASKED], ids=["plain", "masked"])
def test_a_run_directory_that_was_put_back_is_asked_no_vote_for(
    study: Study,
    dying: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    world = World(replace(study, aggregation=GNMAX), tmp_path, monkeypatch, real=True)
    with dying(server.base, "charge", _second, after=False):
        world.run(resume=False)
    shutil.copytree(world.run_dir, tmp_path / "backup")
    with dying(server.base, "charge", lambda given: given[0].index[0] == 2 * BATCH, after=False):
        world.run(resume=True)
    answered = len(world.events("answered"))
    assert answered == 3 * PARTIES
    shutil.rmtree(world.run_dir)
    shutil.copytree(tmp_path / "backup", world.run_dir)
    with Ledger.open(world.run_dir / "ledger.sqlite") as ledger:
        assert len(ledger.entries()) == 1
    for _ in range(2):
        assert world.run(resume=True) == 4
        assert Refusal.LEDGER.value in capsys.readouterr().err
        with Ledger.open(world.run_dir / "ledger.sqlite") as ledger:  # nor is what it kept released anew
            assert len(ledger.entries()) == 1
    assert len(world.events("answered")) == answered


@pytest.mark.parametrize("secure_sum", [False, True])
def test_a_hospital_that_was_put_back_is_out_and_the_others_finish(
    secure_sum: bool, dying: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = replace(
        PLAIN,
        aggregation=GNMAX,
        parties=replace(PLAIN.parties, quorum=0.75),
        queries=replace(PLAIN.queries, labels=35),
        secrecy=TrustModel(secure_sum=secure_sum),
    ).resolve()
    world = World(study, tmp_path, monkeypatch, real=True)
    with dying(server.base, "charge", _second, after=False):
        world.run(resume=False)
    state = next(path.parent for path in sorted(world.parties.glob("*/trail")))
    shutil.copytree(state, tmp_path / "backup")
    with dying(server.base, "charge", lambda given: given[0].index[0] == 2 * BATCH, after=False):
        world.run(resume=True)
    shutil.rmtree(state)
    shutil.copytree(tmp_path / "backup", state)
    answered = len(world.events("answered"))
    assert world.run(resume=True) == 0
    assert len(world.check(refused=1)) == 4
    assert len(world.events("answered")) == answered + PARTIES - 1
    log = (world.run_dir / "log.jsonl").read_text(encoding="utf-8")
    out = [event for event in map(json.loads, log.splitlines()) if event["event"] == "left_out"]
    assert len(out) == 1 and Refusal.OLDER.value in out[0]["reason"]
    assert [event["reason"] for event in world.events("policy")] == ["OLDER"]
