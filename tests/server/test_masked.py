"""The coordinator's masked rounds: exact sums of whoever is left, and nothing below the threshold."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import make_terms, vary

from pate_fed.flower import prepare_environment

prepare_environment()

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from pate_fed.errors import IntegrityError, QuorumError
from pate_fed.flower.inline import InlineGrid
from pate_fed.flower.records import from_flower, to_flower
from pate_fed.kinds.terms import Terms
from pate_fed.protocol.messages import (
    JoinReply,
    JoinRequest,
    Question,
    Record,
    SumReply,
    SumRequest,
)
from pate_fed.report.result import LeftOut
from pate_fed.secure_sum import (
    Demands,
    HospitalSum,
    Identity,
    RefusedError,
    SumRefusal,
    read_reply,
    read_request,
)
from pate_fed.secure_sum.messages import SEALED_BYTES, BatchShares, Complaint, ShareDoubt
from server.federation import AdmittedKeys, Channel, Federation, Invitation
from server.masked import ROUNDS
from server.state import CoordinatorState

PARTIES, CLASSES, QUERIES, TEACHERS = 7, 3, 6, 2
TERMS = make_terms(
    num_classes=CLASSES,
    pool_size=20,
    num_clients=PARTIES,
    teachers_per_client=TEACHERS,
    least_clients=5,
    threshold=4.0,
    sigma1=3.0,
    sigma2=0.8,
    labels=10,
    max_queries=10,
    secure_sum=True,
)
STEPS = ("sum.open", "sum.mask", "sum.survivors", "sum.unmask")

Tamper = Callable[[int, str, Any], Any]


def _votes(number: int) -> np.ndarray:
    votes = np.zeros((QUERIES, CLASSES), dtype=np.int64)
    votes[:, number % CLASSES] += 1
    votes[:, (number + 1) % CLASSES] += 1
    return votes


class _Study:
    """Seven hospitals' machines behind a grid; `silent` fall silent at a step, `tamper` changes replies.

    `lies` are changes that a hospital signs itself, by its number.
    """

    def __init__(
        self, terms: Terms = TERMS, *, keyed: bool = False, lies: dict[int, Tamper] | None = None
    ) -> None:
        self.lies, self.shown, self.asked = lies or {}, b"", None
        self.terms = terms
        self.names: dict[int, str] = {}
        self.identities: dict[str, Identity] = {}
        self.public: dict[str, bytes] = {}
        self.machines: dict[int, HospitalSum] = {}
        self.silent: set[tuple[int, str]] = set()
        self.tamper: Tamper = lambda number, step, reply: reply
        self.vector = _votes
        self.troubles: dict[str, str] = {}
        self.arrived = 0
        app = ClientApp()
        app.train("join")(lambda m, c: self._deliver(m, c, self._teach))
        app.query("sum")(lambda m, c: self._deliver(m, c, self._sum))
        self.grid = InlineGrid(app, num_nodes=PARTIES)
        channel = Channel(
            grid=self.grid,
            stop=threading.Event(),
            progress=self,  # type: ignore[arg-type]
            backend="inline",
            answer_s=5,
            window=None,
        )
        if keyed:
            self.names.update({node: f"p{n}" for n, node in enumerate(self.grid.get_node_ids())})
            self.identities.update({name: Identity.generate() for name in self.names.values()})
            self.public.update({name: identity.public for name, identity in self.identities.items()})
        keys = AdmittedKeys(self.names, self.public) if keyed else None
        self.federation = Federation(
            terms, channel, CoordinatorState(None), keys=keys, left_out=self._left_out
        )
        self._enrol()

    def revoke(self, party: str) -> None:
        """As the authority's list of admitted hospitals does, at any time."""
        del self.public[party]
        for node in [node for node, name in self.names.items() if name == party]:
            del self.names[node]

    def _deliver(
        self, message: Message, context: Context, answer: Callable[[int, Record], Record]
    ) -> Message:
        number = int(context.node_config["partition-id"])
        return Message(to_flower(answer(number, from_flower(message.content))), reply_to=message)

    def _teach(self, number: int, record: Record) -> Record:
        request = read_request(record["enrol"])
        identity = self.identities.get(f"p{number}") or Identity.generate()
        demands = Demands(colluders=self.terms.colluders)
        self.machines[number] = HospitalSum.enrol(
            identity, request, party=f"p{number}", study=self.terms.digest, demands=demands
        )
        enrolment = self.machines[number].enrolment.to_bytes()
        reply = JoinReply(
            party=f"p{number}",
            terms_digest=self.terms.digest,
            enrolment=enrolment,
        )
        return reply.to_record()

    def _sum(self, number: int, record: Record) -> Record:
        request, machine = SumRequest.from_record(record), self.machines[number]
        step = read_request(request.step)
        if (number, step.kind) in self.silent:
            raise ConnectionError
        try:
            if request.roster:
                machine.pin(read_request(request.roster))
            reply = self._lied(number, step, machine)
        except RefusedError as error:
            reply = machine.refuse(error.reason)
        reply = self.tamper(number, step.kind, reply)
        return SumReply(party=f"p{number}", step=reply.to_bytes()).to_record()

    def _lied(self, number: int, step: Any, machine: HospitalSum) -> Any:
        self.asked = step
        if number in self.lies and step.kind == "sum.evidence":  # it has doubted nobody, as far as it knows
            return self.lies[number](number, step.kind, None).signed(machine._identity)
        reply = machine.answer(step, lambda: self.vector(number))
        if number in self.lies and reply.kind != "sum.consent":
            reply = self.lies[number](number, step.kind, reply).signed(machine._identity)
        if step.kind == "sum.open" and number in self.lies:
            machine._batches[step.batch].own = reply.digest
        return reply

    def _enrol(self) -> None:
        request = JoinRequest(terms=self.terms.to_json(), enrol=self.federation.enrol_request)
        self.federation.admit(
            Invitation(
                request=request.to_record(),
                answer_s=5,
                phase="teach",
                task="teaching",
                done="trained their teachers",
            )
        )
        self.arrived = 0

    @contextmanager
    def phase(self, name: str, total: int) -> Iterator[_Study]:
        yield self

    def advance(self) -> None:
        self.arrived += 1

    def _left_out(self, event: LeftOut) -> None:
        self.troubles[event.party] = event.reason

    def question(self, batch: int = 0) -> Question:
        index = np.arange(batch * QUERIES, (batch + 1) * QUERIES, dtype=np.int64)
        return Question(terms_digest=self.terms.digest, batch=batch, index=index)

    def collect(self, batch: int = 0) -> tuple[np.ndarray, int]:
        totals = self.federation.collect(self.question(batch), task="voting")
        return totals.value, totals.voters


