"""How a study in its run directory ends: a status, an exit code, metrics, a report, and a last line."""

from __future__ import annotations

import shlex
import sqlite3
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pate_fed.disk import hold, is_of_disk
from pate_fed.errors import InputError, PateFedError
from pate_fed.flower.processes import SECRET
from pate_fed.format import epsilon_text
from pate_fed.privacy import Ledger
from pate_fed.privacy.ledger.rows import Entry, unreadable
from pate_fed.privacy.ledger.seal import SEAL, new_key, public_hex, seal_run
from pate_fed.privacy.ledger.terms import guaranteed_epsilon
from pate_fed.report.html import write_report
from pate_fed.report.log import RunLog, read_result
from pate_fed.report.metrics import outcome_json, outcome_line, write_metrics
from pate_fed.report.result import Outcome, PrivacyFigures, ReleasedBatch, RunResult
from pate_fed.report.terminal import Progress, print_summary
from pate_fed.runtime.console import nothing_spent
from pate_fed.runtime.run_dir import PRIVATE, read_status
from pate_fed.runtime.signals import INTERRUPTED
from pate_fed.structure.faults import describe, ends_process, place_of
from server.exchange import Stopped
from server.kinds import Figures
from server.release import Release, charge, releases_told
from server.state import CoordinatorState

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_MENDED = "Make room there, or put it back as it was: then the same command goes on"

LINK_FOLDER = "flower"  # in the run directory: of the SuperLink that hospitals' processes connect to


class RunDirError(InputError):
    """The run directory cannot be written now: hospitals wait for whoever goes on once it can."""


def clear_finished(run_dir: Path) -> None:
    """Remove votes, totals and keys of a run that is told as finished; a user must hear where that fails.

    The secret of a SuperLink that was killed is among the keys.
    """
    private = run_dir / PRIVATE
    try:
        if read_status(run_dir) == "success":
            CoordinatorState(private).remove_private()
            (run_dir / LINK_FOLDER / SECRET).unlink(missing_ok=True)
    except OSError as error:
        print(f"warning: {private}: private, remove it by hand ({error.strerror})", file=sys.stderr)


class Charges:
    """Charges a run's releases, and tells each in its log once; also those of a process that died before."""

    def __init__(self, ledger: Ledger, log: RunLog, progress: Progress, run_dir: Path) -> None:
        self._ledger, self._log, self._progress = ledger, log, progress
        told = len(releases_told(run_dir))
        for number, entry in enumerate(ledger.entries()[told:], told):
            self._tell(entry, number)

    def charge(
        self, release: Release, *, batch: int, batch_digest: str, charged: Callable[[], None] = lambda: None
    ) -> None:
        """Charge a release, as `charge` does, do what follows once it is `charged`, and only then tell it."""
        entry = charge(self._ledger, release, batch_digest=batch_digest)
        charged()
        self._tell(entry, batch)
        self.show_epsilon()

    def _tell(self, entry: Entry, batch: int) -> None:
        event = entry.event
        self._log.write(
            ReleasedBatch(batch=batch, asked=event.asked, answered=event.answered, epsilon=entry.epsilon)
        )

    def show_epsilon(self) -> None:
        """Show what is spent so far beside what never is passed."""
        most = guaranteed_epsilon(self._ledger.terms)
        self._progress.status(f"ε {epsilon_text(self._ledger.epsilon())} of {epsilon_text(most)}")


