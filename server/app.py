"""A study's coordinator: what is around its run, from the checks before to the outcome after."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.serverapp import Grid, ServerApp
from numpy.typing import NDArray

from pate_fed.config.data import load_study_data, records_digest, require_study_libraries
from pate_fed.config.study import Study
from pate_fed.data import Dataset
from pate_fed.disk import write_arrays
from pate_fed.errors import InputError, IntegrityError, PateFedError
from pate_fed.flower.processes import SECRET
from pate_fed.format import delta_text, epsilon_text
from pate_fed.kinds.make import check_against_data, make_terms
from pate_fed.kinds.terms import Terms, guarantee_lines, require_meaningful
from pate_fed.privacy import Ledger, LedgerTerms, noise_from_seed
from pate_fed.privacy.ledger.terms import guaranteed_coordinator_epsilon, guaranteed_epsilon
from pate_fed.report.html import write_report
from pate_fed.report.log import PartyWork, RunLog, Waiting, read_result
from pate_fed.report.memory import watch_memory
from pate_fed.report.metrics import collect_versions, outcome_json, outcome_line, write_metrics
from pate_fed.report.result import Outcome, PrivacyFigures, RunResult, Seconds, StudyRecord
from pate_fed.report.terminal import Progress, counted_phase, make_progress, print_summary
from pate_fed.report.text import engine_text
from pate_fed.runtime.run_dir import LEDGER_NAME, LOG_NAME, PRIVATE, claim_run_dir, read_status
from pate_fed.structure.faults import Fault
from pate_fed.structure.parts import is_part_name, part_identity
from server.base import BaseCoordinator, explain_disk_error
from server.exchange import Stopped
from server.kinds import Figures, RunContext, StudySetup
from server.release import open_ledger, releases_told
from server.run import Run
from server.state import CoordinatorState

LINK_FOLDER = "flower"  # in the run directory: of the SuperLink that hospitals' processes connect to


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


class Coordinator(BaseCoordinator):
    """Runs one study and leaves its run directory; everything a user can get wrong is checked before that.

    `started` is the reading of `time.perf_counter` from which the total time counts. With `resume` the run
    directory holds the same study, cut off: it goes on from its ledger. `progress` takes what else would be
    shown on the terminal.

    Raises:
        InputError: settings that do not fit the data, a budget that not even one query fits, or an ε that
            means almost nothing without `allow_weak`.
    """

    def __init__(
        self,
        study: Study,
        *,
        run_dir: Path,
        quiet: bool,
        stop: threading.Event,
        started: float,
        resume: bool = False,
        key: Ed25519PrivateKey | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._started, self._resume, self._key = started, resume, key
        self._study, self._run_dir, self._quiet = study, run_dir, quiet
        self._progress = progress or make_progress(quiet)
        require_study_libraries(study)
        self._dataset = self._load()
        check_against_data(study, self._dataset)
        self._terms = make_terms(study, self._dataset)
        self._setup = StudySetup(study=study, dataset=self._dataset, terms=self._terms, run_dir=run_dir)
        # A simulation that asks begins anew, so what is private stays in this process.
        private = run_dir / PRIVATE if self._setup.apart or resume else None
        super().__init__(self._terms, stop, private=private)
        self._state = CoordinatorState(private, run_dir=run_dir)
        self._noise = noise_from_seed(None if study.seed is None else study.seed_for("noise"))
        self._ledger_terms = self._terms.ledger_terms(
            noise=self._noise.kind, private=self._noise.private, together=not self._setup.apart
        )
        if not resume:  # what was begun is on the ledger
            require_meaningful(self._terms, self._ledger_terms)
        self._run: Run | None = None
        self._privacy = self._before_the_ledger()
        self._labels = 0
        self._main_seconds = 0.0
        self._peak_mb: int | None = None

    @property
    def terms(self) -> Terms:
        """What hospitals agree to."""
        return self._terms

    @property
    def ledger_terms(self) -> LedgerTerms:
        """What the ledger begins with: the caps, from which the guarantee follows."""
        return self._ledger_terms

    @property
    def error(self) -> BaseException | None:
        """What ended the study before its time."""
        return self._error

    @property
    def dataset(self) -> Dataset:
        """The study's data, as the coordinator of a simulation has them."""
        return self._dataset

    @property
    def records(self) -> str | None:
        """Digest of who has which records, where code of the user's own says so."""
        data, parties = self._study.data, self._study.parties
        own = data.own or is_part_name(parties.partition)
        return records_digest(self._study, self._dataset) if own else None

    @property
    def student(self) -> Any:
        """The trained student; None where the study did not come to one."""
        return self._figures.student

    @property
    def left_open(self) -> bool:
        """Whether a masked sum failed with which the same command goes on."""
        return self._run is not None and self._run.left_open

    @property
    def needs_hospitals(self) -> bool:
        """Whether hospitals will be asked anything: not where all that is asked is on the ledger."""
        return not self._state.all_asked

    def run(self, start: Callable[[ServerApp], float | None]) -> None:
        """Make the run directory and hand the ServerApp to `start`, which returns when its main has.

        `start` returns the seconds in which the parties worked themselves, per process, where it knows them.
        Errors are kept for `conclude`, so that what was spent is always reported.
        """
        if not self._resume:
            claim_run_dir(self._run_dir, self._study.to_toml())
        with RunLog(self._run_dir / LOG_NAME) as self._log, watch_memory() as peak:
            try:
                self._log.write(self._record())
                reason = [self._study.reason] if self._study.reason else []
                for line in (*reason, *guarantee_lines(self._ledger_terms)):
                    self._progress.log(line)
                self._progress.log(f"hospitals run on: {engine_text(self._study.engine.played_on)}")
                begun = time.perf_counter()
                worked = start(self._server_app())
                if worked is not None:
                    self._log.write(self._party_work(worked, time.perf_counter() - begun))
            except Exception as error:  # the engine's own fault; the study's are kept where they happen
                self._fail(error)
            self._require_served()
            if not self._setup.apart:
                self._tell_own_fault()
            if self._run is not None and self._run.unlearnt and self._error is not None:
                self._tell_unlearnt(self._run, self._error)
            self._peak_mb = peak.megabytes
            self._ended = self._outcome()
            with suppress(OSError):  # a full disk; the outcome is printed all the same
                self._log.write(self._ended)

    def _tell_unlearnt(self, run: Run, error: BaseException) -> None:
        """Labels that are paid for are kept where a student of them fails, and the error says so."""
        told = f"the labels ({self._labels:,}) are kept in {self._run_dir / 'labels.npz'}"
        with suppress(OSError):
            if run.all_asked and not self._setup.apart:  # which kept nothing so far
                run.course.keep_for_learning(state := CoordinatorState(self._run_dir / PRIVATE))
                state.note_all_asked()
            if run.all_asked or self._setup.apart:
                told += (
                    f"; once this is mended the same command with --run-dir {self._run_dir} goes on with them"
                )
        if isinstance(error, PateFedError):
            error.args = (f"{error}; {told}",)
        else:
            error.add_note(told)

    def _note_fault(self, fault: Fault) -> Path:
        self._log.write(fault)
        return self._run_dir / LOG_NAME

    def note_waiting(self, event: Waiting) -> None:
        """Write in the run's log which hospitals are waited for."""
        self._log.write(event)

    def _party_work(self, worked: float, engine_ran: float) -> PartyWork:
        """What is left of the engine's time without the coordinator's own work and the parties'."""
        phases = self._seconds
        own = self._main_seconds - (phases.teach or 0.0) - (phases.vote or 0.0)
        return PartyWork(seconds=worked, engine_seconds=max(0.0, engine_ran - own - worked))

    def _summary(self) -> str:
        assumed = self._ledger_terms.assumptions
        claimed = f" ({assumed.short})" if assumed else ""
        return (
            f"ε={epsilon_text(self._privacy.student)} δ={delta_text(self._terms.delta)}{claimed} "
            f"labels={self._labels}"
        )

    def finish(self) -> RunResult:
        """Write report and metrics; what the run came to.

        The metrics of a success come last: until they are there another process goes on with the run. A
        success whose metrics cannot be written is none: who asks the run directory would not find it.
        """
        result = replace(read_result(self._run_dir), outcome=self._ended)
        try:
            write_report(result, self._run_dir / "report.html")
        except InputError as error:  # `pate-fed report` writes it once there is room
            print(f"warning: {error}", file=sys.stderr)
        try:
            write_metrics(result, self._run_dir / "metrics.json")
        except InputError as error:  # what was spent is printed all the same
            if self._error is not None:
                print(f"warning: {error}", file=sys.stderr)
            self._fail(IntegrityError(f"{error}; what was released is on the ledger"))
            result = replace(result, outcome=self._outcome())
        else:
            clear_finished(self._run_dir)
        return result

    def conclude(self, *, as_json: bool) -> int:
        """Write report and metrics, print the outcome as the last line, and return the exit code."""
        result, report = self.finish(), self._run_dir / "report.html"
        if not self._quiet:
            print_summary(result)
        self._print_error()
        print(outcome_json(result, report) if as_json else outcome_line(result, report), flush=True)
        return self.exit_code

    def _load(self) -> Dataset:
        with counted_phase(self._progress, "drawing, once") as drawn:
            return load_study_data(self._study, drawn)

    def _serve(self, grid: Grid) -> None:
        """Run the study, and account for it whatever became of it."""
        begun = time.perf_counter()
        with open_ledger(self._run_dir, self._ledger_terms, key=self._key) as ledger:
            try:
                self._run = self._make_run(ledger)
                self._run.run(grid)
            except BaseException as error:
                self._fail(error)
            # What was spent comes first: no other figure and no full disk may hide it.
            self._privacy = PrivacyFigures(
                student=ledger.guaranteed(),
                spent=ledger.epsilon(),
                coordinator=ledger.guaranteed_coordinator(),
            )
            self._labels = ledger.answered
            for account in (self._export_labels, self._log_spending, self._add_data_dependent):
                try:
                    account(ledger)
                except Exception as error:
                    self._fail(error)
        self._main_seconds = time.perf_counter() - begun

    def _make_run(self, ledger: Ledger) -> Run:
        context = RunContext(
            state=self._state, keys=self._keys, log=self._log, progress=self._progress, stop=self._stop
        )
        return Run(self._setup, ledger, context, noise=self._noise)

    def _fail(self, error: BaseException) -> None:
        super()._fail(explain_disk_error(error, self._run_dir))

    def _before_the_ledger(self) -> PrivacyFigures:
        """What holds while the ledger is not open: nothing is released, unless an earlier process did."""
        if not ((self._run_dir / LEDGER_NAME).exists() or releases_told(self._run_dir)):
            return PrivacyFigures(student=0.0)
        return PrivacyFigures(
            student=guaranteed_epsilon(self._ledger_terms),
            student_reason="the ledger was not opened; it says what was spent (pate-fed ledger show)",
            coordinator=guaranteed_coordinator_epsilon(self._ledger_terms),
        )

    def _add_data_dependent(self, ledger: Ledger) -> None:
        """Figures that follow from exact totals, where there are any."""
        if self._run is not None:
            complete = self._error is None or (self._run.unlearnt and self._run.all_asked)
            self._privacy = self._run.course.private_figures(self._privacy, complete=complete)

    def _log_spending(self, ledger: Ledger) -> None:
        if self._run is not None:
            self._run.course.log_spending()

    def _export_labels(self, ledger: Ledger) -> None:
        """`labels.npz`: what the ledger has released, written at once."""
        index, answered, label = ledger.released()
        columns: dict[str, NDArray[Any]] = {"index": index, "answered": answered, "label": label}
        columns |= {} if self._run is None else self._run.course.more_labels()
        write_arrays(self._run_dir / "labels.npz", **columns)

    def _record(self) -> StudyRecord:
        study, fixed, view = self._study, self._ledger_terms, self._ledger_terms.coordinator
        return StudyRecord(
            terms=self._terms,
            dataset=study.data.dataset,
            queries=study.queries,
            student="" if study.aggregation.kind else study.student.name,
            student_part=None if study.student.code is None else part_identity(study.student.code, "student"),
            partition=study.parties.partition if self._dataset.owners is None else None,
            backend=study.engine.played_on,
            inputs="rows" if self._dataset.public_images.ndim == 2 else "images",
            test_size=self._terms.pool_size - self._dataset.num_queries,
            guaranteed=guaranteed_epsilon(fixed),
            protects=fixed.protects,
            noise=self._noise.kind,
            noise_private=self._noise.private,
            coordinator=view.kind,
            coordinator_sees=view.text(),
            versions=collect_versions(),
        )

    @property
    def _figures(self) -> Figures:
        return Figures() if self._run is None else self._run.figures

    @property
    def _seconds(self) -> Seconds:
        return self._figures.seconds

    def _outcome(self) -> Outcome:
        return Outcome(
            status=self.status,
            reason=self._reason(),
            accuracy=self._figures.accuracy,
            privacy=self._privacy,
            seconds=replace(self._seconds, total=time.perf_counter() - self._started),
            peak_memory_mb=self._peak_mb,
            cautions=self._figures.cautions,
        )

    def _reason(self) -> str | None:
        if self._error is None:
            return None
        if isinstance(self._error, Stopped):
            return "interrupted; what was released is on the ledger"
        if isinstance(self._error, PateFedError):
            return str(self._error)
        notes: list[str] = getattr(self._error, "__notes__", [])
        return "; ".join(("a fault of the program; its traceback is on standard error", *notes))

    def _print_error(self) -> None:
        if isinstance(self._error, PateFedError):
            print(f"error: {self._error}", file=sys.stderr)
        elif self._error is not None and not isinstance(self._error, Stopped):
            traceback.print_exception(self._error, file=sys.stderr)