def _sum_of(numbers: Iterator[int] | range | set[int]) -> np.ndarray:
    return np.sum([_votes(number) for number in numbers], axis=0)


def test_the_total_is_exact_and_its_voters_are_counted() -> None:
    study = _Study()
    totals, voters = study.collect()
    np.testing.assert_array_equal(totals, _sum_of(range(PARTIES)))
    assert (voters, study.troubles, study.federation.spent) == (PARTIES, {}, False)
    assert study.arrived == ROUNDS * PARTIES


@pytest.mark.parametrize("step", STEPS)
def test_the_survivors_sum_is_exact_wherever_two_fall_silent(step: str) -> None:
    study = _Study()
    study.silent = {(2, step), (6, step)}
    totals, voters = study.collect()
    # A vector that is in the sum stays in it, whatever its sender does later.
    gone = {2, 6} if step in STEPS[:2] else set()
    np.testing.assert_array_equal(totals, _sum_of(set(range(PARTIES)) - gone))
    assert voters == PARTIES - len(gone)
    assert set(study.troubles) == {"p2", "p6"}


@pytest.mark.parametrize("step", STEPS)
def test_who_is_revoked_gets_no_more_and_is_in_no_sum_whose_survivors_are_not_named(step: str) -> None:
    study = _Study(keyed=True)
    asked: list[tuple[int, str]] = []

    def revoke_first(number: int, at: str, reply: Any) -> Any:
        asked.append((number, at))
        if (number, at) == (PARTIES - 1, step):  # the last one: p2 has answered this step
            study.revoke("p2")
        return reply

    study.tamper = revoke_first
    totals, voters = study.collect()
    gone = {2} if step in STEPS[:2] else set()
    np.testing.assert_array_equal(totals, _sum_of(set(range(PARTIES)) - gone))
    assert voters == PARTIES - len(gone)
    later = STEPS[STEPS.index(step) + 1 :]
    assert not [at for number, at in asked if number == 2 and at in later]
    study.tamper = lambda number, at, reply: reply
    totals, voters = study.collect(1)
    np.testing.assert_array_equal(totals, _sum_of(set(range(PARTIES)) - {2}))
    assert study.troubles == {"p2": "is revoked"}


