"""A whole study on this machine: what `flower-simulation` and `pate_fed.simulate` both run."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pate_fed.config.backend import INLINE, cores
from pate_fed.config.parts import hold_part, search_folder
from pate_fed.config.study import Study, read_study, study_from_dict
from pate_fed.report.run import Run
from pate_fed.report.terminal import Progress, Step, make_progress, tell_progress
from pate_fed.runtime.run_dir import fresh_run_dir, simulated_disks
from pate_fed.runtime.signals import Interrupted, interruptible

if TYPE_CHECKING:
    from server.app import Coordinator

__all__ = ["run_simulation", "simulate"]

_ONE_AT_A_TIME = threading.Lock()  # parties learn of their study through this process's environment


def simulate(
    study: Study | Mapping[str, Any] | str | Path | None = None,
    *,
    teacher: Any = None,
    run_dir: str | Path | None = None,
    on_progress: Callable[[Step], None] | None = None,
    quiet: bool = False,
) -> Run:
    """Run a study with all its parties on this machine, as `flower-simulation` does; its files stay.

    `study` is a `Study`, nested dictionaries as in `study.toml`, or such a file; None is the default study.
    What it leaves open is filled in. `teacher` is an object of your own (`pate_fed.learning.teachers.own`);
    one that no module has under its own name runs in this process alone. `run_dir` is a new directory
    (default: runs/NAME-TIME). `on_progress` hears of every step in place of the terminal, which `quiet` keeps
    silent. Studies of one process run one after another, whichever threads they are started in.

    Raises:
        InputError: settings that are wrong or do not go together; nothing was asked.
        PateFedError: what ended the study before its time. What was spent until then is in `run_dir`.
    """
    progress = make_progress(quiet) if on_progress is None else tell_progress(on_progress)
    with _ONE_AT_A_TIME:
        resolved = _with_parts(_as_study(study), teacher=teacher).resolve()
        folder = fresh_run_dir(None if run_dir is None else str(run_dir), resolved.name)
        stop = threading.Event()
        coordinator = run_simulation(
            resolved, run_dir=folder, progress=progress, stop=stop, started=time.perf_counter()
        )
        coordinator.finish()
    if stop.is_set():
        raise Interrupted
    if coordinator.error is not None:
        raise coordinator.error
    return Run.load(folder)


def run_simulation(
    study: Study,
    *,
    run_dir: Path,
    progress: Progress | None = None,
    quiet: bool = False,
    stop: threading.Event,
    started: float,
) -> Coordinator:
    """Run a resolved study; the coordinator, which has its outcome. Ctrl-C sets `stop` and ends it.

    Raises:
        InputError: settings that do not fit the data or this machine.
    """
    from pate_fed.flower import prepare_environment

    prepare_environment()
    search_folder(Path.cwd())
    from server.app import Coordinator

    coordinator = Coordinator(
        study, run_dir=run_dir, quiet=quiet, stop=stop, started=started, progress=progress
    )
    with interruptible(stop), simulated_disks() as folder:
        _write_site(study, folder)
        coordinator.run(lambda server_app: _run_apps(server_app, study, folder))
    return coordinator


def _as_study(study: Study | Mapping[str, Any] | str | Path | None) -> Study:
    if study is None:
        return Study()
    if isinstance(study, Mapping):
        return study_from_dict(study, where="the study")
    return study if isinstance(study, Study) else read_study(Path(study))


def _with_parts(study: Study, *, teacher: Any) -> Study:
    """The same with objects of this process as its parts."""
    if teacher is None:
        return study
    name, known = hold_part(teacher, "teacher")
    study = replace(study, teacher=replace(study.teacher, name=name))
    return study if known else replace(study, engine=replace(study.engine, backend=INLINE))


def _run_apps(server_app: Any, study: Study, folder: Path) -> float:
    """Run the study; the seconds in which parties worked, per process that plays them."""
    from pate_fed.flower.engine import run_apps

    nodes, engine = study.parties.num_clients, study.engine
    run_apps(
        server_app,
        _client_app,
        backend=engine.backend,
        num_nodes=nodes,
        device=engine.device,
        gpus_per_client=engine.gpus_per_client,
        folder=folder,
    )
    return _seconds_worked(folder) / (1 if engine.backend == INLINE else min(cores(), nodes))


def _client_app() -> Any:
    from clients.app import app

    return app


def _seconds_worked(folder: Path) -> float:
    """From the simulated parties' own logs, which a real hospital never shows."""
    from clients.log import read_events

    events = (event for state in folder.glob("party-*") for _, event in read_events(state) if event)
    return float(sum(event["seconds"] for event in events if event["event"] == "handled"))


def _write_site(study: Study, folder: Path) -> None:
    from clients.site_files import SITE_VARIABLE, SimulatedSites

    (folder / "study.toml").write_text(study.to_toml(), encoding="utf-8")
    SimulatedSites(study=folder / "study.toml", state_dir=folder, parts=Path.cwd()).write(
        folder / "site.json"
    )
    os.environ[SITE_VARIABLE] = str(folder / "site.json")
