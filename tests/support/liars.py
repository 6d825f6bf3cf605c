"""Liars in a masked sum: one hospital, or the coordinator, whose messages a function may change.

The lies are made from the declared fields of all messages, none picked by hand. The coordinator is the
product's own (`server.masked`), over a grid that is a loop in this process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from builders import make_terms

from pate_fed.errors import IntegrityError, QuorumError
from pate_fed.protocol.messages import Question, SumReply, SumRequest
from pate_fed.secure_sum import Demands, HospitalSum, Identity, RefusedError, SumRefusal, read_request
from pate_fed.secure_sum.messages import (
    BatchShares,
    Complaint,
    MaskedVector,
    ShareDoubt,
    SumRefused,
    SurvivorConsent,
    UnmaskShares,
    sharing_view,
)
from pate_fed.structure import entries
from server.exchange import Answer
from server.masked import MaskedRounds
from server.state import CoordinatorState

QUERIES, CLASSES = 3, 2
HONEST = (BatchShares, MaskedVector, SurvivorConsent, UnmaskShares)
ACCUSING = (ShareDoubt, Complaint)

Change = Callable[[Any], Any]


@dataclass(frozen=True)
class Lie:
    """A change to messages of one kind. `accuses` first doubts somebody; `silent` at that kind and after.

    `signed` by the liar after the change, or left with the signature of what was true.
    """

    what: str
    kind: type
    change: Change
    signed: bool = True
    accuses: bool = False
    silent: type | None = None


@dataclass
class Outcome:
    """What a batch came to: totals of so many voters or the error, who was named, whether it is charged."""

    totals: np.ndarray | None = None
    voters: int = 0
    error: Exception | None = None
    named: dict[str, str] = field(default_factory=dict)
    charged: bool = False
    lied: int = 0
    answers: int = 0
    revealed: Counter[str] = field(default_factory=Counter)


class Died(Exception):
    """The coordinator's process, at that moment."""


class _Kept(CoordinatorState):
    """The keys and the roster of a study that was set up once."""

    def __init__(self, identity: Identity, roster: bytes, private: Path | None = None) -> None:
        super().__init__(private)
        self._held = identity, roster

    def identity(self) -> Identity:
        return self._held[0]

    @property
    def roster(self) -> bytes:
        return self._held[1]


def votes_of(number: int) -> np.ndarray:
    """A hospital's votes: each of a few hospitals has others."""
    votes = np.zeros((QUERIES, CLASSES), dtype=np.int64)
    votes[np.arange(QUERIES), (number + np.arange(QUERIES)) % CLASSES] = 1
    return votes


