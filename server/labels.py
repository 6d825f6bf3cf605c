"""The coordinator of a study of private labels: labels after randomised response, or masked noisy counts.

What comes back is noisy already, so nothing that is kept here need be secret; who fails is left out, and
below the quorum nothing is released. A coordinator that dies asks nobody for a second answer. Responses come
again as they were. Counts go on from the very step of their sum at which it died; if that sum fails once they
were asked for, they are lost and ε counts as spent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from flwr.serverapp import Grid, ServerApp
from numpy.typing import NDArray

from pate_fed.errors import BudgetError, IntegrityError, PateFedError
from pate_fed.format import delta_text, epsilon_text
from pate_fed.kinds.label_dp.release import NO_LABEL
from pate_fed.kinds.labels import LabelTerms
from pate_fed.protocol.messages import COUNTS, LABELS, LabelReply, LabelRequest, Question
from pate_fed.report.log import Waiting
from pate_fed.report.result import LeftOut
from pate_fed.report.terminal import Progress
from pate_fed.structure.faults import Fault
from server.base import STAYS_OPEN, BaseCoordinator
from server.federation import Channel, Federation, Invitation
from server.state import CoordinatorState, Totals

Ints = NDArray[np.int64]

_ANSWER_S = 600.0
_AT_ONCE = 16  # requests under way: each holds the clusters of all public inputs
_NO_CLUSTERS: Ints = np.empty(0, dtype=np.int64)


@dataclass(slots=True)
class Collected:
    """What came of a study: `label` int64 (pool_size,), -1 where nobody answered; or `totals`.

    `totals` are the noisy counts, int64 (clusters, classes), of `hospitals`; `left_out` tells of the others.
    `restored` tells that an earlier process had them summed, and nobody was asked now.
    """

    label: Ints
    totals: Ints | None = None
    hospitals: int = 0
    left_out: list[tuple[str, str]] = field(default_factory=list)
    restored: bool = False


class LabelCoordinator(BaseCoordinator):
    """Asks each hospital once, over one Grid. `clusters` int64 (pool_size,) where counts are asked for.

    `folder` is where a coordinator of counts keeps what another process goes on from; None: nowhere.
    `waiting` is told now and then who has not answered yet, `fault` what went wrong at simulated hospitals.
    """

    def __init__(
        self,
        terms: LabelTerms,
        *,
        clusters: Ints | None,
        backend: str,
        progress: Progress,
        stop: threading.Event,
        folder: Path | None = None,
        waiting: Callable[[Waiting], None] = lambda event: None,
        fault: Callable[[Fault], Path | None] = lambda event: None,
    ) -> None:
        super().__init__(terms, stop, private=folder)
        self._waiting, self._fault = waiting, fault
        self._terms, self._clusters = terms, _NO_CLUSTERS if clusters is None else clusters
        self._progress, self._backend = progress, backend
        own = None if folder is None or not terms.secure_sum else folder / terms.digest[:16]
        self._state = CoordinatorState(own)
        self._federation: Federation | None = None
        self._left_open = False
        last = self._state.last_batch
        self._asked_before = last is not None and last.asked
        self._places: dict[str, Ints] = {}  # of whose inputs each hospital sent labels
        self._found = Collected(label=np.full(terms.pool_size, NO_LABEL, dtype=np.int64))

    @property
    def found(self) -> Collected:
        """What came so far, also of a study that failed."""
        return self._found

    @property
    def spent(self) -> bool:
        """Whether anything about labels may have left a hospital."""
        if self._asked_before or self._found.totals is not None:
            return True
        if self._federation is None:
            return False
        # What hospitals send counts, whether or not it is heard.
        return self._federation.spent if self._terms.secure_sum else self._federation.may_have_answered

    @property
    def left_open(self) -> bool:
        """Whether the sum of counts failed, and the same command goes on with it."""
        return self._left_open

    @property
    def needs_hospitals(self) -> bool:
        """Whether hospitals will be asked anything: not where one before this had counts, or lost them.

        Raises:
            IntegrityError: what it kept is damaged.
        """
        last = self._state.last_batch
        return self._saved_sum() is None and not (last is not None and last.void)

    def note_waiting(self, event: Waiting) -> None:
        """Tell which hospitals are waited for."""
        self._waiting(event)

    def _note_fault(self, fault: Fault) -> Path | None:
        return self._fault(fault)

    def _summary(self) -> str:
        return f"{self._cost()} unit=label"

    def _cost(self) -> str:
        return (
            f"ε={epsilon_text(self._terms.spent)} δ={delta_text(self._terms.delta)}"
            if self.spent
            else "ε=0 δ=0"
        )

    def run(self, start: Callable[[ServerApp], None]) -> Collected:
        """Hand the ServerApp to `start`, which returns when its main has; what came.

        Raises:
            QuorumError: too few hospitals answered.
            IntegrityError: what was revealed of the sum does not fit.
            BudgetError: a coordinator before this one lost counts that hospitals give once.
            Stopped: the user asked to stop.
        """
        start(self._server_app())
        self._require_served()
        if self._error is not None:
            raise self._error
        return self._found

    def _serve(self, grid: Grid) -> None:
        """Admit; where counts are summed, ask for them once."""
        saved = self._saved_sum()
        if saved is not None:
            self._found.totals, self._found.hospitals, self._found.restored = saved.value, saved.voters, True
            return
        if not self.needs_hospitals:
            raise BudgetError(
                f"hospitals were asked for their counts before, and there was no sum; {self._lost()}"
            )
        federation = self._admit(grid)
        if self._terms.secure_sum:
            self._sum(federation)

    def _saved_sum(self) -> Totals | None:
        """The sum of counts that an earlier process got."""
        last = self._state.last_batch
        saved = None if last is None else self._state.totals(last.digest)
        if saved is not None and saved.value.shape != (self._terms.num_clusters, self._terms.num_classes):
            raise IntegrityError("the kept totals are of another study")
        return saved

    def _admit(self, grid: Grid) -> Federation:
        channel = Channel(
            grid=grid,
            stop=self._stop,
            progress=self._progress,
            backend=self._backend,
            answer_s=_ANSWER_S,
            window=_AT_ONCE,
        )
        self._federation = federation = Federation(
            self._terms,
            channel,
            self._state,
            sum_type=COUNTS,
            keys=self._keys,
            left_out=self._leave_out,
            waiting=self._waiting,
        )
        request = LabelRequest(
            terms=self._terms.to_json(), clusters=self._clusters, enrol=federation.enrol_request
        )
        masked = self._terms.secure_sum
        invitation = Invitation(
            message_type=LABELS,
            request=request.to_record(),
            reply=LabelReply,
            accept=self._take_nothing if masked else self._take_labels,
            answer_s=_ANSWER_S,
            phase="labels",
            task="hospitals that take part" if masked else "labels from hospitals",
            done="answered about their labels",
        )
        try:
            federation.admit(invitation)
        finally:
            self._found.hospitals = len(federation.participants)
        for party in federation.revoked() if not masked else ():  # while the others were still asked
            self._found.label[self._places.pop(party)] = NO_LABEL
            self._found.hospitals -= 1
            self._leave_out(LeftOut(party=party, phase=invitation.phase, reason="is revoked"))
        return federation

    def _take_nothing(self, reply: LabelReply) -> None:
        if reply.index.size or reply.label.size:
            raise IntegrityError("sent labels where counts are asked for")

    def _take_labels(self, reply: LabelReply) -> None:
        index, label, taken = reply.index, reply.label, self._found.label
        if index.ndim != 1 or index.shape != label.shape or not len(index):
            raise IntegrityError("sent labels and places of other numbers")
        if index.min() < 0 or index.max() >= self._terms.pool_size or len(np.unique(index)) != len(index):
            raise IntegrityError("sent labels of inputs that there are not, or of one twice")
        if label.min() < 0 or label.max() >= self._terms.num_classes:
            raise IntegrityError("sent labels that are no classes")
        if (taken[index] != NO_LABEL).any():
            raise IntegrityError("sent labels of inputs that are another hospital's")
        taken[index] = label
        self._places[reply.party] = index

    def _lost(self) -> str:
        return (
            f"{self._cost()} counts as spent at every hospital that was asked (its own log says whether it "
            "answered), and none of them answers about these labels again"
        )

    def _sum(self, federation: Federation) -> None:
        last = self._state.last_batch
        question = Question(
            terms_digest=self._terms.digest,
            batch=0 if last is None else last.question.batch,  # one that was opened is gone on with
            index=np.arange(self._terms.num_clusters, dtype=np.int64),
        )
        try:
            totals = federation.collect(question, task="noisy counts under masks")
        except PateFedError as error:
            if federation.open:
                self._left_open = True
                raise type(error)(f"{error}; {STAYS_OPEN}") from error
            if federation.spent:
                self._state.void_batch()
                raise type(error)(f"{error}; {self._lost()}") from error
            raise
        self._found.totals, self._found.hospitals = totals.value, totals.voters
        # Before anyone uses it: no hospital gives a second one.
        self._state.keep_totals(question.digest, totals)

    def _leave_out(self, event: LeftOut) -> None:
        self._found.left_out.append((event.party, event.reason))
