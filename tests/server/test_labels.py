"""A coordinator of label counts that dies at any moment: another goes on, and no hospital answers twice."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate_fed.flower import prepare_environment

prepare_environment()

from flwr.clientapp import ClientApp

import clients.app
from pate_fed.errors import BudgetError, IntegrityError, QuorumError
from pate_fed.flower.inline import run_inline
from pate_fed.kinds.label_dp.noise_cluster import label_counts
from pate_fed.kinds.label_dp.release import PrivateLabels
from pate_fed.kinds.make import PublicClusters, PublicPool
from pate_fed.protocol.messages import ANSWER
from pate_fed.report.terminal import make_progress
from pate_fed.secure_sum import read_reply
from pate_fed.secure_sum.messages import MaskedVector
from server import federation
from server.exchange import Stopped
from server.label_hospitals import HospitalLabels, SimulatedHospitals
from server.labels import LabelCoordinator
from server.masked import MaskedRounds
from server.state import CoordinatorState

RECORDS, CLASSES, HOSPITALS, CLUSTERS = 600, 4, 5, 6
LABEL = np.random.default_rng(1).integers(0, CLASSES, RECORDS)
CLUSTER = (LABEL + (np.arange(RECORDS) % 5 == 0)) % CLASSES
TAKE = MaskedRounds._take
PARTS = tuple(np.sort(part) for part in np.array_split(np.random.default_rng(2).permutation(RECORDS), 5))


class World:
    """Hospitals' disks, and a coordinator's folder, which outlive every coordinator."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.disks, self.kept = folder / "disks", folder / "out" / "secure_sum"
        self.disks.mkdir()
        patch.setattr("pate_fed.flower.inline._SLICE_S", 60.0)  # whoever is asked has answered, however busy

        @contextmanager
        def outliving() -> Iterator[Path]:
            yield self.disks

        patch.setattr("server.label_hospitals.simulated_disks", outliving)
        patch.setattr(SimulatedHospitals, "state_dir", property(lambda place: self.kept))
        place = SimulatedHospitals(parts=PARTS, labels=LABEL, client_app=lambda: clients.app.app)
        pool = PublicPool(size=RECORDS, digest="ab" * 32, num_classes=CLASSES, shape=(8, 8, 1))
        self.hospitals = HospitalLabels(place=place, pool=pool)

    def run(self, epsilon: float = 1.0) -> PrivateLabels:
        return self.hospitals.count(CLUSTER, CLUSTERS, epsilon=epsilon, delta=1e-5)

    def counted(self) -> list[int]:
        """How often each hospital counted its labels for somebody, by its own log."""
        logs = [(self.disks / f"hospital-{n}" / "log.jsonl").read_text().splitlines() for n in range(5)]
        return [sum(json.loads(line)["event"] == "answered" for line in log) for log in logs]

    @property
    def own(self) -> Path:
        [folder] = self.kept.iterdir()
        return folder


def test_a_sum_that_is_there_is_taken_again_and_nobody_asked(
    dying: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch)
    with dying(CoordinatorState, "keep_totals"):
        world.run()
    again = [world.run().label for _ in range(2)]
    assert "nobody was asked again" in world.hospitals.lines()[1] and world.hospitals.to_dict()["kept"]
    np.testing.assert_array_equal(*again)
    assert world.counted() == [1] * HOSPITALS and world.hospitals.answered == HOSPITALS
    [path] = world.own.glob("totals-*")
    with np.load(path) as held:
        exact = label_counts(CLUSTER, LABEL, CLUSTERS, CLASSES)
        assert held["value"].any() and (held["value"] != exact).any()  # noisy: that is why it may lie here
    assert {oct(path.stat().st_mode)[-3:] for path in world.own.iterdir()} == {"600"}
    assert oct(world.own.stat().st_mode)[-3:] == "700"
    path.write_bytes(b"")
    with pytest.raises(IntegrityError, match="kept totals are damaged"):
        world.run()
    np.savez(path, index=np.arange(2), value=np.zeros((2, 2), dtype=np.int64), voters=5)
    with pytest.raises(IntegrityError, match="of another study"):
        world.run()


def test_counts_that_are_lost_are_told_and_not_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(MaskedRounds, "_take", _changed)
        with pytest.raises(
            QuorumError, match=r"3 of 5 hospitals sent .*; ε=1 δ=1e-5 counts as spent at every"
        ):
            world.run()
    before = world.counted()
    assert before == [1] * HOSPITALS
    for _ in range(2):
        with pytest.raises(BudgetError, match="there was no sum; ε=1 δ=1e-5 counts as spent"):
            world.run()
    assert world.counted() == before
    # Not under a smaller ε either: hospitals hold on to the terms that they know.
    with pytest.raises(QuorumError, match="asked about its labels before"):
        world.run(epsilon=0.5)
    assert world.counted() == before