class LiarStudy:
    """`parties` hospitals that have pinned one roster; each `play` begins from there."""

    def __init__(self, parties: int, quorum: int) -> None:
        self.parties, self.quorum = parties, quorum
        self.names = [f"p{number:02d}" for number in range(parties)]
        self.terms = make_terms(
            num_classes=CLASSES,
            pool_size=20,
            num_clients=parties,
            teachers_per_client=1,
            least_clients=quorum,
            threshold=2.0,
            sigma1=3.0,
            sigma2=0.8,
            labels=5,
            max_queries=5,
            secure_sum=True,
        )
        self.demands = Demands(least_parties=4)
        self.identities = [Identity.generate() for _ in self.names]
        self.coordinator = Identity.generate()
        rounds = MaskedRounds(self.terms, _Kept(self.coordinator, b""))
        request = read_request(rounds.enrol_request)
        machines = [
            HospitalSum.enrol(identity, request, party=name, study=self.terms.digest, demands=self.demands)
            for name, identity in zip(self.names, self.identities, strict=True)
        ]
        for machine in machines:
            rounds._sum.admit(machine.enrolment)
        rounds.close()
        self.roster, self.near = rounds._sum.to_bytes(), rounds._sum.members.graph.size
        for name, machine in zip(self.names, machines, strict=True):
            machine.pin(rounds._sum.pin_request(name))
        self.saved = [(machine.study_state(), machine.progress_state()) for machine in machines]
        self.index = np.arange(QUERIES, dtype=np.int64)
        self.replayed: dict[type, Any] = {}

    def play(
        self,
        liar: int,
        lie: Lie | None,
        *,
        bend: Callable[[int, Any], Any] | None = None,
        private: Path | None = None,
        dies_at: int = 0,
    ) -> Outcome:
        """A batch in which that hospital tells the lie, or whose requests `bend` changes.

        With a `private` folder the coordinator goes on as another process where it dies: after so many
        answers in all.
        """
        outcome = Outcome()
        machines = [
            HospitalSum.restore(identity, study_state=study, progress_state=progress, demands=self.demands)
            for identity, (study, progress) in zip(self.identities, self.saved, strict=True)
        ]
        teller = _Teller(self, liar, machines[liar], lie, outcome)

        def ask(_: str, requests: Mapping[int, Any], take: Callable[[Answer], None]) -> Counter[str]:
            for node, record in requests.items():
                outcome.answers += 1
                step = read_request(SumRequest.from_record(record).step)
                step = step if bend is None else bend(node, step)
                try:
                    honest = node != liar
                    votes = partial(votes_of, node)
                    reply = machines[node].answer(step, votes) if honest else teller.answer(step)
                except (RefusedError, IntegrityError) as error:
                    reason = error.reason if isinstance(error, RefusedError) else SumRefusal.FAULT
                    reply = machines[node].refuse(reason)
                if isinstance(reply, UnmaskShares):
                    outcome.revealed[self.names[node]] += 1
                if reply is None:
                    continue
                try:
                    take(Answer(node, SumReply(party=self.names[node], step=reply.to_bytes())))
                except IntegrityError as error:
                    outcome.named.setdefault(self.names[node], str(error))
                if outcome.answers == dies_at:
                    raise Died
            return Counter()

        question = Question(terms_digest=self.terms.digest, batch=0, index=self.index)
        state = _Kept(self.coordinator, self.roster, private)
        rounds = MaskedRounds(self.terms, state, wrong=outcome.named.setdefault)
        rounds._pinned = set(self.names)
        try:
            try:
                totals = rounds.collect(dict(enumerate(self.names)), question, ask)
            except Died:
                rounds = MaskedRounds(self.terms, state, wrong=outcome.named.setdefault)
                totals = rounds.collect(dict(enumerate(self.names)), question, ask)
        except (QuorumError, IntegrityError) as error:
            outcome.error = error
            outcome.charged = rounds.spent and not rounds.open
        else:
            outcome.totals, outcome.voters = totals.value, totals.voters
        return outcome

    def honest_sum(self, liar: int) -> np.ndarray:
        """What all but the liar say."""
        return np.sum([votes_of(number) for number in range(self.parties) if number != liar], axis=0)

    def field_lies(self) -> Iterator[Lie]:
        """Every declared field of every message of a hospital in a batch, changed in every way."""
        for kind in (*HONEST, *ACCUSING):
            for entry in entries(kind):
                for how in range(_WAYS):
                    for signed in (True, False):
                        if not signed and entry.name == "signature" and how == 0:
                            continue
                        change = _changed(entry.name, how, self.parties)
                        what = f"{kind.kind}.{entry.name} way {how}{' signed' if signed else ''}"
                        yield Lie(what, kind, change, signed, accuses=kind in ACCUSING)

    def part_lies(self) -> Iterator[Lie]:
        """What is for single hospitals, wrong for each of them and for each two."""
        wide = {"sealed": BatchShares, "commitments": BatchShares, "shares": UnmaskShares}
        for name, kind in wide.items():
            for first in range(self.near):
                for second in range(first, self.near):
                    yield Lie(
                        f"{kind.kind}.{name} for {first}, {second}", kind, _parts(name, self, first, second)
                    )

    def other_lies(self) -> Iterator[Lie]:
        """Silence, refusals, and messages of another batch, hospital or kind; and silence after a lie."""
        for kind in HONEST:
            yield Lie(f"silence at {kind.kind}", kind, lambda reply: reply, silent=kind)
            for refusal in SumRefusal:
                yield Lie(f"{refusal.name} at {kind.kind}", kind, _refusing(self, refusal), signed=True)
            for other, message in self.replayed.items():
                for signed in (True, False):
                    yield Lie(
                        f"{other.__name__} replayed at {kind.kind}", kind, lambda _, m=message: m, signed
                    )
        for later in HONEST[1:]:
            for name in ("commitment", "seeds", "sealed", "commitments"):
                change = _changed(name, 1, self.parties)
                yield Lie(
                    f"sum.shares.{name}, then silence at {later.kind}", BatchShares, change, silent=later
                )
        yield Lie("a doubt, then silence", ShareDoubt, lambda reply: reply, accuses=True, silent=Complaint)
        yield Lie("a doubt about right shares", Complaint, lambda reply: reply, accuses=True)


