"""The coordinator of a study of private labels: labels after randomised response, or masked noisy counts.

What comes back is noisy already, so nothing that is kept here need be secret; who fails is left out, and
below the quorum nothing is released. A coordinator that dies asks nobody for a second answer: responses come
again as they were, and of counts see `server.kept_counts`.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from numpy.typing import NDArray

from pate_fed.errors import BudgetError, IntegrityError, PateFedError
from pate_fed.label_dp.release import NO_LABEL, shown_epsilon
from pate_fed.protocol.label_terms import LabelTerms
from pate_fed.protocol.messages import (
    COUNTS,
    LABELS,
    RELEASE,
    EndRequest,
    LabelReply,
    LabelRequest,
    Record,
    RefusalReply,
    VoteRequest,
)
from pate_fed.report import Progress
from pate_fed.runtime.launch import INTERRUPTED
from server.exchange import Answer, Stopped, exchange, patience_for, wait_for_nodes, window_for
from server.kept_counts import KeptCounts
from server.masked import ROUNDS, MaskedRounds
from server.rounds import Member, admit_party, expect, name_of, require_quorum

__all__ = ["Collected", "LabelCoordinator"]

Ints = NDArray[np.int64]

_ANSWER_S = 600.0
_AT_ONCE = 16  # requests under way: each holds the clusters of all public inputs
_NO_CLUSTERS: Ints = np.empty(0, dtype=np.int64)


@dataclass(slots=True)
class Collected:
    """What came of a study: `label` int64 (pool_size,), -1 where nobody answered; or `totals`.

    `totals` are the noisy counts, int64 (clusters, classes), of `hospitals`; `left_out` tells of the others.
    `kept` tells that an earlier process had them summed, and nobody was asked now.
    """

    label: Ints
    totals: Ints | None = None
    hospitals: int = 0
    left_out: list[tuple[str, str]] = field(default_factory=list)
    kept: bool = False


class LabelCoordinator:
    """Asks each hospital once, over one Grid. `clusters` int64 (pool_size,) where counts are asked for.

    `folder` is where a coordinator of counts keeps what another process goes on from; None: nowhere.
    """

    def __init__(
        self,
        terms: LabelTerms,
        *,
        clusters: Ints | None,
        backend: str,
        progress: Progress,
        stop: threading.Event,
        timeout_s: float = _ANSWER_S,
        folder: Path | None = None,
    ) -> None:
        self._terms, self._clusters = terms, _NO_CLUSTERS if clusters is None else clusters
        self._progress, self._stop, self._timeout_s = progress, stop, timeout_s
        self._window, self._patience_s = window_for(backend) or _AT_ONCE, patience_for(backend)
        self._names: Mapping[int, str] | None = None
        self._identities: Mapping[str, bytes] | None = None
        self._masked: MaskedRounds | None = None
        self._kept = None if folder is None or not terms.secure_sum else KeptCounts(folder, terms)
        self._spent = False
        self._found = Collected(label=np.full(terms.pool_size, NO_LABEL, dtype=np.int64))
        self._error: BaseException | None = None
        self._served = False

    @property
    def found(self) -> Collected:
        """What came so far, also of a study that failed."""
        return self._found

    @property
    def spent(self) -> bool:
        """Whether anything about labels may have left a hospital."""
        return self._spent

    @property
    def terms_digest(self) -> str:
        """Names the terms that hospitals are asked to agree to."""
        return self._terms.digest

    @property
    def needs_hospitals(self) -> bool:
        """Whether hospitals will be asked anything: not where one before this had counts, or lost them.

        Raises:
            IntegrityError: what it kept is damaged.
        """
        return self._kept is None or not (self._kept.summed or self._kept.lost)

    def set_admitted(self, names: Mapping[int, str], sum_identities: Mapping[str, bytes]) -> None:
        """Whose key each node has, and who signs secure sums with which; others are left out from then on."""
        self._names, self._identities = names, sum_identities

    def outcome_notice(self) -> EndRequest:
        """How the study ended, for the hospitals, and what they may have spent on it at most."""
        error = self._error
        status, code = "success", 0
        if isinstance(error, Stopped):
            status, code = "aborted", INTERRUPTED
        elif error is not None:
            status, code = "failed", error.exit_code if isinstance(error, PateFedError) else 1
        return EndRequest(status=status, exit_code=code, summary=f"{self._cost()} unit=label")

    def _cost(self) -> str:
        return f"ε={shown_epsilon(self._terms.spent)} δ={self._terms.delta:g}" if self._spent else "ε=0 δ=0"

    def run(self, start: Callable[[ServerApp], None]) -> Collected:
        """Hand the ServerApp to `start`, which returns when its main has; what came.

        Raises:
            QuorumError: too few hospitals answered.
            IntegrityError: what was revealed of the sum does not fit.
            BudgetError: a coordinator before this one lost counts that hospitals give once.
            Stopped: the user asked to stop.
        """
        app = ServerApp()

        @app.main()
        def main(grid: Grid, context: Context) -> None:
            try:
                self._collect(grid)
                self._served = True
            except Exception as error:  # Flower's thread would lose its meaning
                self._error = error

        start(app)
        if self._error is not None:
            raise self._error
        if not self._served:
            raise RuntimeError("Flower's engine ended without running the study")
        return self._found

    def _collect(self, grid: Grid) -> None:
        if not self.needs_hospitals and self._kept is not None:
            self._take_kept(self._kept)
            return
        nodes = wait_for_nodes(
            grid, count=self._terms.num_clients, timeout_s=self._patience_s, stop=self._stop
        )
        if self._terms.secure_sum:
            self._masked = MaskedRounds(
                self._terms,
                expected=self._identities,
                message_type=COUNTS,
                state=None if self._kept is None else self._kept.state,
            )
        members, reasons = dict[int, Member](), Counter[str]()
        request = LabelRequest(
            terms=self._terms.to_json(),
            clusters=self._clusters,
            enrol=b"" if self._masked is None else self._masked.enrol_request,
        )
        self._spent = self._masked is None  # what hospitals send counts, whether or not it is heard
        refused = True
        name = "labels from hospitals" if self._masked is None else "hospitals that take part"
        for answer in self._ask(grid, name, LABELS, dict.fromkeys(nodes, request.to_record())):
            refused &= isinstance(answer.reply, RefusalReply)
            try:
                members[answer.node] = self._take(answer.node, expect(answer, LabelReply), members)
            except IntegrityError as error:
                reasons[str(error)] += 1
                self._leave_out(name_of(answer, {}), str(error))
        self._spent &= not refused
        self._found.hospitals = len(members)
        require_quorum(len(members), self._terms, "answered about their labels", reasons)
        if self._masked is not None:
            self._masked.close()
            self._sum(grid, self._masked, members)

    def _take(self, node: int, reply: LabelReply, members: Mapping[int, Member]) -> Member:
        known = None if self._names is None else self._names.get(node, "nobody")
        admit_party(reply, self._terms, (member.party for member in members.values()), known)
        if self._masked is not None:
            if reply.index.size or reply.label.size:
                raise IntegrityError("sent labels where counts are asked for")
            self._masked.admit(reply)
        else:
            self._take_labels(reply.index, reply.label)
        return Member(reply.party, 0)

    def _take_labels(self, index: Ints, label: Ints) -> None:
        pool, classes, found = self._terms.pool_size, self._terms.num_classes, self._found.label
        if index.ndim != 1 or index.shape != label.shape or not len(index):
            raise IntegrityError("sent labels and places of other numbers")
        if index.min() < 0 or index.max() >= pool or len(np.unique(index)) != len(index):
            raise IntegrityError("sent labels of inputs that there are not, or of one twice")
        if label.min() < 0 or label.max() >= classes:
            raise IntegrityError("sent labels that are no classes")
        if (found[index] != NO_LABEL).any():
            raise IntegrityError("sent labels of inputs that are another hospital's")
        found[index] = label

    def _take_kept(self, kept: KeptCounts) -> None:
        self._spent = True
        if kept.lost:
            raise BudgetError(
                "a coordinator before this one asked hospitals for their counts and ended before their sum "
                f"was there; {self._lost()}"
            )
        self._found.totals, self._found.hospitals = kept.read()
        self._found.kept = True

    def _lost(self) -> str:
        return (
            f"{self._cost()} counts as spent at every hospital that was asked (its own log says whether it "
            "answered), and none of them answers about these labels again"
        )

    def _sum(self, grid: Grid, masked: MaskedRounds, members: Mapping[int, Member]) -> None:
        question = VoteRequest(
            terms_digest=self._terms.digest,
            batch=0 if self._kept is None else self._kept.next_batch,
            purpose=RELEASE,
            index=np.arange(self._terms.num_clusters, dtype=np.int64),
        )
        with self._progress.phase("noisy counts under masks", ROUNDS * len(members)) as bar:

            def ask(message_type: str, sent: Mapping[int, Record]) -> Iterator[Answer]:
                for answer in self._exchange(grid, message_type, sent):
                    bar.advance()
                    yield answer

            try:
                totals, hospitals = masked.collect(members, question, ask=ask, trouble=self._leave_out)
            except (PateFedError, Stopped) as error:
                self._spent = masked.spent
                if masked.spent and isinstance(error, PateFedError):
                    raise type(error)(f"{error}; {self._lost()}") from error
                raise
        self._spent = True
        if self._kept is not None:
            self._kept.keep(totals, hospitals)
        self._found.totals, self._found.hospitals = totals, hospitals

    def _ask(self, grid: Grid, name: str, message_type: str, sent: Mapping[int, Record]) -> Iterator[Answer]:
        with self._progress.phase(name, len(sent)) as bar:
            for answer in self._exchange(grid, message_type, sent):
                bar.advance()
                yield answer

    def _exchange(self, grid: Grid, message_type: str, sent: Mapping[int, Record]) -> Iterator[Answer]:
        return exchange(
            grid,
            sent,
            message_type=message_type,
            timeout_s=self._timeout_s,
            stop=self._stop,
            window=self._window,
        )

    def _leave_out(self, who: str, why: str) -> None:
        self._found.left_out.append((who, why))