def test_counts_that_were_not_heard_stay_open_and_are_not_counted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(MaskedRounds, "_take", _deaf)
        for _ in range(2):
            with pytest.raises(
                QuorumError, match=r"3 of 5 hospitals sent .* the same command goes on with it"
            ):
                world.run()
    found = world.run()
    assert world.counted() == [1] * HOSPITALS and (found.label == LABEL).mean() > 0.7
    assert world.hospitals.answered == HOSPITALS and world.hospitals.left_out == ()


def _coordinator(world: World, *, counts: bool, backend: str = "inline") -> LabelCoordinator:
    clusters = PublicClusters(place=CLUSTER, count=CLUSTERS, delta=1e-5) if counts else None
    return LabelCoordinator(
        world.hospitals.make_terms(epsilon=1.0, clusters=clusters),
        clusters=CLUSTER if counts else None,
        backend=backend,
        progress=make_progress(True),
        stop=threading.Event(),
        folder=world.kept if counts else None,
    )


@pytest.mark.parametrize("counts", [True, False])
def test_hospitals_are_told_of_no_cost_where_nothing_can_have_left(
    counts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch)
    policy = tmp_path / "policy.toml"
    policy.write_text("epsilon_public = 0.1")
    place = replace(world.hospitals.place, policy=policy)
    made = _coordinator(world, counts=counts)
    with pytest.raises(QuorumError, match="0 of 5"):
        made.run(lambda app: place.run(app, made, threading.Event()))
    assert made.outcome_notice().summary == "ε=0 δ=0 unit=label"


@pytest.mark.parametrize(
    ("backend", "words"), [("grpc", "--wait says how long they have"), ("inline", "within 0 s")]
)
def test_hospitals_with_processes_were_waited_for_before(
    backend: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--wait is all the time that they have; only simulated ones, which come at once, are waited for here."""
    monkeypatch.setattr("server.exchange._CONNECT_S", 0.2)
    made = _coordinator(World(tmp_path, monkeypatch), counts=False, backend=backend)
    with pytest.raises(QuorumError, match=words):
        made.run(lambda app: run_inline(app, ClientApp(), num_nodes=0))


def _from_two(participants: Any, answer: Any) -> bool:
    """Whether this is a vector of one of two hospitals."""
    vector = isinstance(read_reply(answer.reply.step), MaskedVector)
    return vector and participants[answer.node] in ("hospital-1", "hospital-2")


def _deaf(self: MaskedRounds, batch: Any, step: int, participants: Any, answer: Any) -> None:
    """Two hospitals' vectors come, and are not heard."""
    if _from_two(participants, answer):
        raise IntegrityError("was not heard")
    TAKE(self, batch, step, participants, answer)


def _changed(self: MaskedRounds, batch: Any, step: int, participants: Any, answer: Any) -> None:
    """Two hospitals' vectors come otherwise than they signed them."""
    if _from_two(participants, answer):
        vector = read_reply(answer.reply.step)
        step_bytes = replace(vector, vector=vector.vector ^ np.array(1, dtype=vector.vector.dtype)).to_bytes()
        answer = replace(answer, reply=replace(answer.reply, step=step_bytes))
    TAKE(self, batch, step, participants, answer)


def test_what_a_sum_that_fails_cost_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, monkeypatch)
    monkeypatch.setattr(MaskedRounds, "_take", _changed)
    made = _coordinator(world, counts=True)
    with pytest.raises(QuorumError, match="counts as spent at every"):
        made.run(lambda app: world.hospitals.place.run(app, made, threading.Event()))
    notice = made.outcome_notice()
    assert (notice.exit_code, notice.summary.startswith("ε=1 ")) == (4, True)


def test_hospitals_wait_for_whoever_goes_on_with_an_open_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch)
    monkeypatch.setattr(MaskedRounds, "_take", _deaf)
    made = _coordinator(world, counts=True)
    with pytest.raises(QuorumError, match="stays open"):
        made.run(lambda app: world.hospitals.place.run(app, made, threading.Event()))
    assert made.outcome_notice().exit_code == 130 and world.counted() == [1] * HOSPITALS


def test_what_was_sent_and_not_heard_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped while hospitals answer: their labels are on the way."""
    world, whole = World(tmp_path, monkeypatch), federation.exchange

    def stopped(*arguments: Any, message_type: str, **named: Any) -> Iterator[Any]:
        heard = list(whole(*arguments, message_type=message_type, **named))
        if message_type == ANSWER:
            raise Stopped
        yield from heard

    monkeypatch.setattr(federation, "exchange", stopped)
    made = _coordinator(world, counts=False)
    with pytest.raises(Stopped):
        made.run(lambda app: world.hospitals.place.run(app, made, threading.Event()))
    assert (made.outcome_notice().status, made.outcome_notice().summary) == ("aborted", "ε=1 δ=0 unit=label")
