"""A whole study from this machine: what `flower-simulation` and `pate_fed.simulate` both run."""

from __future__ import annotations

import os
import threading
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from pate_fed.config.backend import CLUSTER, INLINE, cores
from pate_fed.config.data import data_digest, imply_models, imply_models_for, records_digest
from pate_fed.config.registry import KINDS
from pate_fed.config.study import Study, load_study, read_study, study_from_dict
from pate_fed.data import as_dataset
from pate_fed.errors import InputError
from pate_fed.flower import prepare_environment
from pate_fed.privacy.ledger.report import verify
from pate_fed.privacy.mechanisms.own import own_parameters
from pate_fed.report.log import read_result
from pate_fed.report.run import Run
from pate_fed.report.terminal import Progress, Step, make_progress, tell_progress
from pate_fed.runtime.run_dir import choose_run_dir, fresh_run_dir, may_learn, simulated_disks
from pate_fed.runtime.signals import Interrupted, interruptible
from pate_fed.structure import nearest
from pate_fed.structure.declarations import shown
from pate_fed.structure.faults import telling_of_parties
from pate_fed.structure.parts import (
    IN_MEMORY,
    hold_dataset,
    hold_part,
    load_part,
    own_files,
    release_parts,
    search_folder,
)

if TYPE_CHECKING:
    from server.app import Coordinator

_ONE_AT_A_TIME = threading.Lock()  # parties learn of their study through this process's environment


class Parts(TypedDict, total=False):
    """Parts of one's own, by kind: objects, or None for those that the study names."""

    teacher: Any
    student: Any
    dataset: Any
    partitioner: Any
    aggregator: Any
    query_strategy: Any
    feature_map: Any
    kind: Any


def simulate(
    study: Study | Mapping[str, Any] | str | Path | None = None,
    *,
    run_dir: str | Path | None = None,
    on_progress: Callable[[Step], None] | None = None,
    quiet: bool = False,
    **parts: Unpack[Parts],
) -> Run:
    """Run a study with all its parties on this machine, as `flower-simulation` does; its files stay.

    `study` is a `Study`, nested dictionaries as in `study.toml`, or such a file; None is the default study.
    What it leaves open is filled in. `run_dir` is a new directory (default: runs/NAME-TIME). `on_progress`
    hears of every step that the terminal shows, which `quiet` keeps silent. Studies of one process run one
    after another, whichever threads they are started in.

    Parts of your own take the place of those that the study names: a `teacher`
    (`pate_fed.learning.teachers.own`), a `student` (`pate_fed.learning.students.own`), a `dataset`
    (`pate_fed.data.own`: arrays, or a function that loads them), a `partitioner(labels, num_parties, seed)`
    that gives one index array a party, an `aggregator` (`pate_fed.privacy.mechanisms.own`), a
    `query_strategy` (`pate_fed.learning.students.query_selection`), a `feature_map` of class sums
    (`pate_fed.learning.features.own`), a `kind` of question (`pate_fed.kinds.own`). With one that no module
    has under its own name all parties run in this process.

    Raises:
        InputError: settings that are wrong or do not go together; nothing was asked.
        PateFedError: what ended the study before its time. What was spent until then is in `run_dir`.
    """
    for name in parts:
        if name not in Parts.__annotations__:
            hint = nearest(name, Parts.__annotations__)
            raise TypeError(f"simulate() got an unexpected keyword argument {name!r}{hint}")
    progress, raised = make_progress(quiet), list[Exception]()
    if (heard := on_progress) is not None:

        def hear(step: Step) -> None:
            try:
                heard(step)
            except Exception as error:  # the caller's own way to end it
                raised.append(error)
                raise

        progress = tell_progress(hear, progress)
    with _ONE_AT_A_TIME:
        try:
            prepare_environment()
            search_folder(Path.cwd())
            open_study = _with_parts(study, parts)
            open_study.require_private()
            resolved = open_study.resolve()
            folder, learns = simulation_dir(None if run_dir is None else str(run_dir), resolved)
            stop = threading.Event()
            coordinator = run_simulation(
                resolved,
                run_dir=folder,
                learns=learns,
                progress=progress,
                stop=stop,
                started=time.perf_counter(),
            )
            coordinator.finish()
        finally:
            release_parts()
    if stop.is_set():
        raise Interrupted
    if coordinator.error is not None:
        raise raised[0] if raised else coordinator.error
    run = Run.load(folder)
    if resolved.student.code or resolved.own_features:  # no file of it is safe to read
        vars(run)["student"] = coordinator.student
    own = resolved.aggregation
    if own.own or own.kind:  # whose code the caller has named
        name = own.kind or own.aggregator
        given = parts.get("kind" if own.kind else "aggregator") if name.startswith(IN_MEMORY) else None
        vars(run)["ledger"] = verify(folder / "ledger.sqlite", aggregators={name: given})
    return run


