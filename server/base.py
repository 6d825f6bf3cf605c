"""A coordinator of any study, as its host needs it: terms, hospitals' keys, app, and outcome."""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from pate_fed.disk import DISK_ERRORS
from pate_fed.errors import InputError, IntegrityError, PateFedError
from pate_fed.format import counted
from pate_fed.kinds.terms import Terms
from pate_fed.protocol.messages import EndRequest
from pate_fed.report.log import Waiting
from pate_fed.runtime.signals import INTERRUPTED
from pate_fed.structure.faults import Fault, cause_of, describe, ends_process, place_of
from server.exchange import Stopped
from server.federation import AdmittedKeys
from server.receipts import Receipts
from server.shutdown import send_shutdown_notice

STAYS_OPEN = (
    "the sum stays open, and nothing is charged for it yet: once all hospitals are there, the same command "
    "goes on with it"
)
"""Of a masked sum that failed, and that another process may still come to."""


class BaseCoordinator(ABC):
    """One study with these terms; the user may `stop` it.

    `private` is the folder in which another process finds what came from each hospital; None: it begins anew.
    """

    def __init__(self, terms: Terms, stop: threading.Event, *, private: Path | None = None) -> None:
        self._terms, self._stop, self._private = terms, stop, private
        self._keys: AdmittedKeys | None = None
        self._error: BaseException | None = None
        self._parties_fault: BaseException | None = None  # an error that tells already of what parties met
        self._served = False

    @property
    def terms_digest(self) -> str:
        """Names the terms that hospitals are asked to agree to."""
        return self._terms.digest

    def set_admitted(
        self, names: Mapping[int, str], sum_identities: Mapping[str, bytes], *, key: Ed25519PrivateKey
    ) -> None:
        """Whose key each node has, and who signs secure sums with which; others are left out from then on.

        With `key` hospitals' receipts are signed.
        """
        receipts = Receipts(key, terms_digest=self.terms_digest, folder=self._private)
        self._keys = AdmittedKeys(names, sum_identities, receipts)

    def outcome_notice(self) -> EndRequest:
        """How the study ended, for the hospitals: nothing that they could not read in the report."""
        # They wait for whoever goes on with an open sum, as for one that was interrupted.
        code = INTERRUPTED if self.left_open else self.exit_code
        return EndRequest(status=self.status, exit_code=code, summary=self._summary())

    def notify_hospitals(self, grid: Grid, notice: EndRequest) -> None:
        """Send the notice to every hospital that is connected."""
        send_shutdown_notice(grid, notice, receipt_of=self._receipt_of)

    def _receipt_of(self, node: int) -> str:
        keys = self._keys
        if keys is None or keys.receipts is None or node not in keys.names:
            return ""
        return keys.receipts.of(keys.names[node])

    @abstractmethod
    def note_waiting(self, event: Waiting) -> None:
        """Write in the study's log which hospitals are waited for."""

    @property
    def left_open(self) -> bool:
        """Whether a masked sum failed with which the same command goes on."""
        return False

    @property
    def status(self) -> str:
        """How the study ended: success, failed or aborted."""
        if self._error is None:
            return "success"
        return "aborted" if isinstance(self._error, Stopped) else "failed"

    @property
    def exit_code(self) -> int:
        """The command's exit code."""
        if self._error is None:
            return 0
        if isinstance(self._error, Stopped):
            return INTERRUPTED
        return self._error.exit_code if isinstance(self._error, PateFedError) else 1

    @abstractmethod
    def _summary(self) -> str:
        """What the study cost and gave, in one line."""

    @abstractmethod
    def _serve(self, grid: Grid) -> None:
        """Run the study; whatever is raised is how it ended."""

    def _server_app(self) -> ServerApp:
        """The app whose main runs the study. Errors are kept: Flower's thread would lose their meaning."""
        app = ServerApp()

        @app.main()
        def main(grid: Grid, context: Context) -> None:
            try:
                self._serve(grid)
            except BaseException as error:
                self._fail(error)
            self._served = True

        return app

    def _fail(self, error: BaseException) -> None:
        """Keep the first error: an interrupt as the user's stop, a fault of the user's code as a sentence.

        Raises:
            SystemExit: Flower or Ray end this process.
        """
        if isinstance(error, KeyboardInterrupt):
            self._stop.set()
            error = Stopped()
        elif ends_process(error):
            raise error
        elif not isinstance(error, PateFedError | Stopped) and place_of(error):
            told = InputError(f"code of your own fails ({describe(error)})")
            told.__cause__ = error
            error = told
        self._error = self._error or error

    def note_faults(self, faults: Sequence[Fault], cause: BaseException | None) -> None:
        """Tell of what went wrong at simulated parties, the first fault in words; `cause` raised it here."""
        logs = [self._note_fault(fault) for fault in faults]
        if not faults:
            return
        others = f", and {counted(len(faults) - 1, 'other fault')}" if len(faults) > 1 else ""
        told = f"{faults[0].text(self._terms.num_clients)}{others}{_traceback_in(logs[0])}"
        if any(fault.kind == KeyboardInterrupt.__name__ for fault in faults):
            self._error = None
            self._fail(KeyboardInterrupt())
        if not isinstance(self._error, PateFedError):
            print(f"warning: {told}", file=sys.stderr)
            return
        self._parties_fault = self._error
        self._error.args = (f"{told}; {self._error}",)
        self._error.__cause__ = cause or self._error.__cause__

    def _tell_own_fault(self) -> None:
        """In a simulation: all that a fault of the user's code here quotes, as all data are the user's."""
        if not isinstance(self._error, PateFedError) or self._error is self._parties_fault:
            return
        if place_of(cause_of(self._error)):
            fault = Fault.of(self._error)
            self._error.args = (f"{fault.sentence}{_traceback_in(self._note_fault(fault))}",)

    @abstractmethod
    def _note_fault(self, fault: Fault) -> Path | None:
        """Write a fault with its traceback in the study's log, and say where that is."""

    def _require_served(self) -> None:
        if not self._served:
            self._fail(RuntimeError("Flower's engine ended without running the study"))


def _traceback_in(log: Path | None) -> str:
    return "" if log is None else f" (traceback in {log})"


def explain_disk_error(error: BaseException, run_dir: Path) -> BaseException:
    """Map an error of a disk that is full, gone or read-only to an IntegrityError that says what holds."""
    if not isinstance(error, OSError) or error.errno not in DISK_ERRORS:
        return error
    explained = IntegrityError(
        f"{run_dir}: cannot be written ({error.strerror}); nothing was released that is not on the ledger, "
        "and once there is room the same command goes on"
    )
    explained.__cause__ = error
    return explained
