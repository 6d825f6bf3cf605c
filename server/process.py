"""The coordinator's process: one study over separate hospital processes, from its file to its outcome."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pate_fed.config.backend import PROCESSES
from pate_fed.config.study import Study, read_study
from pate_fed.disk import hold
from pate_fed.flower.host import Address, Host, open_host
from pate_fed.report.log import read_result
from pate_fed.report.metrics import outcome_json, outcome_line
from pate_fed.runtime.run_dir import choose_run_dir, read_status
from pate_fed.runtime.signals import INTERRUPTED, interruptible

if TYPE_CHECKING:
    from flwr.serverapp import ServerApp

    from server.app import BaseCoordinator
    from server.outcome import Audience


def run_study(arguments: argparse.Namespace, *, stop: threading.Event, started: float) -> int:
    """Run the study that the options name, at its address; the exit code.

    One that is finished is told to hospitals that were away. `stop` asks it to end; `started` is when the
    command began, on `time.perf_counter`.

    Raises:
        InputError: an option is wrong, the study's keys are for other terms, or its data cannot be used.
    """
    study = study_to_run(Path(arguments.config), num_hospitals=arguments.num_clients)
    host, run_dir = open_host(arguments, quiet=arguments.quiet), arguments.run_dir
    as_json = arguments.format == "json"
    if run_dir is not None and read_status(Path(run_dir)) is not None:
        from server.base import clear_finished

        clear_finished(Path(run_dir))  # its process may have died before it could

    def same(held: Path) -> bool:
        return read_study(held) == study

    if (over := finished_study(run_dir, same)) is not None:
        return tell_finished(over, host, stop=stop, as_json=as_json)
    folder, resume = choose_run_dir(run_dir, study.name, same)
    if resume:
        host.report(f"going on with the run in {folder}, from its ledger")
    from server.app import Coordinator

    coordinator = Coordinator(
        study,
        run_dir=folder,
        quiet=arguments.quiet,
        stop=stop,
        started=started,
        resume=resume,
        key=None if host.authority is None else host.authority.ledger_key(),
    )
    with interruptible(stop):
        return run_apart(coordinator, host, folder, stop=stop, as_json=as_json)


def run_apart(
    coordinator: BaseCoordinator, host: Host, run_dir: Path, *, stop: threading.Event, as_json: bool
) -> int:
    """Run the study with hospitals that have processes of their own, tell them how it ended; the exit code.

    All that it came to is written and printed before hospitals are told.

    Raises:
        InputError: the host's keys were made for other terms.
    """
    from pate_fed.flower.compat import quiet_flower
    from server.base import LINK_FOLDER

    host.require_terms(coordinator.terms.digest)
    terms = coordinator.terms
    link = Address(host, coordinator, folder=run_dir / LINK_FOLDER, stop=stop)
    with quiet_flower(), closing(link) as address:

        def serve(server_app: ServerApp) -> None:
            hospitals, least = terms.num_clients, terms.least_clients
            address.serve(server_app, coordinator, hospitals=hospitals, least=least)

        coordinator.run(serve)
        with coordinator.held():
            if coordinator.served and coordinator.outcome_notice().exit_code == INTERRUPTED:
                host.report("the hospitals wait: the same command with this --run-dir goes on")
            code = coordinator.conclude(as_json=as_json)
            if coordinator.served:
                _tell(address, coordinator.audience, host)
        return code


def _tell(address: Address, audience: Audience, host: Host) -> None:
    """The study's outcome stands, whether hospitals hear of it or not."""
    try:
        address.tell(audience)
    except Exception as error:  # whatever it is, the study is over and has its exit code
        host.report(f"hospitals could not be told how the study ended: {error}")


def finished_study(run_dir: str | None, same: Callable[[Path], bool]) -> Path | None:
    """The run directory where it holds this very study, finished, and whom to tell of it; else None."""
    from server.outcome import HOSPITALS

    path = Path(run_dir or "")
    held = path / "study.toml"
    if run_dir is None or not held.exists() or not (path / HOSPITALS).exists():
        return None
    return path if read_status(path) == "success" and same(held) else None


def tell_finished(run_dir: Path, host: Host, *, stop: threading.Event, as_json: bool) -> int:
    """Say how a finished study ended, and tell hospitals that were away, with receipts; its exit code.

    Raises:
        InputError: another process has the run directory, or the host's keys are another study's.
    """
    from pate_fed.flower.compat import quiet_flower
    from server.base import LINK_FOLDER
    from server.outcome import Audience

    with hold(run_dir, what="--run-dir", leave=False):
        audience = Audience(run_dir)
        host.require_terms(audience.terms_digest)
        told = outcome_json if as_json else outcome_line
        print(told(read_result(run_dir), run_dir / "report.html"), flush=True)
        if not audience.untold():
            host.report("this study is finished, and all hospitals that took part are told")
            return audience.exit_code
        host.report("this study is finished: only its outcome and receipts are served")
        with (
            interruptible(stop, note="the study is finished"),
            quiet_flower(),
            closing(Address(host, audience, folder=run_dir / LINK_FOLDER, stop=stop)) as address,
        ):
            _tell(address, audience, host)
    return audience.exit_code


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
