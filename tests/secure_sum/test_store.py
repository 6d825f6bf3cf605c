"""A hospital's store: private files, one process at a time, and no step that a crash could make twice."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate_fed.disk import try_lock
from pate_fed.errors import IntegrityError
from pate_fed.secure_sum import (
    CoordinatorSum,
    Demands,
    HospitalSum,
    Identity,
    PlayedStore,
    RefusedError,
    SumBatch,
    SumRange,
    SumRefusal,
    SumStore,
    fingerprint,
)
from pate_fed.secure_sum.messages import Enrolment, EnrolRequest

STUDY = "ab" * 32
PARTIES = 5


def _no_votes() -> Any:
    raise AssertionError("no votes were asked for")


@pytest.fixture
def coordinator() -> CoordinatorSum:
    return CoordinatorSum(Identity.generate(), study=STUDY)


@pytest.fixture
def stores(coordinator: CoordinatorSum, tmp_path: Path) -> list[SumStore]:
    made = [SumStore(tmp_path / f"p{number}") for number in range(PARTIES)]
    for number, store in enumerate(made):
        enrolled = store.enrol(coordinator.enrol_request(), party=f"p{number}", study=STUDY)
        coordinator.admit(Enrolment.from_bytes(enrolled))
    return made


def _open_batch(coordinator: CoordinatorSum, stores: Sequence[SumStore | PlayedStore]) -> SumBatch:
    """The first batch of a roster that every store has pinned."""
    coordinator.close_roster()
    for store in stores:
        with store.machine() as machine:
            coordinator.note_pinned(machine.pin(coordinator.pin_request(machine.enrolment.party)))
    return coordinator.open_batch(
        batch=0, batch_digest="cd" * 32, length=4, sum_range=SumRange(smallest=0, largest=100)
    )


def _total(coordinator: CoordinatorSum, stores: Sequence[SumStore | PlayedStore]) -> Any:
    """A whole batch in which every message meets a machine from the disk."""
    batch = _open_batch(coordinator, stores)
    for requests in batch.rounds():
        for party, request in requests.items():
            number = int(party[1:])
            with stores[number].machine() as machine:
                batch.take(machine.answer(request, lambda n=number: np.full(4, n, dtype=np.int64)))
    return batch.total()


def test_every_message_may_meet_a_new_process(coordinator: CoordinatorSum, stores: list[SumStore]) -> None:
    assert _total(coordinator, stores).tolist() == [sum(range(PARTIES))] * 4


@pytest.mark.parametrize(
    ("demands", "reason"),
    [
        (lambda names: Demands(trusted={"p1": names["p1"]}, least_confirmed=None), "CONFIRMED"),
        (lambda names: Demands(trusted={"p1": names["p1"]}, least_confirmed=PARTIES - 1), "CONFIRMED"),
        (lambda names: Demands(trusted={**names, "p4": "0000"}), "CONFIRMED"),
        (lambda names: Demands(least_parties=PARTIES + 1), "SMALL"),
        (lambda names: Demands(least_voters=PARTIES), "THRESHOLD"),
        (lambda names: Demands(trusted=names, least_confirmed=PARTIES - 1), None),
    ],
)
@pytest.mark.parametrize("step", ["share", "mask", "unmask"])
def test_a_pinned_roster_is_held_to_the_demands_of_now(
    coordinator: CoordinatorSum, stores: list[SumStore], tmp_path: Path, demands: Any, reason: Any, step: str
) -> None:
    # Who is in a sum is known once the roster is pinned: whoever then telephones, finds that nobody knows p4
    # and writes the others into the policy, is not summed with p4 any more, not even in a batch under way.
    coordinator.close_roster()
    for store in stores:
        with store.machine() as machine:
            coordinator.note_pinned(machine.pin(coordinator.pin_request(machine.enrolment.party)))
            names = {name: shown for name, shown in machine.roster.items() if name != "(coordinator)"}
    batch = coordinator.open_batch(batch=0, batch_digest="cd" * 32, length=1, sum_range=SumRange.votes(9))
    doubtful = SumStore(tmp_path / "p0", demands(names))
    for number, requests in enumerate(batch.rounds()):
        asked = ("share", "mask", "consent", "unmask")[number]
        for party, request in requests.items():
            store = doubtful if party == "p0" and asked == step else stores[int(party[1:])]
            try:
                with store.machine() as machine:
                    batch.take(machine.answer(request, lambda: np.ones(1, dtype=np.int64)))
            except RefusedError as error:
                assert (party, asked) == ("p0", step) and reason is not None
                assert reason in error.reason.name
                return
    assert reason is None and batch.total().tolist() == [PARTIES]


def test_a_reply_that_was_not_sent_is_sent_by_the_next_process(
    coordinator: CoordinatorSum, stores: list[SumStore]
) -> None:
    coordinator.close_roster()
    batch = coordinator.open_batch(
        batch=0, batch_digest="cd" * 32, length=1, sum_range=SumRange.votes(9), roster_rides=True
    )
    for requests in batch.rounds():
        for party, request in requests.items():
            store = stores[int(party[1:])]
            with store.machine() as machine:
                machine.pin(coordinator.pin_request(machine.enrolment.party))
                unsent = machine.answer(request, lambda: np.ones(1, dtype=np.int64))
            with store.machine() as machine:
                reply = machine.answer(request, _no_votes)
            assert reply.to_bytes() == unsent.to_bytes()
            batch.take(reply)
    assert batch.total().tolist() == [PARTIES]
    stores[0].forget_replies()
    with stores[0].machine() as machine, pytest.raises(RefusedError):
        machine.answer(request, _no_votes)


def _played(
    coordinator: CoordinatorSum, machines: dict[Path, HospitalSum], folder: Path
) -> list[PlayedStore]:
    made = [
        PlayedStore(machines, folder / f"p{number}" / "secure_sum", Demands()) for number in range(PARTIES)
    ]
    for number, store in enumerate(made):
        enrolled = store.enrol(coordinator.enrol_request(), party=f"p{number}", study=STUDY)
        assert enrolled == store.enrol(coordinator.enrol_request(), party=f"p{number}", study=STUDY)
        coordinator.admit(Enrolment.from_bytes(enrolled))
    return made


def test_a_simulation_of_one_process_sums_in_memory(coordinator: CoordinatorSum, tmp_path: Path) -> None:
    machines = dict[Path, HospitalSum]()
    stores = _played(coordinator, machines, tmp_path)
    assert _total(coordinator, stores).tolist() == [sum(range(PARTIES))] * 4
    assert not list(tmp_path.iterdir())
    stranger = CoordinatorSum(Identity.generate(), study=STUDY)
    with pytest.raises(RefusedError):
        stores[0].enrol(stranger.enrol_request(), party="p0", study=STUDY)
    assert "hidden" in repr(stores[0])


def test_the_machines_of_an_earlier_simulation_are_forgotten(
    coordinator: CoordinatorSum, tmp_path: Path
) -> None:
    machines = dict[Path, HospitalSum]()
    old = _played(coordinator, machines, tmp_path / "earlier")
    new = _played(CoordinatorSum(Identity.generate(), study=STUDY), machines, tmp_path)
    assert len(machines) == PARTIES
    with new[0].machine() as machine:
        assert machine.enrolment.party == "p0"
    with pytest.raises(IntegrityError, match="not enrolled"), old[0].machine():
        raise AssertionError("the machine of an earlier simulation")


def test_files_are_the_hospitals_alone_whatever_the_umask(
    coordinator: CoordinatorSum, tmp_path: Path
) -> None:
    before = os.umask(0)
    try:
        store = SumStore(tmp_path / "p")
        store.enrol(coordinator.enrol_request(), party="p", study=STUDY)
        with store.machine():
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "p").stat().st_mode) == 0o700
    files = list((tmp_path / "p").iterdir())
    assert {path.name for path in files} == {"identity.key", "study.state", "batches.state", "lock"}
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)


def test_enrolling_again_gives_the_same_keys(coordinator: CoordinatorSum, stores: list[SumStore]) -> None:
    request = coordinator.enrol_request()
    first = stores[0].enrol(request, party="p0", study=STUDY)
    assert stores[0].enrol(request, party="p0", study=STUDY) == first
    other = CoordinatorSum(Identity.generate(), study=STUDY)
    with pytest.raises(RefusedError) as caught:
        stores[0].enrol(other.enrol_request(), party="p0", study=STUDY)
    assert caught.value.reason is SumRefusal.COORDINATOR


def test_the_identity_outlives_a_study(coordinator: CoordinatorSum, tmp_path: Path) -> None:
    store = SumStore(tmp_path / "p")
    first = Enrolment.from_bytes(store.enrol(coordinator.enrol_request(), party="p", study=STUDY))
    (tmp_path / "p" / "study.state").unlink()
    second = Enrolment.from_bytes(store.enrol(coordinator.enrol_request(), party="p", study=STUDY))
    assert first.identity == second.identity
    assert first.exchange_key != second.exchange_key


def test_a_newer_version_is_refused_with_a_sentence(coordinator: CoordinatorSum) -> None:
    record = {**coordinator.enrol_request().to_record(), "version": 4}
    with pytest.raises(
        RefusedError, match="version 4 of secure summation and this program version 3: update"
    ):
        EnrolRequest.from_record(record)


def test_without_enrolment_or_with_damage_there_is_no_machine(stores: list[SumStore], tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="not enrolled"), SumStore(tmp_path / "nobody").machine():
        pass
    for name in ("study.state", "batches.state"):
        path = tmp_path / "p1" / name
        whole = path.read_bytes()
        path.write_bytes(whole[:-1])
        with pytest.raises(IntegrityError, match="damaged"), stores[1].machine():
            pass
        path.write_bytes(whole)
    with stores[1].machine():
        pass


def test_a_refused_message_is_remembered_too(coordinator: CoordinatorSum, stores: list[SumStore]) -> None:
    """A void batch stays void in the next process."""
    batch = _open_batch(coordinator, stores)
    for store in stores:
        with store.machine() as machine:
            batch.take(machine.answer(batch.opening, _no_votes))
    request = batch.mask_requests()["p0"]
    for reason in (SumRefusal.DEALT, SumRefusal.BATCH_VOID):
        forged = type(request)(
            **{
                **{name: value for name, value in request.to_record().items() if name != "kind"},
                "dealt": bytes(len(request.dealt)),
                "signature": bytes(64),
            }
        ).signed(coordinator._identity)
        sent = forged if reason is SumRefusal.DEALT else request
        with pytest.raises(RefusedError) as caught, stores[0].machine() as machine:
            machine.answer(sent, _no_votes)
        assert caught.value.reason is reason


def test_two_processes_take_turns(stores: list[SumStore]) -> None:
    order: list[str] = []

    def second() -> None:
        with stores[0].machine():
            order.append("second")

    thread = threading.Thread(target=second)
    with stores[0].machine():
        thread.start()
        time.sleep(0.1)
        order.append("first")
    thread.join(timeout=10)
    assert order == ["first", "second"]


@pytest.mark.skipif(sys.platform == "win32", reason="kills as POSIX does")
def test_a_killed_process_leaves_no_lock_and_no_torn_state(stores: list[SumStore], tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom pate_fed.secure_sum import SumStore\n"
        "with SumStore(Path(sys.argv[1])).machine():\n    print('in', flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "p0")],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[2],
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in\n"
        handle = os.open(tmp_path / "p0" / "lock", os.O_RDWR)
        assert not try_lock(handle, tmp_path)
        process.kill()
        process.wait()
        os.close(handle)
    with stores[0].machine() as machine:
        assert machine.enrolment.party == "p0"


def test_demands_are_the_hospitals_own(coordinator: CoordinatorSum, stores: list[SumStore]) -> None:
    coordinator.close_roster()
    strict = SumStore(stores[0]._folder, Demands(least_parties=10))
    with pytest.raises(RefusedError) as caught, strict.machine() as machine:
        machine.pin(coordinator.pin_request(machine.enrolment.party))
    assert caught.value.reason is SumRefusal.ROSTER_SMALL


def test_the_roster_lies_there_for_people(
    coordinator: CoordinatorSum, stores: list[SumStore], tmp_path: Path
) -> None:
    assert not (tmp_path / "p0" / "roster.txt").exists()
    _total(coordinator, stores)
    texts = {
        (tmp_path / f"p{number}" / "roster.txt").read_text(encoding="utf-8") for number in range(PARTIES)
    }
    lines = texts.pop().splitlines()
    assert not texts  # all hospitals read the same
    assert [line.split()[0] for line in lines] == ["(coordinator)", *(f"p{n}" for n in range(PARTIES))]
    own = Identity((tmp_path / "p2" / "identity.key").read_bytes())
    assert lines[3] == f"p2             {fingerprint(own.public)}"
    before = (tmp_path / "p0" / "roster.txt").stat().st_ino
    stores[0].forget_replies()  # saved anew, but for what people were shown
    assert (tmp_path / "p0" / "roster.txt").stat().st_ino == before


def test_nobody_is_shown_the_roster_of_a_simulation(coordinator: CoordinatorSum, tmp_path: Path) -> None:
    stores = [SumStore(tmp_path / f"p{number}", durable=False) for number in range(PARTIES)]
    for number, store in enumerate(stores):
        enrolled = store.enrol(coordinator.enrol_request(), party=f"p{number}", study=STUDY)
        coordinator.admit(Enrolment.from_bytes(enrolled))
    _total(coordinator, stores)
    assert not [*tmp_path.glob("*/roster.txt")]


def test_a_store_shows_no_secret(stores: list[SumStore], tmp_path: Path) -> None:
    key = (tmp_path / "p0" / "identity.key").read_bytes()
    assert key.hex() not in repr(stores[0])
    assert "<hidden>" in repr(stores[0])
