"""A coordinator that dies at any moment: the next one goes on, charges nothing twice, asks nobody twice."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate_fed.flower import prepare_environment

prepare_environment()

from clients.app import app as app_of_hospitals
from pate_fed.config.sections import Aggregation, Data, Engine, Parties, Privacy, Queries
from pate_fed.config.study import Study
from pate_fed.config.trust import TrustModel
from pate_fed.data import GlyphSettings
from pate_fed.errors import PateFedError
from pate_fed.flower.inline import run_inline
from pate_fed.learning import TeacherSettings
from pate_fed.learning.settings import StudentSettings
from pate_fed.privacy import Ledger, verify
from pate_fed.secure_sum.messages import BatchShares, MaskedVector
from server.app import Coordinator
from server.masked import MaskedRounds
from server.release import LabelReleaser

PARTIES, BATCH = 4, 10
PLAIN = Study(
    parties=Parties(num_clients=PARTIES, teachers_per_client=2),
    data=Data(glyph=GlyphSettings(classes=3, private=120, public=40)),
    teacher=TeacherSettings(epochs=1),
    aggregation=Aggregation(aggregator="confident-gnmax", threshold=4.0, sigma1=4.0, sigma2=2.0),
    queries=Queries(labels=25, batch_size=BATCH, evaluate=False),
    privacy=Privacy(sanitise=True, allow_weak=True),
    student=StudentSettings(name="supervised", epochs=1),
    engine=Engine(backend="grpc", device="cpu"),
).resolve()
MASKED = replace(PLAIN, secrecy=TrustModel(secure_sum=True)).resolve()


class World:
    """A study's run directory and its parties' disks, which outlive every coordinator."""

    def __init__(self, study: Study, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.study, self.run_dir, self.parties = study, folder / "run", folder / "parties"
        self.parties.mkdir()
        (self.parties / "study.toml").write_text(study.to_toml(), encoding="utf-8")
        site = {"study": str(self.parties / "study.toml"), "state_dir": str(self.parties)}
        (self.parties / "site.json").write_text(json.dumps(site), encoding="utf-8")
        patch.setenv("PATE_FED_SITE", str(self.parties / "site.json"))

    def run(self, *, resume: bool, broken: bool = False) -> int:
        coordinator = Coordinator(
            self.study,
            run_dir=self.run_dir,
            quiet=True,
            stop=threading.Event(),
            started=time.perf_counter(),
            resume=resume,
        )

        def start(app: Any) -> None:
            if broken:
                raise PateFedError("Flower's SuperLink did not start")
            run_inline(app, app_of_hospitals, num_nodes=PARTIES)

        coordinator.run(start)
        return coordinator.conclude(as_json=False)

    def events(self, name: str) -> list[dict[str, Any]]:
        logs = [path.read_text(encoding="utf-8").splitlines() for path in self.parties.glob("*/log.jsonl")]
        return [event for log in logs for event in map(json.loads, log) if event["event"] == name]

    def check(self) -> list[Any]:
        """What holds after every end that is a success; the ledger's entries."""
        entries = list(verify(self.run_dir / "ledger.sqlite").chain.entries)
        assert len({entry.batch_digest for entry in entries}) == len(entries)
        with np.load(self.run_dir / "labels.npz") as labels:
            index = labels["index"]
        assert len(np.unique(index)) == len(index)
        assert self.events("refused") == []
        assert len(self.events("taught")) == 2 * PARTIES
        assert not (self.run_dir / "private").exists()
        return entries


def _second(arguments: Any) -> bool:
    """Of `LabelReleaser.release`, the call with the second batch."""
    return bool(arguments[1].index[0] == BATCH)


@pytest.mark.parametrize("after", [False, True], ids=["before a release", "after a release"])
def test_votes_and_totals_outlive_the_coordinator(
    after: bool, dying: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(PLAIN, tmp_path, monkeypatch)
    with dying(LabelReleaser, "release", _second, after=after):
        world.run(resume=False)
    assert world.run(resume=True) == 0
    entries = world.check()
    asked = [event["queries"] for event in world.events("voted")]
    # Once a batch each; of the last one fewer queries than were voted on may be looked at.
    assert len(asked) == PARTIES * len(entries)
    assert sum(asked) >= PARTIES * sum(entry.event.asked for entry in entries)
    metrics = json.loads((world.run_dir / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["privacy"]["student"]["data_dependent_do_not_publish"] > 0
    assert metrics["privacy"]["student"]["sanitised"] > 0
    assert metrics["accuracy_do_not_publish"]["ensemble"] > 0


@pytest.mark.parametrize("broken", ["engine", "ledger"])
def test_what_an_earlier_process_released_is_not_told_as_nothing(
    broken: str,
    dying: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    world = World(PLAIN, tmp_path, monkeypatch)
    with dying(LabelReleaser, "release", _second):
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
    with dying(LabelReleaser, "release", _second):
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
    assert len(world.events("voted")) == 2 * PARTIES  # nobody was asked again


def test_totals_that_are_lost_leave_only_the_bound_that_holds_anyway(
    dying: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(PLAIN, tmp_path, monkeypatch)
    with dying(LabelReleaser, "release", _second):
        world.run(resume=False)
    next((world.run_dir / "private").glob("totals-*")).unlink()
    assert world.run(resume=True) == 2
    assert "not all there (folder private of the run directory)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("reply", "void"), [(BatchShares, False), (MaskedVector, True)], ids=["opened", "votes asked for"]
)
def test_a_batch_under_masks_that_was_cut_off_is_void_or_never_was(
    reply: type, void: bool, dying: Any, takes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(replace(MASKED, privacy=Privacy(allow_weak=True)), tmp_path, monkeypatch)
    with dying(MaskedRounds, "_take", takes(reply, batch=1)):
        world.run(resume=False)
    assert world.run(resume=True) == 0
    entries = world.check()
    assert [entry.event.answered == 0 for entry in entries[:3]] == [False, void, False]
    voted = sum(event["queries"] for event in world.events("voted"))
    asked = PARTIES * sum(entry.event.asked for entry in entries)
    assert voted == asked or (void and voted < asked)  # some were not reached before the coordinator died


def test_the_same_parties_with_other_keys_are_not_taken_back(
    dying: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(replace(MASKED, privacy=Privacy(allow_weak=True)), tmp_path, monkeypatch)
    with dying(LabelReleaser, "release", _second):
        world.run(resume=False)
    [party] = list(world.parties.glob("*1/secure_sum"))
    for path in party.iterdir():
        path.unlink()
    assert world.run(resume=True) == 4  # the terms want all four
    log = (world.run_dir / "log.jsonl").read_text(encoding="utf-8")
    assert "other keys than before the coordinator was started again" in log