@pytest.mark.parametrize("step", STEPS)
def test_below_the_threshold_there_is_no_total(step: str) -> None:
    study = _Study()
    study.silent = {(number, step) for number in (1, 2, 6)}
    with pytest.raises(QuorumError, match="4 of 7"):
        study.collect()
    # Before anyone was asked for votes nothing can have leaked; from then on the batch is paid for.
    assert study.federation.spent == (step != "sum.open")
    assert study.federation.open  # they may come back


@pytest.mark.parametrize("step", STEPS)
def test_a_batch_is_void_once_too_many_will_never_answer(step: str) -> None:
    """Two of seven may stay away; a third that refuses for good leaves nothing to come back to."""
    for reason, void in ((SumRefusal.FAULT, False), (SumRefusal.BATCH_VOID, True)):
        study = _Study()

        def refuse(
            number: int, at: str, reply: Any, *, reason: SumRefusal = reason, study: Any = study
        ) -> Any:
            refuses = at == step and number in (1, 2, 6)
            return study.machines[number].refuse(reason) if refuses else reply

        study.tamper = refuse
        with pytest.raises(QuorumError, match="4 of 7"):
            study.collect()
        assert study.federation.open != void


def test_silent_hospitals_at_different_steps_add_up() -> None:
    study = _Study()
    study.silent = {(1, "sum.open"), (2, "sum.mask")}
    totals, voters = study.collect()
    np.testing.assert_array_equal(totals, _sum_of({0, 3, 4, 5, 6}))
    assert voters == 5
    study = _Study()
    study.silent = {(1, "sum.open"), (2, "sum.mask"), (3, "sum.survivors")}
    with pytest.raises(QuorumError):
        study.collect()
    assert study.federation.spent


def test_who_missed_the_roster_gets_it_with_the_next_batch() -> None:
    study = _Study()
    study.silent = {(4, "sum.open")}
    assert study.collect()[1] == PARTIES - 1
    study.silent = set()
    totals, voters = study.collect(1)
    np.testing.assert_array_equal(totals, _sum_of(range(PARTIES)))
    assert voters == PARTIES


def test_a_void_batch_is_not_opened_again() -> None:
    study = _Study()
    study.silent = {(number, "sum.mask") for number in range(3)}
    with pytest.raises(QuorumError):
        study.collect()
    study.silent = set()
    with pytest.raises(IntegrityError, match="never summed twice"):
        study.collect()
    assert study.collect(1)[1] == PARTIES


def test_a_vector_that_is_no_votes_raises_the_alarm() -> None:
    study = _Study()
    study.vector = lambda number: _votes(number) * (10 if number == 3 else 1)
    with pytest.raises(IntegrityError, match="none of honest votes"):
        study.collect()
    assert study.federation.spent