class _Teller:
    """The lying hospital: an honest machine, with what it says changed on the way out."""

    def __init__(
        self, study: LiarStudy, number: int, machine: HospitalSum, lie: Lie | None, outcome: Outcome
    ) -> None:
        self._study, self._number, self._machine, self._lie = study, number, machine, lie
        self._outcome, self._silent = outcome, False
        self._identity, self._view = study.identities[number], b""
        near = machine._state.seat.near
        self._accused = near[(near.index(number) + 1) % len(near)]

    def answer(self, step: Any) -> Any:
        lie = self._lie
        reply = self._accuse(step) if lie is not None and lie.accuses else None
        reply = reply or self._machine.answer(step, lambda: votes_of(self._number))
        if lie is None:
            return reply
        self._silent = self._silent or (lie.silent is not None and isinstance(reply, lie.silent))
        if self._silent:
            self._outcome.lied += 1
            return None
        if not isinstance(reply, lie.kind):
            return reply
        self._outcome.lied += 1
        told = lie.change(reply)
        if lie.signed and not isinstance(told, SurvivorConsent):
            told = told.signed(self._identity)
        if isinstance(told, BatchShares) and step.batch in self._machine._batches:
            self._machine._batches[step.batch].own = told.digest  # it goes on as if this were its own
        return told

    def _accuse(self, step: Any) -> Any:
        """A doubt about somebody whose shares are right, and the complaint that follows."""
        name, party = step.kind, self._study.names[self._number]
        if name == "sum.mask":
            opening = self._machine._batches[step.batch].opening
            self._view = sharing_view(opening, step.sharers, step.dealt)
            doubt = ShareDoubt(**step.head, party=party, view=self._view, doubted=self._accused)
            return doubt.signed(self._identity)
        if name == "sum.evidence":
            seat = self._machine._state.seat
            return Complaint(
                **step.head,
                party=party,
                view=self._view,
                accused=self._study.names[self._accused],
                about=BatchShares.from_bytes(step.message).digest,
                key=self._machine._state.sealing.key(seat.slot(self._accused)).to_bytes(),
            ).signed(self._identity)
        return None


_WAYS = 6


def _changed(name: str, how: int, parties: int) -> Change:
    """A field changed in one of six ways, whatever its type."""
    return lambda message: replace(message, **{name: bent(getattr(message, name), how, parties)})


def bent(value: Any, how: int, parties: int) -> Any:
    """A value changed in one of six ways: at its start, middle, end, as a whole, shorter, longer."""
    if isinstance(value, int):
        return [value ^ 1, value + 1, max(0, value - 1), value ^ (1 << 16), 2**31 - 1, parties][how]
    if isinstance(value, np.ndarray):
        raw = bent(value.tobytes(), how, parties)
        size = value.dtype.itemsize
        return np.frombuffer(raw[: len(raw) // size * size], dtype=value.dtype)
    if isinstance(value, str):
        other = "0" if value[-1:] != "0" else "1"
        return [
            other + value[1:],
            value[:-1] + other,
            value[::-1],
            f"p{parties - 1:02d}",
            value[:-1],
            value + "0",
        ][how]
    if how < 3 and value:
        at = (0, len(value) // 2, len(value) - 1)[how]
        return value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]
    return [b"", b"", b"", bytes(len(value)), value[: len(value) // 2], value + value][how]


def _parts(name: str, study: LiarStudy, *places: int) -> Change:
    def change(message: Any) -> Any:
        value = bytearray(getattr(message, name))
        size = len(value) // study.near
        for place in {*places}:
            if size * place < len(value):
                value[size * place] ^= 1
        return replace(message, **{name: bytes(value)})

    return change


def _refusing(study: LiarStudy, refusal: SumRefusal) -> Change:
    return lambda reply: SumRefused(study=study.terms.digest, party=reply.party, code=refusal.name)
