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
from pate_fed.kinds.labels import LabelTerms, clusters_file, lost_text
from pate_fed.kinds.terms import Terms
from pate_fed.protocol.messages import JoinRequest
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


@dataclass(slots=True)
class Collected:
    """What came of a study: `totals`, None before, of so many `hospitals`; `left_out` tells of the others.

    Their values are int64 (clusters, classes) noisy counts, or (inputs, 2) responses. `restored` tells that
    an earlier process had them summed, and nobody was asked now.
    """

    totals: Ints | None = None
    hospitals: int = 0
    left_out: list[tuple[str, str]] = field(default_factory=list)
    restored: bool = False


class LabelCoordinator(BaseCoordinator):
    """Asks each hospital once, over one Grid. `clusters` int64 (pool_size,) where counts are asked for.

    `folder` is where a coordinator of counts keeps what another process goes on from; None: nowhere. `lost`
    are counts that hospitals give once, that they were asked for, and that never come.
    `waiting` is told now and then who has not answered yet, `fault` what went wrong at simulated hospitals.
    """

    def __init__(
        self,
        terms: Terms,
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
        self._file = b"" if clusters is None else clusters_file(clusters)
        self._progress, self._backend = progress, backend
        own = None if folder is None or not terms.secure_sum else folder / terms.digest[:16]
        self._state = CoordinatorState(own)
        self._federation: Federation | None = None
        self._left_open = self._responses_asked = self.lost = False
        last = self._state.last_batch
        self._asked_before = last is not None and last.asked
        self._found = Collected()

    @property
    def found(self) -> Collected:
        """What came so far, also of a study that failed."""
        return self._found

    @property
    def spent(self) -> bool:
        """Whether anything about labels may have left a hospital: what they send counts, heard or not."""
        masked = self._federation is not None and self._federation.spent
        return self._asked_before or self._responses_asked or masked or self._found.totals is not None

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
        if not self.spent:
            return "ε=0 δ=0"
        spent = LabelTerms.of(self._terms).spent(self._terms)
        return f"ε={epsilon_text(spent)} δ={delta_text(self._terms.delta)}"

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
        """Admit, and ask once."""
        saved = self._saved_sum()
        if saved is not None:
            self._found.totals, self._found.hospitals, self._found.restored = saved.value, saved.voters, True
            return
        if not self.needs_hospitals:
            self.lost = True
            raise BudgetError(f"hospitals were asked before, and there was no sum; {lost_text(self._cost())}")
        self._collect(self._admit(grid))

    def _saved_sum(self) -> Totals | None:
        """The sum of counts that an earlier process got."""
        last, bounds = self._state.last_batch, self._terms.bounds
        saved = None if last is None else self._state.totals(last.digest)
        if saved is not None and saved.value.shape != (bounds.rows, bounds.columns):
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
            keys=self._keys,
            left_out=self._leave_out,
            waiting=self._waiting,
        )
        request = JoinRequest(terms=self._terms.to_json(), enrol=federation.enrol_request, file=self._file)
        invitation = Invitation(
            request=request.to_record(),
            answer_s=_ANSWER_S,
            phase="labels",
            task="hospitals that take part",
            done="are ready to answer",
        )
        try:
            federation.admit(invitation)
        finally:
            self._found.hospitals = len(federation.participants)
        return federation

    def _collect(self, federation: Federation) -> None:
        masked, question = self._terms.secure_sum, LabelTerms.of(self._terms).question(self._terms)
        self._responses_asked = not masked
        try:
            task = "noisy counts under masks" if masked else "labels from hospitals"
            totals = federation.collect(question, task=task)
        except PateFedError as error:
            if federation.open:
                self._left_open = True
                raise type(error)(f"{error}; {STAYS_OPEN}") from error
            if federation.spent:
                self._state.void_batch()
                self.lost = True
                raise type(error)(f"{error}; {lost_text(self._cost())}") from error
            raise
        self._found.totals, self._found.hospitals = totals.value, totals.voters
        if masked:  # before anyone uses it: no hospital gives a second one
            self._state.keep_totals(question.digest, totals)

    def _leave_out(self, event: LeftOut) -> None:
        self._found.left_out.append((event.party, event.reason))
