"""The coordinator's process: one study over separate hospital processes, from its file to its outcome."""

from __future__ import annotations

import argparse
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pate_fed.config.backend import PROCESSES
from pate_fed.config.study import Study, read_study
from pate_fed.flower.host import Host, open_host
from pate_fed.runtime.run_dir import choose_run_dir, read_status
from pate_fed.runtime.signals import interruptible

if TYPE_CHECKING:
    from flwr.serverapp import ServerApp

    from server.app import BaseCoordinator


class CoordinatorProcess:
    """One study: its address is opened and its run directory checked at once, `run` does the rest.

    `stop` asks it to end; `started` is when the command began, on `time.perf_counter`.
    """

    def __init__(self, arguments: argparse.Namespace, *, stop: threading.Event, started: float) -> None:
        self._arguments, self._stop, self._started = arguments, stop, started
        self._study = study_to_run(Path(arguments.config), num_hospitals=arguments.num_clients)
        self._host = open_host(arguments, quiet=arguments.quiet)
        if arguments.run_dir is not None and read_status(Path(arguments.run_dir)) is not None:
            from server.base import clear_finished

            clear_finished(Path(arguments.run_dir))  # its process may have died before it could
        self._run_dir, self._resume = choose_run_dir(
            arguments.run_dir, self._study.name, lambda held: read_study(held) == self._study
        )
        if self._resume:
            self._host.report(f"going on with the run in {self._run_dir}, from its ledger")

    def run(self) -> int:
        """Run the study; the exit code.

        Raises:
            InputError: the study's keys were made for other terms, or its data cannot be used.
        """
        from server.app import Coordinator

        authority = self._host.authority
        coordinator = Coordinator(
            self._study,
            run_dir=self._run_dir,
            quiet=self._arguments.quiet,
            stop=self._stop,
            started=self._started,
            resume=self._resume,
            key=None if authority is None else authority.ledger_key(),
        )
        with interruptible(self._stop):
            run_apart(coordinator, self._host, self._run_dir, stop=self._stop)
            return coordinator.conclude(as_json=self._arguments.format == "json")


def run_apart(coordinator: BaseCoordinator, host: Host, run_dir: Path, *, stop: threading.Event) -> None:
    """Wait for hospitals with processes of their own, and run the study with those that came.

    Raises:
        InputError: the host's keys were made for other terms.
    """
    from pate_fed.flower.compat import quiet_flower
    from server.base import LINK_FOLDER
    from server.exchange import TELL_S

    host.require_terms(coordinator.terms_digest)
    if not coordinator.needs_hospitals:  # those that still wait are told how it ended
        host = replace(host, wait_s=min(host.wait_s, TELL_S))

    def serve(server_app: ServerApp) -> None:
        terms, folder = coordinator.terms, run_dir / LINK_FOLDER
        host.serve(
            server_app,
            coordinator,
            folder=folder,
            hospitals=terms.num_clients,
            least=terms.least_clients,
            stop=stop,
        )

    with quiet_flower():
        coordinator.run(serve)


def study_to_run(config: Path, *, num_hospitals: int | None) -> Study:
    """The resolved study of a study.toml with separate hospitals, as many as it says or as given.

    Raises:
        InputError: the file is not there, or what it says is wrong.
    """
    study = read_study(config, num_hospitals=num_hospitals)
    # Hospitals answer no question whose answer is only for measuring.
    study = replace(
        study, queries=replace(study.queries, evaluate=False), engine=replace(study.engine, backend=PROCESSES)
    )
    return study.resolve()