def simulation_dir(given: str | None, study: Study) -> tuple[Path, bool]:
    """The run directory, and whether all is released there and a student only has to learn from it."""
    if given is None or not may_learn(Path(given)):
        return fresh_run_dir(given, study.name), False
    return choose_run_dir(given, study.name, lambda held: read_study(held) == study)


def run_simulation(
    study: Study,
    *,
    run_dir: Path,
    learns: bool = False,
    progress: Progress | None = None,
    quiet: bool = False,
    stop: threading.Event,
    started: float,
) -> Coordinator:
    """Run a resolved study; the coordinator, which has its outcome. Ctrl-C sets `stop` and ends it.

    With `learns` nobody is asked: a student learns from what was released in `run_dir`.

    Raises:
        InputError: settings that do not fit the data or this machine, or labels of other public data.
    """
    prepare_environment()
    search_folder(Path.cwd())
    from server.app import Coordinator

    coordinator = Coordinator(
        study, run_dir=run_dir, quiet=quiet, stop=stop, started=started, resume=learns, progress=progress
    )
    if learns and read_result(run_dir).study.terms != coordinator.terms:
        raise InputError(f"--run-dir {run_dir}: its labels are of other public data; give another directory")
    with interruptible(stop), simulated_disks() as folder:
        _write_site(study, folder, coordinator.records)
        coordinator.run(lambda server_app: _run_apps(server_app, study, folder, coordinator))
    return coordinator


_PLACES = {kind.replace(" ", "_"): (place.section, place.key) for kind, place in KINDS.items()}


def _with_parts(study: Study | Mapping[str, Any] | str | Path | None, parts: Parts) -> Study:
    """The study with objects of this process as its parts, by kind; None: the part that it names."""
    values, where = _study_values(study)
    for kind, part in parts.items():
        if part is None:
            continue
        name, known = hold_part(part, kind)
        section, key = _PLACES[kind]
        if kind in ("aggregator", "kind") and not known and not isinstance(part, type):
            # An object is its class and parameters, where others find that class.
            of_class, known = hold_part(type(part), kind)
            if known:
                own = own_parameters(part, what=f"{kind} {of_class!r}")
                name = of_class
                _put(values, section, {"parameters": dict(own)})
        _put(values, section, {key: name})
        if not known:
            _put(values, "engine", {"backend": INLINE})
        if kind == "dataset":
            loaded = as_dataset(part, what=f"dataset {name!r}", name=name)
            hold_dataset(loaded, name)
            imply_models_for(values, loaded)
    if parts.get("dataset") is None:
        imply_models(values)
    return study_from_dict(values, where=where)


def _study_values(study: Study | Mapping[str, Any] | str | Path | None) -> tuple[dict[str, Any], str]:
    """A study as `study.toml` has it, and what errors call it."""
    if isinstance(study, str | Path):
        return load_study(Path(study)), str(study)
    if isinstance(study, Study):
        study = tomllib.loads(study.to_toml())
    if study is not None and not isinstance(study, Mapping):
        raise InputError(
            f"the study is {shown(study)}: a Study, nested dictionaries as in study.toml, or the name of "
            "such a file is meant"
        )
    return dict(study or {}), "the study"


