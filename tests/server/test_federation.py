"""The hospitals of a study: what is wrong is left out by name, and the quorum decides."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import make_terms

from pate_fed.flower import prepare_environment

prepare_environment()

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from pate_fed.errors import QuorumError
from pate_fed.flower.inline import InlineGrid
from pate_fed.flower.records import from_flower, to_flower
from pate_fed.kinds.terms import Terms
from pate_fed.protocol.heads import LEDGER, Head, Statement, read_heads
from pate_fed.protocol.messages import AnswerReply, JoinReply, JoinRequest, Question, Record
from pate_fed.report.log import Waiting
from pate_fed.report.result import LeftOut
from pate_fed.secure_sum import Identity
from server import federation
from server.federation import AdmittedKeys, Channel, Federation, Invitation
from server.state import CoordinatorState, Totals

PARTIES, CLASSES, QUERIES = 5, 3, 4
TERMS = make_terms(
    num_classes=CLASSES, pool_size=10, num_clients=PARTIES, least_clients=4, labels=10, max_queries=10
)
QUESTION = Question(terms_digest=TERMS.digest, batch=0, index=np.arange(QUERIES, dtype=np.int64))
Script = Callable[[int, Record], Record]


def _honest(number: int, record: Record) -> Record:
    if record["kind"] == "join":
        return JoinReply(party=f"p{number}", terms_digest=TERMS.digest).to_record()
    votes = np.full(QUERIES, number % CLASSES, dtype=np.uint8)
    request = Question.from_record(record)
    return AnswerReply(party=f"p{number}", batch_digest=request.digest, answer=votes).to_record()


def _grid(script: Script, damage: Mapping[int, dict[str, object]]) -> InlineGrid:
    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        number = int(context.node_config["partition-id"])
        content = to_flower(script(number, from_flower(message.content)))
        if number in damage:
            vars(content.array_records["arrays"]["answer"]).update(damage[number])
        return Message(content, reply_to=message)

    app.train("join")(answer)
    app.query("answer")(answer)
    return InlineGrid(app, num_nodes=PARTIES)


def _one_odd(change: Callable[[Record], Record]) -> Script:
    return lambda number, record: change(_honest(number, record)) if number == 3 else _honest(number, record)


class _Run:
    """A federation of the scripted parties; it is its own progress, which counts."""

    def __init__(
        self,
        script: Script,
        terms: Terms = TERMS,
        *,
        damage: Mapping[int, dict[str, object]] | None = None,
        keyed: bool = False,
        identities: Sequence[Identity] = (),
        state: CoordinatorState | None = None,
        backend: str = "inline",
    ) -> None:
        self.waiting, self.shown = list[Waiting](), list[str]()
        self.log = self.shown.append
        self.grid, self.left_out, self.arrived = _grid(script, damage or {}), list[LeftOut](), 0
        channel = Channel(
            grid=self.grid,
            stop=threading.Event(),
            progress=self,  # type: ignore[arg-type]
            backend=backend,
            answer_s=5,
            window=2,
        )
        self.names = {node: f"p{number}" for number, node in enumerate(self.grid.get_node_ids())}
        known = {f"p{number}": identity.public for number, identity in enumerate(identities)}
        keys = AdmittedKeys(self.names, known) if keyed or known else None
        self.federation = Federation(
            terms,
            channel,
            state or CoordinatorState(None),
            keys=keys,
            left_out=self.left_out.append,
            waiting=self.waiting.append,
        )

    @contextmanager
    def phase(self, name: str, total: int) -> Iterator[_Run]:
        yield self

    def advance(self) -> None:
        self.arrived += 1

    def admit(self) -> list[str]:
        self.federation.admit(
            Invitation(
                request=JoinRequest(terms="{}").to_record(),
                answer_s=5,
                phase="teach",
                task="teaching",
                done="trained their teachers",
            )
        )
        return sorted(self.federation.participants.values())

    def collect(self, question: Question = QUESTION) -> Totals:
        nodes = enumerate(self.grid.get_node_ids())
        self.federation.participants = {node: f"p{number}" for number, node in nodes}
        return self.federation.collect(question, task="voting")

    def vote(self) -> np.ndarray:
        totals = self.collect()
        self.voters = totals.voters
        return totals.value


def test_honest_parties_are_all_counted() -> None:
    run = _Run(_honest)
    assert run.admit() == [f"p{i}" for i in range(PARTIES)]
    np.testing.assert_array_equal(run.vote(), np.tile([2, 2, 1], (QUERIES, 1)))
    assert run.left_out == []
    assert run.arrived == 2 * PARTIES
    assert run.voters == PARTIES


def test_who_has_not_answered_yet_is_told_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(federation, "_TELL_EVERY_S", 0.0)
    run = _Run(_honest, keyed=True)
    run.admit()
    teach = [each for each in run.waiting if each.phase == "teach"]
    assert [each.answered for each in teach] == list(range(PARTIES))
    assert [len(each.missing) for each in teach] == list(range(PARTIES, 0, -1))
    assert set(teach[0].missing) == {f"p{number}" for number in range(PARTIES)}
    assert (teach[0].asked, teach[0].patience_s) == (PARTIES, 5)


def test_who_alone_is_late_is_told_while_nothing_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """All others answer before the first news are due."""
    monkeypatch.setattr(federation, "_TELL_EVERY_S", 0.15)
    run = _Run(_honest, keyed=True)
    pull, late, held = run.grid.pull_messages, run.grid.get_node_ids()[3], list[Message]()
    looks = iter(range(9))

    def hold(ids: Sequence[str]) -> list[Message]:
        found = list(pull(ids)) + held
        held[:] = [each for each in found if each.metadata.src_node_id == late and next(looks, 9) < 7]
        return [each for each in found if each not in held]

    monkeypatch.setattr(run.grid, "pull_messages", hold)
    assert len(run.admit()) == PARTIES
    assert [(each.answered, each.missing) for each in run.waiting][1:] == [(PARTIES - 1, ("p3",))]


def test_who_was_admitted_and_never_came_is_left_out_by_name() -> None:
    run = _Run(_honest, keyed=True)
    run.names[99] = "absent"
    run.admit()
    assert run.left_out == [LeftOut(party="absent", phase="connect", reason="did not connect in time")]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda r: {**r, "answer": r["answer"].astype(np.float64)}, "not readable"),
        (lambda r: {**r, "answer": r["answer"][:-1]}, "shape"),
        (lambda r: {**r, "answer": r["answer"] + np.uint8(CLASSES)}, "for no class"),
        (lambda r: {**r, "answer": r["answer"].astype(np.int64)}, "int64, not uint8"),
        (lambda r: {**r, "answer": np.eye(CLASSES, dtype=np.uint8)[r["answer"]]}, "shape"),
        (lambda r: {**r, "answer": r["answer"].astype(np.int32)}, "not readable"),
        (lambda r: {**r, "batch_digest": "0" * 64}, "another batch"),
        (lambda r: {**r, "party": "p1"}, "under the name of p1"),
        (lambda r: {"kind": "refused", "party": "p3", "code": "REPEATED"}, "answered before"),
        (lambda r: {"kind": "refused", "party": "p3", "code": "secret text"}, "fault at the hospital"),
        (lambda r: {**r, "extra": 1}, "malformed"),
        (
            lambda r: JoinReply(party="p3", terms_digest="").to_record(),
            "another request",
        ),
        (lambda r: 1 / 0, "did not answer"),
    ],
)
def test_a_bad_vote_is_left_out_by_name(change: Callable[[Record], Record], word: str) -> None:
    run = _Run(_one_odd(change))
    totals = run.vote()
    np.testing.assert_array_equal(totals.sum(axis=1), PARTIES - 1)
    [found] = run.left_out
    assert (found.party, found.phase) == ("p3", "vote")
    assert word in found.reason


@pytest.mark.parametrize("damage", [{"data": b"garbage"}, {"data": b""}, {"stype": "x"}])
def test_an_array_that_cannot_be_read_costs_its_sender_alone(damage: dict[str, object]) -> None:
    run = _Run(_honest, damage={3: damage})
    np.testing.assert_array_equal(run.vote().sum(axis=1), PARTIES - 1)
    [found] = run.left_out
    assert (found.party, found.phase) == ("p3", "vote")
    assert "malformed" in found.reason


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda r: {**r, "party": "p1"}, "already called p1"),
        (lambda r: {**r, "party": "../etc"}, "name that is not"),
        (lambda r: {**r, "terms_digest": "0" * 64}, "other terms"),
        (lambda r: {"kind": "refused", "party": "p3", "code": "POOL"}, "public pool"),
    ],
)
def test_a_bad_agreement_is_left_out(change: Callable[[Record], Record], word: str) -> None:
    run = _Run(_one_odd(change))
    assert len(run.admit()) == PARTIES - 1
    assert run.left_out[0].phase == "teach" and word in run.left_out[0].reason


def test_below_the_quorum_nothing_is_returned() -> None:
    def refuse(number: int, record: Record) -> Record:
        if number < 2:
            return {"kind": "refused", "party": f"p{number}", "code": "POLICY"}
        return _honest(number, record)

    with pytest.raises(QuorumError, match="3 of 5 parties"):
        _Run(refuse).admit()
    with pytest.raises(QuorumError, match=r"quorum is 4, .* \(2 parties: refused by the hospital's"):
        _Run(refuse).vote()


def test_a_party_too_many_is_left_out() -> None:
    few = replace(TERMS, num_clients=PARTIES - 1)
    run = _Run(lambda number, record: {**_honest(number, record), "terms_digest": few.digest}, few)
    assert len(run.admit()) == PARTIES - 1
    assert "has its 4 parties already" in run.left_out[0].reason


@pytest.mark.parametrize("number", [0, 3])
def test_the_votes_of_who_is_revoked_count_nowhere_however_late(number: int) -> None:
    """It answered before it was revoked, or is revoked before it answers; the others are still asked."""

    def script(party: int, record: Record) -> Record:
        if party == 2 and record["kind"] != "join":
            for node in [node for node, name in run.names.items() if name == f"p{number}"]:
                del run.names[node]
        return _honest(party, record)

    run = _Run(script, keyed=True)
    everybody = np.tile([2, 2, 1], (QUERIES, 1))
    everybody[:, number % CLASSES] -= 1
    np.testing.assert_array_equal(run.vote(), everybody)
    assert run.voters == PARTIES - 1
    assert [(out.party, out.reason) for out in run.left_out] in ([], [(f"p{number}", "is revoked")])


def _stated(number: int, count: int, value: bytes = b"h" * 32) -> Callable[[Record], Record]:
    identity, party = IDENTITIES[number], f"p{number}"
    signed = Statement(head=Head(count, value)).signed(identity, party=party, terms_digest=TERMS.digest)
    return lambda record: record if record["kind"] == "join" else {**record, "statement": signed.to_bytes()}


IDENTITIES = [Identity.generate() for _ in range(PARTIES)]


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (_stated(3, 1), "old copy"),
        (_stated(3, 2, b"x" * 32), "old copy"),
        (_stated(2, 9), "did not sign"),
        (lambda record: record, "another length"),
        (_stated(3, 3), None),
    ],
)
def test_a_hospital_that_was_put_back_is_left_out_by_name(
    second: Callable[[Record], Record], reason: str | None, tmp_path: Path
) -> None:
    state, asked = CoordinatorState(tmp_path / "private"), list[Any]()

    def script(number: int, record: Record) -> Record:
        reply = _honest(number, record)
        if number != 3 or record["kind"] == "join":
            return reply
        asked.append(record["statement"])
        return _stated(3, 2)(reply) if len(asked) == 1 else second(reply)

    run = _Run(script, identities=IDENTITIES, state=state)
    run.collect(QUESTION)
    assert run.left_out == []
    again = _Run(script, identities=IDENTITIES, state=state)  # another process of the coordinator
    heads = again.federation.heads({LEDGER: Head(4, bytes(32))})
    assert {name: head.count for name, head in read_heads(heads).items()} == {LEDGER: 4}  # no masks
    totals = again.collect(replace(QUESTION, batch=1, heads=heads))
    assert Statement.read(asked[1]).head.count == 2  # shown its own word
    assert totals.voters == PARTIES - (reason is not None)
    if reason is not None:
        assert [out.party for out in again.left_out] == ["p3"] and reason in again.left_out[0].reason


def test_a_name_that_was_admitted_with_another_key_begins_anew(tmp_path: Path) -> None:
    state, asked = CoordinatorState(tmp_path / "private"), list[Any]()
    renewed = [*IDENTITIES[:3], Identity.generate(), IDENTITIES[4]]

    def script(number: int, record: Record) -> Record:
        reply = _honest(number, record)
        if number != 3 or record["kind"] == "join":
            return reply
        asked.append(record["statement"])
        if len(asked) == 1:
            return _stated(3, 7)(reply)
        head = Statement(head=Head(1, b"n" * 32)).signed(renewed[3], party="p3", terms_digest=TERMS.digest)
        return {**reply, "statement": head.to_bytes()}

    _Run(script, identities=IDENTITIES, state=state).collect(QUESTION)
    again = _Run(script, identities=renewed, state=state)
    assert again.collect(replace(QUESTION, batch=1)).voters == PARTIES
    assert asked == [b"", b""] and again.left_out == []


@pytest.mark.parametrize("backend", ["grpc", "inline"])
def test_the_screen_says_who_is_waited_for_and_until_when(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every phase; of simulated parties nobody needs to know."""
    monkeypatch.setattr(federation, "_SHOW_AFTER_S", 0.0)
    monkeypatch.setattr(federation, "until_text", lambda seconds: f"in {seconds:.0f} s")
    less = {"p1": ("out of reach", 70.0), "p2": ("cannot do it now", 80.0)}
    monkeypatch.setattr(federation.Presence, "waits", lambda self, node: less.get(run.names[node]))
    run = _Run(_honest, backend=backend, keyed=True)
    run.admit()
    run.collect()
    first = "p0, p1 (out of reach, until in 70 s), p2 (cannot do it now, until in 80 s), p3, p4"
    expected = [f"waiting for {first} ({phase}), until in 5 s at the latest" for phase in ("teach", "vote")]
    shown = [text for text in run.shown if text.startswith(f"waiting for {first} ")]
    assert shown == (expected if backend == "grpc" else [])


def test_the_same_is_not_said_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(federation, "_SHOW_AFTER_S", 0.0)
    run = _Run(_honest, backend="grpc")
    run.admit()
    told = [text.split(" (teach)")[0] for text in run.shown]
    assert len(told) == len(set(told)) <= PARTIES