def test_hospitals_of_different_size_sum_as_many_votes_in_every_row() -> None:
    def votes(number: int, rows: int = QUERIES) -> np.ndarray:
        votes = np.zeros((QUERIES, CLASSES), dtype=np.int64)
        votes[:rows, number % CLASSES] = 1 + number % TEACHERS
        return votes

    study = _Study(vary(TERMS, records_per_teacher=25))
    study.vector = votes
    totals, voters = study.collect()
    np.testing.assert_array_equal(totals, sum(votes(number) for number in range(PARTIES)))
    assert voters == PARTIES
    study = _Study(vary(TERMS, records_per_teacher=25))
    study.vector = lambda number: votes(number, QUERIES - 1 if number == 3 else QUERIES)
    with pytest.raises(IntegrityError, match="none of honest votes"):
        study.collect()


@pytest.mark.parametrize("taken", [1, 2, 3, 4, 5, 6, 2**15 - 2, 2**15 + 2, 2**16 - 3])
def test_a_hospital_that_lies_learns_nothing_of_the_others_from_an_alarm(taken: int) -> None:
    # Hospital 3 gives to class 0 what it takes from class 1. Whether that total is then below 0 depends on
    # the others; of two runs that differ in one honest vote, neither may stop, nor differ by more than it.
    seen = []
    for chosen in (1, 2):
        study = _Study()

        def vector(number: int, chosen: int = chosen) -> np.ndarray:
            votes = _votes(number)
            if number == 3:
                votes += taken * np.array([1, -1, 0])
            if number == 0:
                votes[:] = 0
                votes[:, 0] = votes[:, chosen] = 1
            return votes

        study.vector = vector
        totals, _ = study.collect()
        assert totals.min() >= 0 and totals.max() <= PARTIES * TEACHERS
        seen.append(totals)
    assert np.abs(seen[0] - seen[1]).max() <= 1


def test_noisy_totals_may_be_anything() -> None:
    study = _Study(vary(TERMS, noise_at="hospitals", sigma_party=2.0, colluders=1))
    study.vector = lambda number: _votes(number) - 40 * number
    totals, voters = study.collect()
    assert voters == PARTIES
    np.testing.assert_array_equal(totals, _sum_of(range(PARTIES)) - 40 * 21)


def _other_name(number: int, step: str, reply: Any) -> Any:
    return replace(reply, party="p1") if number == 3 and step == "sum.mask" else reply


def _flipped(number: int, step: str, reply: Any) -> Any:
    if number != 3 or step != "sum.mask":
        return reply
    return replace(reply, vector=reply.vector ^ np.array(1, dtype=reply.vector.dtype))


@pytest.mark.parametrize(
    ("tamper", "word"), [(_other_name, "another name"), (_flipped, "did not sign its message")]
)
def test_a_changed_reply_is_left_out_by_name(tamper: Tamper, word: str) -> None:
    study = _Study()
    study.tamper = tamper
    totals, voters = study.collect()
    np.testing.assert_array_equal(totals, _sum_of(set(range(PARTIES)) - {3}))
    assert voters == PARTIES - 1
    assert word in study.troubles["p3"]


def test_a_refusal_is_said_in_its_own_words() -> None:
    study = _Study()
    study.tamper = lambda number, step, reply: (
        study.machines[3].refuse(SumRefusal.VERSION) if (number, step) == (3, "sum.open") else reply
    )
    study.collect()
    assert study.troubles["p3"] == f"refused: {SumRefusal.VERSION.value}"


def test_wrong_shares_at_the_end_are_thrown_away_and_enough_others_do() -> None:
    study = _Study()

    def wrong(number: int, step: str, reply: Any) -> Any:
        if number != 0 or step != "sum.unmask":
            return reply
        shares = bytes([reply.shares[0] ^ 1]) + reply.shares[1:]
        return replace(reply, shares=shares).signed(study.machines[0]._identity)

    study.tamper = wrong
    totals, voters = study.collect()
    np.testing.assert_array_equal(totals, _sum_of(range(PARTIES)))
    assert voters == PARTIES
    assert study.troubles == {"p0": "p0 sent shares that are not those it was dealt"}


