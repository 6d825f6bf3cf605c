"""A study's coordinator: what is around its run, from the checks before to the outcome after."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from numpy.typing import NDArray

from pate_fed.config.data import fix_unit, load_study_data, records_digest, require_study_libraries
from pate_fed.config.study import Study
from pate_fed.disk import DamagedFileError, write_arrays, write_private
from pate_fed.errors import InputError, PateFedError, naming_refusal
from pate_fed.flower.transport import LinkLostError
from pate_fed.format import counted, delta_text, epsilon_text
from pate_fed.identity.bundle import BUNDLE_FILE
from pate_fed.kinds.make import check_against_data
from pate_fed.kinds.terms import guarantee_lines, require_meaningful
from pate_fed.privacy import Ledger
from pate_fed.privacy.ledger.terms import guaranteed_coordinator_epsilon, guaranteed_epsilon
from pate_fed.protocol.messages import EndRequest
from pate_fed.report.log import PartyWork, RunLog, Waiting
from pate_fed.report.result import PrivacyFigures, RunResult
from pate_fed.report.terminal import Progress, counted_phase, make_progress
from pate_fed.report.text import engine_text
from pate_fed.runtime.run_dir import LEDGER_NAME, LOG_NAME, PRIVATE, claim_run_dir
from pate_fed.runtime.signals import INTERRUPTED
from pate_fed.structure.faults import Fault, cause_of, place_of
from server.base import BaseStudy, RunDirError
from server.exchange import Stopped
from server.federation import AdmittedKeys
from server.kinds import Figures, RunContext, Setup, StudySetup
from server.outcome import Audience
from server.release import open_ledger, releases_told
from server.run import Run
from server.state import CoordinatorState

# Peak memory of a command with all its processes, sampled.


class PeakMemory:
    """The largest sum seen, in bytes; 0 before the first sample."""

    def __init__(self) -> None:
        self.bytes = 0

    @property
    def megabytes(self) -> int | None:
        """The peak in MiB, rounded; None when nothing was sampled."""
        return round(self.bytes / 2**20) or None


@contextmanager
def watch_memory(*, every_s: float = 5.0) -> Iterator[PeakMemory]:
    """Sample this process and its descendants every `every_s` seconds until the block ends.

    Pages that processes share (Ray's object store, libraries) count once, where the system says how they are
    shared (Linux); elsewhere resident sizes are added up, which overstates.
    """
    peak, done = PeakMemory(), threading.Event()

    def sample() -> None:
        while True:
            peak.bytes = max(peak.bytes, _family_bytes())
            if done.wait(every_s):
                return

    thread = threading.Thread(target=sample, name="memory", daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def _family_bytes() -> int:
    import psutil

    me, total = psutil.Process(), 0
    for process in (me, *me.children(recursive=True)):
        with suppress(psutil.Error):  # it ended between listing and asking
            full = process.memory_full_info()
            total += int(getattr(full, "pss", full.rss))
    return total


class BaseCoordinator(BaseStudy):
    """Runs one study of any kind with its hospitals, and leaves its run directory.

    With `resume` the run directory holds the same study, cut off: it goes on from its ledger, which is signed
    with `key` where there is one. `terms` are what hospitals agree to, `ledger_terms` what the ledger begins
    with; `served` says that it came to an end of its own, which hospitals may be told.
    """

    def __init__(
        self,
        setup: Setup,
        stop: threading.Event,
        *,
        started: float,
        progress: Progress,
        quiet: bool,
        resume: bool,
        key: Ed25519PrivateKey | None = None,
    ) -> None:
        super().__init__(setup.run_dir, stop, started=started, progress=progress, quiet=quiet, key=key)
        self._setup, self.terms, self._resume = setup, setup.terms, resume
        if resume:
            self._hold_run_dir()  # before anything is read that another process may be writing
        self._private = setup.private(resume=resume)
        self._state = CoordinatorState(self._private, run_dir=setup.run_dir)
        self._noise = setup.noise
        self.ledger_terms = self.terms.ledger_terms(
            noise=self._noise.kind, private=self._noise.private, together=not setup.apart
        )
        self._keys: AdmittedKeys | None = None
        self._parties_fault: BaseException | None = None  # an error that tells already of what parties met
        self.served = False
        self.lost: LinkLostError | None = None  # the link over which it ran last
        self.gather: Callable[[], None] = lambda: None  # has hospitals' processes come
        self.audience = Audience(setup.run_dir if setup.apart else None, terms_digest=self.terms.digest)
        self.goes_on = bool(self.audience.took_part)
        self._run: Run | None = None
        self._privacy = self._before_the_ledger()
        self._labels = 0
        self._main_seconds = 0.0

    def set_admitted(
        self, names: Mapping[int, str], sum_identities: Mapping[str, bytes], *, key: Ed25519PrivateKey
    ) -> None:
        """Whose key each node has, and who signs secure sums with which; others are left out from then on.

        With `key` hospitals' receipts are signed.
        """
        self.audience.set_admitted(names, sum_identities, key=key)
        self._keys = AdmittedKeys(names, sum_identities, self.audience.receipts)

    def outcome_notice(self) -> EndRequest:
        """How the study ended, for the hospitals: nothing that they could not read in the report."""
        # They wait for whoever goes on with it, as with one that was interrupted.
        mended = isinstance(self.error, RunDirError | DamagedFileError)
        code = INTERRUPTED if self.left_open or mended else self.exit_code
        return EndRequest(status=self.status, exit_code=code, summary=self._summary())

    def note_waiting(self, event: Waiting) -> None:
        """Write in the run's log which hospitals are waited for."""
        self._log.write(event)

    def _keep_end(self) -> None:
        with naming_refusal(f"{self._run_dir}: cannot be written"):
            self.audience.ends(self.outcome_notice())

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
            claim_run_dir(self._run_dir, self._setup.text)
            self._hold_run_dir()
        self._unseal()
        with RunLog(self._run_dir / LOG_NAME) as self._log, watch_memory() as peak:
            try:
                self._log.write(self._setup.record(self.ledger_terms))
                reason = [self._setup.reason] if self._setup.reason else []
                for line in (*reason, *guarantee_lines(self.ledger_terms)):
                    self._progress.log(line)
                self._progress.log(f"hospitals run on: {engine_text(self._setup.engine.played_on)}")
                begun = time.perf_counter()
                worked = start(self._server_app())
                if worked is not None:
                    self._log.write(self._party_work(worked, time.perf_counter() - begun))
            except Exception as error:  # the engine's own fault; the study's are kept where they happen
                self._fail(error)
            self._require_served()
            if not self._setup.apart:
                self._tell_own_fault()
            if self._run is not None and self._run.unlearnt and self.error is not None:
                self._tell_unlearnt(self._run, self.error)
            self._peak_mb = peak.megabytes
            self._end()

    def _server_app(self) -> ServerApp:
        """The app whose main runs the study. Errors are kept: Flower's thread would lose their meaning."""
        app = ServerApp()

        @app.main()
        def main(grid: Grid, context: Context) -> None:
            try:
                self._serve(grid)
            except BaseException as error:
                self._fail(error)
            self.served = self.lost is None

        return app

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

    def note_faults(self, faults: Sequence[Fault], cause: BaseException | None) -> None:
        """Tell of what went wrong at simulated parties, the first fault in words; `cause` raised it here."""
        logs = [self._note_fault(fault) for fault in faults]
        if not faults:
            return
        others = f", and {counted(len(faults) - 1, 'other fault')}" if len(faults) > 1 else ""
        told = f"{faults[0].text(self.terms.num_clients)}{others}{_traceback_in(logs[0])}"
        if any(fault.kind == KeyboardInterrupt.__name__ for fault in faults):
            self.error = None
            self._fail(KeyboardInterrupt())
        if not isinstance(self.error, PateFedError):
            print(f"warning: {told}", file=sys.stderr)
            return
        self._parties_fault = self.error
        self.error.args = (f"{told}; {self.error}",)
        self.error.__cause__ = cause or self.error.__cause__

    def _tell_own_fault(self) -> None:
        """In a simulation: all that a fault of the user's code here quotes, as all data are the user's."""
        if not isinstance(self.error, PateFedError) or self.error is self._parties_fault:
            return
        if place_of(cause_of(self.error)):
            fault = Fault.of(self.error)
            self.error.args = (f"{fault.sentence}{_traceback_in(self._note_fault(fault))}",)

    def _note_fault(self, fault: Fault) -> Path:
        self._log.write(fault)
        return self._run_dir / LOG_NAME

    def _require_served(self) -> None:
        if not self.served and self._stop.is_set():
            self._fail(Stopped())
        elif not self.served:
            self._fail(RuntimeError("Flower's engine ended without running the study"))

    def _party_work(self, worked: float, engine_ran: float) -> PartyWork:
        """What is left of the engine's time without the coordinator's own work and the parties'."""
        phases = self._figures.seconds
        own = self._main_seconds - (phases.teach or 0.0) - (phases.vote or 0.0)
        return PartyWork(seconds=worked, engine_seconds=max(0.0, engine_ran - own - worked))

    def _summary(self) -> str:
        assumed = self.ledger_terms.assumptions
        claimed = f" ({assumed.short})" if assumed else ""
        alone = self._figures.asked and self.terms.asks.noisy_alone  # such an answer counts once it is sent
        spent = guaranteed_epsilon(self.ledger_terms) if alone else self._privacy.student
        return f"ε={epsilon_text(spent)} δ={delta_text(self.terms.delta)}{claimed} labels={self._labels}"

    def _serve(self, grid: Grid) -> None:
        """Run the study, and account for it whatever became of it."""
        begun, self.lost = time.perf_counter(), None
        with open_ledger(self._run_dir, self.ledger_terms, key=self._key) as ledger:
            try:
                self._run = self._make_run(ledger)
                self._run.run(grid)
            except LinkLostError as error:  # not the study's end: it goes on over another link
                self.lost = error
            except BaseException as error:
                self._fail(error)
            self._account(ledger)
            self._labels = ledger.answered
            accounts = (
                self._export_labels,
                self._log_spending,
                self._add_data_dependent,
                self._bundle_student,
            )
            for account in accounts[: None if self.lost is None else 1]:
                try:
                    account(ledger)
                except Exception as error:
                    self._fail(error)
        self._main_seconds += time.perf_counter() - begun

    def _make_run(self, ledger: Ledger) -> Run:
        context = RunContext(
            state=self._state,
            keys=self._keys,
            log=self._log,
            progress=self._progress,
            stop=self._stop,
            gather=self.gather,
            audience=self.audience,
        )
        return Run(self._setup, ledger, context, noise=self._noise)

    def _before_the_ledger(self) -> PrivacyFigures:
        """What holds while the ledger is not open: nothing is released, unless an earlier process did."""
        if not ((self._run_dir / LEDGER_NAME).exists() or releases_told(self._run_dir)):
            return PrivacyFigures(student=0.0)
        return PrivacyFigures(
            student=guaranteed_epsilon(self.ledger_terms),
            student_reason="the ledger was not opened; it says what was spent (pate-fed ledger show)",
            coordinator=guaranteed_coordinator_epsilon(self.ledger_terms),
        )

    def _add_data_dependent(self, ledger: Ledger) -> None:
        """Figures that follow from exact totals, where there are any."""
        if self._run is not None:
            complete = self.error is None or (self._run.unlearnt and self._run.all_asked)
            self._privacy = self._run.course.private_figures(self._privacy, complete=complete)

    def _log_spending(self, ledger: Ledger) -> None:
        if self._run is not None:
            self._run.course.log_spending()

    def _export_labels(self, ledger: Ledger) -> None:
        """`labels.npz`: what the ledger has released, written at once; labels of drawn rows are of no use."""
        if self.terms.drawn:
            return
        index, answered, label = ledger.released()
        columns: dict[str, NDArray[Any]] = {"index": index, "answered": answered, "label": label}
        columns |= {} if self._run is None else self._run.course.more_labels()
        write_arrays(self._run_dir / "labels.npz", **columns)

    def _bundle_student(self, ledger: Ledger) -> None:
        """`student.bundle`, for the hospitals, where there is a student and a key to sign it."""
        (self._run_dir / BUNDLE_FILE).unlink(missing_ok=True)
        figures = self._figures
        if self.error is not None or self._key is None or figures.student is None:
            return
        try:
            content = self._setup.bundle(
                figures, self._key, head=ledger.head, fixed=self.ledger_terms, epsilon=self._privacy.student
            )
        except InputError as error:
            print(f"warning: hospitals do not get the student: {error}", file=sys.stderr)
        else:
            write_private(self._run_dir / BUNDLE_FILE, content)

    @property
    def _figures(self) -> Figures:
        return Figures() if self._run is None else self._run.figures

    def _add_metrics(self, metrics: dict[str, Any], result: RunResult) -> None:
        self._setup.add_metrics(metrics, result, self._figures)

    def _lines(self) -> tuple[str, ...]:
        return self._setup.lines(self._figures)


class Coordinator(BaseCoordinator):
    """That of a study.toml; everything a user can get wrong is checked before anything is written.

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
        progress = progress or make_progress(quiet)
        require_study_libraries(study)
        with counted_phase(progress, "drawing, once") as drawn:
            dataset = load_study_data(study, drawn)
        study = fix_unit(study, dataset)
        check_against_data(study, dataset)
        self._study, self.dataset, setup = study, dataset, StudySetup.of(study, dataset, run_dir)
        super().__init__(setup, stop, started=started, progress=progress, quiet=quiet, resume=resume, key=key)
        if not resume:  # what was begun is on the ledger
            require_meaningful(self.terms, self.ledger_terms)

    @property
    def records(self) -> str | None:
        """Digest of who has which records, where code of the user's own says so."""
        data, parties = self._study.data, self._study.parties
        own = data.own or parties.own_partition
        return records_digest(self._study, self.dataset) if own else None

    @property
    def student(self) -> Any:
        """The trained student; None where the study did not come to one."""
        return self._figures.student


def _traceback_in(log: Path) -> str:
    return f" (traceback in {log})"
