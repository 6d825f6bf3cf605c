"""The hospitals of one study over one Grid: who takes part, what is asked, what comes back, with receipts.

Whoever answers wrongly or late is left out by name; below the quorum nothing is released.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from flwr.serverapp import Grid

from pate_fed.config.backend import PROCESSES, RAY, cores
from pate_fed.errors import IntegrityError, QuorumError
from pate_fed.format import named, until_text
from pate_fed.kinds.terms import Terms
from pate_fed.protocol import messages as wire
from pate_fed.protocol.heads import Head, Statement, heads_text
from pate_fed.report.log import CONNECT, MOST_NAMED, Waiting
from pate_fed.report.result import LeftOut
from pate_fed.report.terminal import Phase, Progress
from pate_fed.secure_sum import fingerprint
from pate_fed.secure_sum.batch import Made
from pate_fed.structure import PARTY_NAME, PARTY_NAME_IS
from server.exchange import AGAIN_S, Answer, Presence, Returning, exchange, printable_name, wait_for_nodes
from server.masked import ROUNDS, Ask, MaskedRounds
from server.outcome import Receipts
from server.state import CoordinatorState, Totals

_WINDOW_PER_CORE = 12  # messages under way at once on Ray; see `exchange`
_CONNECT_S = 120.0  # until all simulated parties are there
_TELL_EVERY_S = 2.0
_SHOW_AFTER_S = 20.0  # whoever looks at the screen knows within half a minute who is waited for
_SHOW_AGAIN_S = 300.0


@dataclass(frozen=True, slots=True)
class AdmittedKeys:
    """Whose key each node has, and who signs secure sums with which; both grow while hospitals connect.

    `receipts` are told of all that comes from them.
    """

    names: Mapping[int, str]
    sum_identities: Mapping[str, bytes]
    receipts: Receipts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """How messages go over a Grid of this backend, until the user says `stop`.

    Each has `answer_s` seconds to be answered. `window` bounds those under way at once where the backend does
    not; None: all. A `cluster` bounds them itself.
    """

    grid: Grid
    backend: str
    stop: threading.Event
    progress: Progress
    answer_s: float
    window: int | None = None
    cluster: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """How hospitals are asked to take part in a study, and have `answer_s` seconds to say yes.

    `again` gives the request with which a hospital that refused is asked once more, or None. `phase` and
    `task` are what this is called in the log and on the terminal, `done` what those did who are in.
    """

    request: wire.Record
    again: Callable[[wire.RefusalReply], wire.Record | None] = lambda refusal: None
    answer_s: float
    phase: str
    task: str
    done: str


class Federation:
    """Admits the study's hospitals, asks them, and sums what they answer.

    `left_out` is told who is not counted, `waiting` now and then who has not answered yet. `participants` are
    names by the nodes that they were first.
    """

    def __init__(
        self,
        terms: Terms,
        channel: Channel,
        state: CoordinatorState,
        *,
        keys: AdmittedKeys | None,
        left_out: Callable[[LeftOut], None],
        waiting: Callable[[Waiting], None] = lambda event: None,
    ) -> None:
        self._terms, self._channel, self._state = terms, channel, state
        self._keys, self._left_out, self._waiting = keys, left_out, waiting
        self._masked: MaskedRounds | None = None
        if terms.secure_sum:
            expected = None if keys is None else keys.sum_identities
            self._masked = MaskedRounds(
                terms,
                state,
                expected=expected,
                wrong=lambda party, reason: left_out(LeftOut(party=party, phase="vote", reason=reason)),
            )
        self._stated = state.statements()
        self._presence = Presence(channel.grid, admitted=None if keys is None else keys.names.__contains__)
        self.participants: dict[int, str] = {}
        self._names: set[str] = set()
        self._asked: set[int] = set()

    def _with_statements(
        self, message_type: str, requests: Mapping[int, wire.Record]
    ) -> Mapping[int, wire.Record]:
        """The same, each with the newest statement of the hospital that it goes to when it is sent."""

        def stated(node: int) -> wire.Record:
            newest = self._newest_of(self.participants.get(node, ""))
            return requests[node] | ({} if newest is None else {"statement": newest.to_bytes()})

        return requests if message_type == wire.JOIN else Made(requests, stated)

    def _newest_of(self, party: str) -> Statement | None:
        """A hospital's newest statement, unless it is of a key that the name had before."""
        stated = self._stated.get(party)
        known = None if self._keys is None else self._keys.sum_identities.get(party)
        if stated is None or known is None:
            return stated
        its_own = stated.signed_by(known, party=party, terms_digest=self._terms.digest)
        return stated if its_own else None

    @property
    def enrol_request(self) -> bytes:
        """What every hospital gets with the terms where its vectors will be masked; else empty."""
        return b"" if self._masked is None else self._masked.enrol_request

    @property
    def admitted(self) -> str:
        """All that are admitted with their fingerprints, as a `JoinRequest` has them; empty without masks."""
        known = {} if self._keys is None or self._masked is None else self._keys.sum_identities
        return "\n".join(f"{name}={fingerprint(key)}" for name, key in sorted(known.items()))

    @property
    def spent(self) -> bool:
        """Whether hospitals were asked for masked vectors whose sum did not come."""
        return self._masked is not None and self._masked.spent

    @property
    def open(self) -> bool:
        """Whether a masked sum was begun and failed, and comes if its hospitals come back."""
        return self._masked is not None and self._masked.open

    def admit(self, invitation: Invitation) -> None:
        """Invite all hospitals, and fix who takes part in the study.

        Raises:
            QuorumError: fewer than `terms.least_clients` are ready.
            Stopped: the user asked to stop.
        """
        channel, count, reasons = self._channel, self._terms.num_clients, Counter[str]()
        with channel.progress.phase(invitation.task, count) as bar:
            wait_s = 0.0 if channel.backend == PROCESSES else _CONNECT_S  # --wait was for separate hospitals
            nodes = wait_for_nodes(channel.grid, count=count, timeout_s=wait_s, stop=channel.stop)
            requests = dict.fromkeys(nodes, invitation.request)
            while requests:
                self._asked |= requests.keys()
                repeated: dict[int, wire.Record] = {}
                reasons += self._ask(
                    wire.JOIN,
                    requests,
                    partial(self._take_in, invitation, bar, requests, repeated),
                    phase=invitation.phase,
                    answer_s=invitation.answer_s,
                )
                # Without keys a hospital that was started again comes back as another node.
                new = [node for node in channel.grid.get_node_ids() if node not in self._asked]
                requests = repeated or dict.fromkeys(new, invitation.request)
            self._tell_absent()
            self._require_quorum(len(self.participants), invitation.done, reasons)
            if self._masked is not None:
                self._masked.close()

    def _tell_absent(self) -> None:
        """Who was admitted by name and never came."""
        absent = {} if self._keys is None else dict(self._keys.names)
        for name in sorted(name for node, name in absent.items() if node not in self._asked):
            self._left_out(LeftOut(party=name, phase=CONNECT, reason="did not connect in time"))

    def _take_in(
        self,
        invitation: Invitation,
        bar: Phase,
        requests: Mapping[int, wire.Record],
        repeated: dict[int, wire.Record],
        answer: Answer,
    ) -> None:
        """Take one reply to `requests`; a refusal that is asked once more goes on `repeated` instead."""
        if isinstance(answer.reply, wire.RefusalReply):
            second = invitation.again(answer.reply)
            if second is not None and requests[answer.node] is invitation.request:
                repeated[answer.node] = second
                return
        bar.advance()
        reply = answer.require(wire.JoinReply)
        self._check_sender(answer.node, reply)
        if self._masked is not None:
            self._masked.admit(reply)
        self.participants[answer.node] = reply.party
        self._names.add(reply.party)

    def _check_sender(self, node: int, reply: wire.JoinReply) -> None:
        """Refuse whoever is none of the study's hospitals."""
        terms, present = self._terms, self._names
        owner = reply.party if self._keys is None else self._keys.names.get(node, "nobody")
        if not PARTY_NAME.fullmatch(reply.party):
            raise IntegrityError(f"has a name that is not {PARTY_NAME_IS}")
        if reply.party != owner:
            raise IntegrityError(f"answered under the name of {reply.party}, but with the key of {owner}")
        if reply.party in present:
            raise IntegrityError(f"another party is already called {reply.party}")
        if len(present) == terms.num_clients:
            raise IntegrityError(f"the study has its {terms.num_clients} parties already")
        if reply.terms_digest != terms.digest:
            raise IntegrityError("agreed to other terms")

    def follow_restarts(self, request: wire.Record) -> None:
        """From now on a hospital without a key may come back as another node, once it agrees to `request`."""
        self._presence.returning = Returning(self._channel.grid, self.participants, request)

    def heads(self, ledger: Mapping[str, Head]) -> str:
        """For the next question: the ledger and, under masks, how far each hospital is by its own word.

        In the open nobody signs with the others what it was shown.
        """
        stated = self._stated if self._masked is not None else {}
        return heads_text({**ledger, **{party: each.head for party, each in stated.items()}})

    def collect(self, question: wire.Question, *, task: str) -> Totals:
        """Ask all participants one question and sum their answers, under masks where the terms say so.

        Raises:
            QuorumError: too few answered; nothing may be released.
            IntegrityError: what was revealed of a masked sum does not fit.
            Stopped: the user asked to stop.
        """
        rounds = 1 if self._masked is None else ROUNDS
        with self._channel.progress.phase(task, rounds * len(self.participants)) as bar:

            def ask(
                message_type: str, requests: Mapping[int, wire.Record], take: Callable[[Answer], None]
            ) -> Counter[str]:
                def counted(answer: Answer) -> None:
                    bar.advance()
                    take(answer)

                answer_s = self._channel.answer_s
                return self._ask(message_type, requests, counted, phase="vote", answer_s=answer_s)

            if self._masked is not None:
                return self._masked.collect(self.participants, question, ask)
            return self._collect_plain(question, ask)

    def _collect_plain(self, question: wire.Question, ask: Ask) -> Totals:
        """Answers without masks: kept until the charge, so that nobody is asked for one a second time."""
        bounds = self._terms.bounds
        total = np.zeros((len(question.index), bounds.columns), dtype=np.int64)
        self._state.begin_batch(question, asked=True)
        voters, given = set[str](), dict[str, wire.Packed]()

        def count(party: str, votes: wire.Packed) -> None:
            bounds.add(total, votes)
            voters.add(party)
            if self._keys is not None:
                given[party] = votes  # it may be revoked while the others are still asked

        for party, votes in self._state.answers().items():
            if not self._is_revoked(party):
                bounds.check(votes, rows=len(total))
                count(party, votes)

        def take(answer: Answer) -> None:
            reply, party = answer.require(wire.AnswerReply), self.participants[answer.node]
            if reply.party != party:
                raise IntegrityError(f"answered under the name of {printable_name(reply.party)}")
            if reply.batch_digest != question.digest:
                raise IntegrityError("answered another batch")
            bounds.check(reply.answer, rows=len(total))
            self._state.keep_answer(party, reply.answer)
            count(party, reply.answer)

        asked = [node for node, party in self.participants.items() if party not in voters]
        reasons = ask(wire.ANSWER, dict.fromkeys(asked, self._signed(question).to_record()), take)
        for party, votes in given.items():
            if self._is_revoked(party):
                bounds.add(total, votes, -1)
                voters.remove(party)
        self._require_quorum(len(voters), "answered the batch", reasons)
        return Totals(question.index, total, len(voters))

    def _is_revoked(self, party: str) -> bool:
        return self._keys is not None and party not in tuple(self._keys.names.values())

    def _signed(self, question: wire.Question) -> wire.Question:
        """The question under this run's key, by which hospitals know it if it is asked again."""
        run = self._state.identity()
        return replace(question, coordinator=run.public, signature=run.sign(bytes.fromhex(question.digest)))

    def _ask(
        self,
        message_type: str,
        requests: Mapping[int, wire.Record],
        take: Callable[[Answer], None],
        *,
        phase: str,
        answer_s: float,
    ) -> Counter[str]:
        """Send, and take each answer; whose is missing or wrong is left out. The reasons, counted."""
        channel, reasons = self._channel, Counter[str]()
        ray = channel.backend == RAY and not channel.cluster
        requests = self._with_statements(message_type, requests)
        missing, told, told_at = set(requests), -1, -_TELL_EVERY_S
        shown, shown_at = frozenset[tuple[int, bool]](), time.monotonic()
        end = shown_at + answer_s - self._presence.stood_s

        def tell() -> None:
            nonlocal told, told_at, shown, shown_at
            now = time.monotonic()
            if missing and len(missing) != told and now - told_at >= _TELL_EVERY_S:
                told, told_at = len(missing), now
                self._tell_waiting(phase, requests, missing, answer_s)
            if missing and channel.backend == PROCESSES and now - shown_at >= _SHOW_AFTER_S:
                news = frozenset((node, self._presence.waits(node) is None) for node in missing)
                if news != shown or now - shown_at >= _SHOW_AGAIN_S:
                    shown, shown_at = news, now
                    until, names = until_text(end + self._presence.stood_s - now), self._waiting_text(missing)
                    channel.progress.log(f"waiting for {names} ({phase}), until {until} at the latest")

        tell()
        for answer in exchange(
            channel.grid,
            requests,
            message_type=message_type,
            timeout_s=answer_s,
            stop=channel.stop,
            window=_WINDOW_PER_CORE * cores() if ray else channel.window,
            presence=self._presence,
            again_s=AGAIN_S if channel.backend == PROCESSES else 0.0,
            idle=tell,
        ):
            self._note_received(answer)
            missing.discard(answer.node)
            tell()
            try:
                self._hear_statement(answer)
                take(answer)
            except IntegrityError as error:
                reasons[str(error)] += 1
                party = self._known().get(answer.node, answer.sender)
                self._left_out(LeftOut(party=party, phase=phase, reason=str(error)))
        return reasons

    def _hear_statement(self, answer: Answer) -> None:
        """Keep how far a hospital is by its own word, before its answer counts."""
        reply, party = answer.reply, self.participants.get(answer.node)
        if party is None or not isinstance(reply, wire.AnswerReply | wire.SumReply):
            return
        last = self._newest_of(party)
        if not reply.statement and (last is None or isinstance(reply, wire.SumReply)):
            return  # a simulated hospital's, or a refusal of a step
        stated = Statement.read(reply.statement)
        known = None if self._keys is None else self._keys.sum_identities.get(party)
        if known and not stated.signed_by(known, party=party, terms_digest=self._terms.digest):
            raise IntegrityError("did not sign how many answers it has given")
        if last is not None and stated.head.count <= last.head.count and stated.head != last.head:
            raise IntegrityError("answers from an old copy of its state directory: a backup was put back")
        self._state.keep_statement(party, stated)
        self._stated[party] = stated

    def _known(self) -> Mapping[int, str]:
        """Names by nodes: of those that take part, and of the admitted hospitals."""
        return self.participants if self._keys is None else {**dict(self._keys.names), **self.participants}

    def _waiting_text(self, missing: set[int]) -> str:
        """Who is waited for, by name where they are few; of who is out of reach or unable, until when."""
        known, texts = self._known(), list[str]()
        for node in missing:
            less = self._presence.waits(node)
            why = "" if less is None else f" ({less[0]}, until {until_text(less[1])})"
            texts.append(known.get(node, f"node {node}") + why)
        return named(sorted(texts))

    def _tell_waiting(
        self, phase: str, requests: Mapping[int, wire.Record], missing: set[int], answer_s: float
    ) -> None:
        """Who has not answered yet: by name where they are few and their names are known."""
        known = self._known()
        few = missing if len(missing) <= MOST_NAMED else ()
        self._waiting(
            Waiting(
                phase=phase,
                asked=len(requests),
                answered=len(requests) - len(missing),
                missing=tuple(sorted(known[node] for node in few if node in known)),
                patience_s=answer_s,
            )
        )

    def _note_received(self, answer: Answer) -> None:
        """Tell the receipts, whatever becomes of the reply."""
        keys = self._keys
        if keys is None or keys.receipts is None or answer.reply is None or answer.node not in keys.names:
            return
        keys.receipts.took(keys.names[answer.node], answer.reply)

    def _require_quorum(self, count: int, what: str, reasons: Counter[str]) -> None:
        """Go on only with as many hospitals as the terms say; `reasons` are why the others are out."""
        terms = self._terms
        if count < terms.least_clients:
            common = "".join(
                f" ({number} {'party' if number == 1 else 'parties'}: {reason})"
                for reason, number in reasons.most_common(1)
            )
            raise QuorumError(
                f"{count} of {terms.num_clients} parties {what}; the quorum is {terms.least_clients}, so "
                f"nothing more is released{common}"
            )