class BaseStudy:
    """One study in its run directory; the user may `stop` it.

    `started` is the reading of `time.perf_counter` from which the total time counts. `progress` takes what
    else is shown on the terminal; a `quiet` study shows no summary. `key` seals the run; without one a key
    that is made at its end and forgotten.
    """

    _log: RunLog
    _ended: Outcome

    def __init__(
        self,
        run_dir: Path,
        stop: threading.Event,
        *,
        started: float,
        progress: Progress,
        quiet: bool,
        key: Ed25519PrivateKey | None = None,
    ) -> None:
        self._run_dir, self._stop, self._started = run_dir, stop, started
        self._progress, self._quiet = progress, quiet
        self.error: BaseException | None = None  # what ended it before its time
        self._privacy = PrivacyFigures(student=0.0)
        self._peak_mb: int | None = None
        self._key, self._head = key, ""
        self._alone = ExitStack()

    def held(self) -> ExitStack:
        """Whoever closes it lets go of the run directory, instead of `finish`."""
        return self._alone.pop_all()

    @property
    def status(self) -> str:
        """How the study ended: success, failed or aborted."""
        if self.error is None:
            return "success"
        return "aborted" if isinstance(self.error, Stopped) else "failed"

    @property
    def exit_code(self) -> int:
        """The command's exit code."""
        if self.error is None:
            return 0
        if isinstance(self.error, Stopped):
            return INTERRUPTED
        return self.error.exit_code if isinstance(self.error, PateFedError) else 1

    @property
    def _figures(self) -> Figures:
        """What it came to so far."""
        return Figures()

    def _fail(self, error: BaseException) -> None:
        """Keep the first error: an interrupt as the user's stop, a fault of the user's code as a sentence."""
        error = explain_disk_error(error, self._run_dir)
        if isinstance(error, KeyboardInterrupt):
            self._stop.set()
            error = Stopped()
        elif ends_process(error):
            raise error
        elif not isinstance(error, PateFedError | Stopped) and place_of(error):
            told = InputError(f"code of your own fails ({describe(error)})")
            told.__cause__ = error
            error = told
        self.error = self.error or error

    def _hold_run_dir(self) -> None:
        """Have the run directory alone until the end is told, or go on with no run that ended meanwhile."""
        self._alone.enter_context(hold(self._run_dir, what="--run-dir", leave=False))
        if read_status(self._run_dir) == "success":
            self._alone.close()
            raise InputError(
                f"--run-dir {self._run_dir}: another process has finished this run; see its report"
            )

    def _account(self, ledger: Ledger) -> None:
        """What was spent; no other figure and no full disk may hide it."""
        self._head = ledger.head
        self._privacy = PrivacyFigures(
            student=ledger.guaranteed(), spent=ledger.epsilon(), coordinator=ledger.guaranteed_coordinator()
        )

    def _end(self) -> None:
        """Write in the log how it ended; where the disk is full it is printed all the same."""
        if self._head and self._key is None:
            self._key = new_key()
        self._ended = self._outcome()
        with suppress(OSError):
            self._log.write(self._ended)

    def _outcome(self) -> Outcome:
        figures = self._figures
        return Outcome(
            status=self.status,
            reason=self._reason(),
            accuracy=figures.accuracy,
            privacy=self._privacy,
            seconds=replace(figures.seconds, total=time.perf_counter() - self._started),
            peak_memory_mb=self._peak_mb,
            cautions=figures.cautions,
            ledger_head=self._head or None,
            sealed_by=public_hex(self._key) if self._head and self._key is not None else None,
        )

    def _reason(self) -> str | None:
        if self.error is None:
            return None
        if isinstance(self.error, Stopped):
            return "interrupted; what was released is on the ledger"
        if isinstance(self.error, PateFedError):
            return str(self.error)
        notes: list[str] = getattr(self.error, "__notes__", [])
        return "; ".join(("a fault of the program; its traceback is on standard error", *notes))

    def finish(self) -> RunResult:
        """Write report and metrics; what the run came to.

        The metrics of a success come last, after the seal: until they are there another process goes on with
        the run. A
        success whose metrics cannot be written is none: who asks the run directory would not find it.
        """
        with self._alone:
            result = replace(read_result(self._run_dir), outcome=self._ended)
            try:
                write_report(result, self._run_dir / "report.html")
            except InputError as error:  # `pate-fed report` writes it once there is room
                print(f"warning: {error}", file=sys.stderr)
            try:
                self._keep_end()
                path = self._run_dir / "metrics.json"
                write_metrics(result, path, add=self._add_metrics, before=self._seal)
            except InputError as error:  # what was spent is printed all the same
                if self.error is not None:
                    print(f"warning: {error}", file=sys.stderr)
                self._unseal()
                self._fail(RunDirError(f"{error}; what was released is on the ledger. {_MENDED}"))
                with suppress(InputError):  # the disk is full, and hospitals are told all the same
                    self._keep_end()
                result = replace(result, outcome=self._outcome())
            else:
                clear_finished(self._run_dir)
            return result

    def _seal(self, metrics: bytes) -> None:
        """Seal all that the run leaves, once it is as it stays; nobody can with this key again."""
        key, self._key = self._key, None
        if not self._head or key is None:
            return
        try:
            seal_run(self._run_dir, key=key, head=self._head, more={"metrics.json": metrics})
        except InputError as error:
            print(f"warning: the run is not sealed: {error}", file=sys.stderr)

    def _unseal(self) -> None:
        """Remove the seal of an earlier process: the run goes on."""
        with suppress(OSError):
            (self._run_dir / SEAL).unlink(missing_ok=True)

    def _keep_end(self) -> None:
        """Keep what hospitals that are away are told by another process; before the metrics of a success."""

    def _add_metrics(self, metrics: dict[str, Any], result: RunResult) -> None:
        """Put more of the kind's own into `metrics.json`."""

    def _lines(self) -> tuple[str, ...]:
        """What is printed before the outcome line."""
        return ()

    def conclude(self, *, as_json: bool) -> int:
        """Write report and metrics, print the outcome as the last line, and return the exit code."""
        report = self._run_dir / "report.html"
        try:
            result = self.finish()
        except InputError as error:  # the log is gone, and the run directory with it
            self._fail(RunDirError(f"{error}. {_MENDED}"))
            self._print_error()
            print(nothing_spent("failed", str(self.error), as_json=as_json, begun=True), flush=True)
            return self.exit_code
        if not self._quiet:
            print_summary(result)
            if key := result.outcome.sealed_by:
                told = f"pate-fed ledger verify {shlex.quote(str(self._run_dir))} --public-key {key}"
                print(f"sealed, and checked by: {told}", file=sys.stderr)
        self._print_error()
        for line in () if as_json else self._lines():
            print(line)
        print(outcome_json(result, report) if as_json else outcome_line(result, report), flush=True)
        return self.exit_code

    def _print_error(self) -> None:
        if isinstance(self.error, PateFedError):
            print(f"error: {self.error}", file=sys.stderr)
        elif self.error is not None and not isinstance(self.error, Stopped):
            traceback.print_exception(self.error, file=sys.stderr)


def explain_disk_error(error: BaseException, run_dir: Path) -> BaseException:
    """Map an error of a disk that is full, gone or read-only to a RunDirError that says what holds."""
    why, cause = None, error.__cause__
    if isinstance(error, OSError) and is_of_disk(error, run_dir):
        why = error.strerror
    elif isinstance(cause, sqlite3.Error) and isinstance(unreadable(run_dir, cause), InputError):
        why = str(cause)  # of the ledger, that SQLite could not write
    told = f"{run_dir}: cannot be written ({why}); nothing was released that is not on the ledger"
    if isinstance(error, InputError) and isinstance(cause, OSError) and is_of_disk(cause, run_dir):
        told = str(error)  # of one file, as the student's
    elif why is None:
        return error
    explained = RunDirError(f"{told}. {_MENDED}")
    explained.__cause__ = error
    return explained