def _seals_wrongly(*victims: int) -> Tamper:
    """Hospital 3 seals other bytes for some."""

    def tamper(number: int, step: str, reply: Any) -> Any:
        if (number, step) != (3, "sum.open"):
            return reply
        sealed = bytearray(reply.sealed)
        for victim in victims:
            sealed[SEALED_BYTES * victim] ^= 1
        return replace(reply, sealed=bytes(sealed))

    return tamper


def test_who_seals_wrong_shares_is_named_and_the_batch_begins_again_without_it() -> None:
    study = _Study(lies={3: _seals_wrongly(1, 2)})
    totals, voters = study.collect()
    np.testing.assert_array_equal(totals, _sum_of(set(range(PARTIES)) - {3}))
    assert (voters, study.federation.spent, study.federation.open) == (PARTIES - 1, False, False)
    assert set(study.troubles) == {"p3"}
    assert re.fullmatch(r"sealed shares for p[12] that do not open or do not fit", study.troubles["p3"])
    totals, voters = study.collect(1)  # it is asked nothing more
    assert (voters, len(study.troubles)) == (PARTIES - 1, 1)


def test_a_false_accuser_is_named_and_not_whom_it_accuses() -> None:
    def accuse(number: int, step: str, reply: Any) -> Any:
        if (number, step) == (3, "sum.mask"):
            head = {name: getattr(reply, name) for name in ("roster", "batch", "batch_digest", "attempt")}
            study.shown = reply.view
            return ShareDoubt(**head, party="p3", view=reply.view, doubted=2)
        if (number, step) == (3, "sum.evidence"):
            shares = BatchShares.from_bytes(study.asked.message)
            head = {name: getattr(shares, name) for name in ("roster", "batch", "batch_digest", "attempt")}
            key = study.machines[3]._state.sealing.key(2).to_bytes()
            about = shares.digest
            return Complaint(**head, party="p3", view=study.shown, accused="p2", about=about, key=key)
        return reply

    study = _Study(lies={3: accuse})
    totals, voters = study.collect()
    np.testing.assert_array_equal(totals, _sum_of(set(range(PARTIES)) - {3}))
    assert voters == PARTIES - 1
    assert study.troubles == {"p3": "accused p2 of wrong shares, which are right"}


def test_below_the_quorum_the_name_is_told_and_nothing_is_charged() -> None:
    study = _Study(vary(TERMS, least_clients=7), lies={3: _seals_wrongly(1)})
    with pytest.raises(QuorumError, match="6 of 7 hospitals are left without p3; the threshold is 7"):
        study.collect()
    assert set(study.troubles) == {"p3"}
    assert not study.federation.spent and not study.federation.open


@pytest.mark.parametrize("damage", ["empty", "another's", "new name", "cut"])
def test_an_enrolment_that_is_not_its_own_keeps_a_party_out(
    damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = _Study._teach

    def odd(self: _Study, number: int, record: Record) -> Record:
        reply = honest(self, number, record)
        if number == 3:
            enrolment = reply["enrolment"]
            renamed = HospitalSum.enrol(
                Identity.generate(), read_request(record["enrol"]), party="p9", study=self.terms.digest
            )
            reply["enrolment"] = {
                "empty": b"",
                "another's": self.machines[2].enrolment.to_bytes(),
                "new name": renamed.enrolment.to_bytes(),
                "cut": enrolment[:-3],
            }[damage]
        return reply

    monkeypatch.setattr(_Study, "_teach", odd)
    study = _Study()
    assert set(study.troubles) == {"p3"}
    assert study.collect()[1] == PARTIES - 1


def test_what_crosses_is_typed_and_shows_nothing() -> None:
    study = _Study()
    seen: list[str] = []
    study.tamper = lambda number, step, reply: (seen.append(repr(reply)), reply)[1]
    study.collect()
    assert all("..." in text and "array" not in text for text in seen)
    reply = SumReply(party="p0", step=b"secret")
    assert "secret" not in repr(reply)
    with pytest.raises(IntegrityError):
        read_reply(reply.step)
