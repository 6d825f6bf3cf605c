"""A study of private labels that are all in one place: its method's releases on the ledger, and its end.

`LabelStudy` is the record of a method's releases (`pate_fed.kinds.label_dp.source.Record`): a release is
drawn, its row and its labels are on the disk, and only then does the method get it. A process that was killed
at any moment goes on from the labels that are on the ledger; none is drawn, or paid for, a second time.
"""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.disk import write_arrays, write_private
from pate_fed.errors import IntegrityError
from pate_fed.kinds.label_dp.source import LabelSource, Record, Released
from pate_fed.privacy import Ledger, LedgerTerms
from pate_fed.report.log import RunLog
from pate_fed.report.result import RunResult
from pate_fed.report.terminal import Progress
from pate_fed.runtime.run_dir import LOG_NAME, claim_run_dir
from server.base import BaseStudy, Charges
from server.kinds import Figures
from server.kinds.labels import LabelWork
from server.release import Release, open_ledger

Ints = NDArray[np.int64]


class LabelStudy(BaseStudy, Record):
    """One study in its run directory, which is made with the first release."""

    def __init__(self, work: LabelWork, *, run_dir: Path, started: float, progress: Progress) -> None:
        super().__init__(run_dir, threading.Event(), started=started, progress=progress, quiet=False)
        self._work, self._found = work, Figures()
        self._ledger: Ledger | None = None
        self._held = ExitStack()  # the ledger and the log

    @property
    def _figures(self) -> Figures:
        return self._found

    # The record of a method's releases.

    def release(self, terms: LedgerTerms, draw: Callable[[], Released], *, stage: int = 0) -> Released:
        """The release of a stage: as it is on the ledger, else drawn and charged for before it is returned.

        Raises:
            IntegrityError: the ledger is damaged, gone, or was begun under other terms.
        """
        ledger = self._opened(terms)
        done = [event.asked for event in ledger.events()]
        index, _, label = ledger.released()
        if len(done) > stage:
            part = slice(sum(done[:stage]), sum(done[: stage + 1]))
            return Released(index=index[part], label=label[part])
        released = draw()
        name = hashlib.sha256(f"{ledger.terms.study_digest}/{stage}".encode()).hexdigest()
        release = Release.of(ledger.terms, terms.mechanisms[stage], released.index, released.label)
        self._charges.charge(release, batch=stage, batch_digest=name)
        return released

    def keep(self, name: str, draw: Callable[[], Ints]) -> Ints:
        """What a release is made of, from NAME.npy of the run directory, else drawn and kept there.

        Raises:
            IntegrityError: the file is damaged.
        """
        path = self._run_dir / f"{name.replace(' ', '_')}.npy"
        if path.exists():
            try:
                return np.asarray(np.load(path, allow_pickle=False), dtype=np.int64)
            except (OSError, ValueError, EOFError) as error:
                raise IntegrityError(f"{path}: is damaged") from error
        drawn, content = draw(), io.BytesIO()
        np.save(content, drawn, allow_pickle=False)
        write_private(path, content.getvalue())
        return drawn

    def _opened(self, terms: LedgerTerms) -> Ledger:
        if self._ledger is None:
            if not (self._run_dir / "study.toml").exists():
                claim_run_dir(self._run_dir, self._work.options.to_toml())
            self._hold_run_dir()
            self._unseal()
            self._ledger = self._held.enter_context(open_ledger(self._run_dir, terms))
            self._log = self._held.enter_context(RunLog(self._run_dir / LOG_NAME))
            self._log.write(self._work.record(terms))
            self._charges = Charges(self._ledger, self._log, self._progress, self._run_dir)
        return self._ledger

    # Its course.

    def run(self, source: LabelSource) -> None:
        """Let the method ask the source and learn; errors after its first release are kept for `conclude`.

        Raises:
            PateFedError: it came to no release, so nothing was spent.
        """
        with self._held:
            try:
                self._learn(source)
            except (Exception, KeyboardInterrupt) as error:
                if self._ledger is None:
                    raise
                self._fail(error)
            if self._ledger is None:
                raise RuntimeError("a study came to its end without a release")
            self._account(self._ledger)
            self._end()

    def _learn(self, source: LabelSource) -> None:
        outcome = self._work.learn(source, self._found)
        released, label = outcome.released, outcome.labels.label
        columns = {"index": np.arange(len(released)), "answered": released >= 0, "label": label}
        columns |= {} if released is label else {"released": released}
        write_arrays(self._run_dir / "labels.npz", **columns)
        self._work.finish(outcome, self._run_dir, self._found)

    def _add_metrics(self, metrics: dict[str, Any], result: RunResult) -> None:
        mechanism = "" if self._ledger is None else self._ledger.terms.mechanisms[0].name
        self._work.add_metrics(metrics, result, mechanism=mechanism)

    def _lines(self) -> tuple[str, ...]:
        return self._work.lines()