def _put(values: dict[str, Any], section: str, settings: Mapping[str, Any]) -> None:
    """Set keys of a section, over what is there; what is no table is refused when it is read."""
    given = values.get(section, {})
    if isinstance(given, Mapping):
        values[section] = {**given, **settings}


def _run_apps(server_app: Any, study: Study, folder: Path, coordinator: Coordinator) -> float:
    """Run the study; the seconds in which parties worked, per process that plays them."""
    from pate_fed.flower.engine import run_apps

    nodes, engine = study.parties.num_clients, study.engine
    backend = engine.backend if coordinator.needs_hospitals else INLINE
    if coordinator.needs_hospitals and engine.played_on == CLUSTER and engine.ray_address is not None:
        return _run_on_cluster(server_app, study, coordinator, engine.ray_address)
    with telling_of_parties(folder, coordinator.note_faults):
        run_apps(
            server_app,
            _client_app,
            backend=backend,
            num_nodes=nodes,
            device=engine.device,
            gpus_per_client=engine.gpus_per_client,
            folder=folder,
        )
    return _seconds_worked(folder) / (1 if backend == INLINE else min(cores(), nodes))


def _run_on_cluster(server_app: Any, study: Study, coordinator: Coordinator, address: str) -> float:
    """As `_run_apps`, with the parties on a cluster's nodes, to which all they need is sent."""
    from clients.app import SentStudy, data_to_send, disk_of, play_parties
    from clients.kinds.votes import trained_together
    from pate_fed.flower.cluster import ClusterSettings, PartyKit, run_on_cluster

    engine, dataset = study.engine, coordinator.dataset
    if study.teacher.own:  # its code is sent as well, once it is imported
        load_part(study.teacher.name, "teacher")

    def together(device: str, processes: int) -> int:
        """Neighbours that train at once; never so many that a process has none."""
        most = -(-study.parties.num_clients // processes)
        return min(trained_together(study.teacher.name, device), most)

    def sent(device: str, processes: int) -> SentStudy:
        return SentStudy(
            study=replace(study, engine=replace(engine, device=device)).to_toml(),
            data=data_digest(dataset),
            records=records_digest(study, dataset),
            files=own_files(),
            together=together(device, processes),
        )

    seconds, processes = run_on_cluster(
        server_app,
        PartyKit(
            enter=play_parties,
            disk=disk_of,
            things=sent,
            data=data_to_send(dataset),
            together=together,
            tell=coordinator.note_faults,
        ),
        ClusterSettings(
            address=address,
            insecure=engine.insecure_cluster,
            shared_dir=engine.shared_dir,
            device=engine.device,
            gpus_per_client=engine.gpus_per_client,
        ),
        num_nodes=study.parties.num_clients,
    )
    return seconds / processes


def _client_app() -> Any:
    from clients.app import app

    return app


def _seconds_worked(folder: Path) -> float:
    """From the simulated parties' own logs, which a real hospital never shows."""
    from clients.log import read_events

    events = (event for state in folder.glob("party-*") for _, event in read_events(state) if event)
    return float(sum(event["seconds"] for event in events if event["event"] == "handled"))


def _write_site(study: Study, folder: Path, records: str | None) -> None:
    from clients.state_dir import SITE_VARIABLE, SimulatedSites

    (folder / "study.toml").write_text(study.to_toml(), encoding="utf-8")
    SimulatedSites(
        study=folder / "study.toml",
        state_dir=folder,
        parts=Path.cwd(),
        records=records,
        alone=study.engine.backend == INLINE,
    ).write(folder / "site.json")
    os.environ[SITE_VARIABLE] = str(folder / "site.json")
