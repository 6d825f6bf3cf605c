"""The apps for a Flower project of one's own: `flwr run` plays a study on Flower's simulation engine.

`pate_fed:server_app` and `pate_fed:client_app` are what `[tool.flwr.app.components]` names. They are for
simulations, where all code is the user's own; real hospitals run `pate-fed-hospital`, which takes no code
from a bundle and knows neither.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pate_fed.cli.simulate import study_values
from pate_fed.config.backend import RAY
from pate_fed.config.study import Study, load_study, study_from_dict
from pate_fed.errors import InputError
from pate_fed.report.terminal import make_progress
from pate_fed.runtime.run_dir import fresh_run_dir, simulated_disks, state_home
from pate_fed.structure.faults import telling_of_parties

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp
    from flwr.clientapp.typing import Mod
    from flwr.serverapp import Grid, ServerApp

    from clients.state_dir import SimulatedSites

_SITE = "site.json"
# Keys of the run config that are no study's.
_CONFIG, _RUN_DIR = "config", "run_dir"
_OPEN_RAY = (
    "warning: this Ray lets in whoever reaches its ports, and runs their code: Flower started it without a "
    "token. Export RAY_AUTH_MODE=token and RAY_AUTH_TOKEN=$(openssl rand -hex 32) before flwr starts its "
    "SuperLink"
)


def make_client_app(mods: Sequence[Mod] = ()) -> ClientApp:
    """The ClientApp that plays a party of a simulated study, for a Flower project of your own.

    `mods` are Flower's modifiers, `mod(message, context, call_next) -> Message`; they wrap every message, the
    first outermost. A party finds its study by the run's id, on this machine.
    """
    from clients.app import make_app

    return make_app([*mods, _in_its_run])


def make_server_app(study: Study | Mapping[str, Any] | str | Path | None = None) -> ServerApp:
    """The ServerApp that coordinates a simulated study, for a Flower project of your own.

    `study` is as for `pate_fed.simulate`. The run config of Flower (`[tool.flwr.app.config]`,
    `flwr run --run-config`) has the keys of `study.toml` (`privacy.epsilon`, dashes as underscores) and goes
    before it; `config` names a study.toml in its place, `run-dir` where the run's files go, else a folder of
    the run's own in the user's state folder. Each SuperNode is one party. What ends the study before its time
    ends the run as failed.
    """
    from pate_fed.flower.engine import server_app_of

    return server_app_of(lambda grid, context: _coordinate(study, grid, context))


@lru_cache(maxsize=1)
def the_client_app() -> ClientApp:
    """`pate_fed.client_app`: without mods."""
    return make_client_app()


@lru_cache(maxsize=1)
def the_server_app() -> ServerApp:
    """`pate_fed.server_app`: the study is what the run config says."""
    return make_server_app()


def _in_its_run(message: Message, context: Context, call_next: Callable[..., Message]) -> Message:
    """Flower's mod that tells a simulated party where its study is; a real hospital's site stays its own."""
    from clients.state_dir import LOCAL_SITE, SITE_VARIABLE

    if Path(os.environ.get(SITE_VARIABLE, "")).name != LOCAL_SITE:
        os.environ[SITE_VARIABLE] = str(_folder_of(context) / _SITE)
    return call_next(message, context)


def _folder_of(context: Context) -> Path:
    """What the processes of one run know in common, for this user alone."""
    return state_home() / "flower" / str(context.run_id)


def _coordinate(given: Study | Mapping[str, Any] | str | Path | None, grid: Grid, context: Context) -> None:
    """Run the study that the app and its run config give, on the nodes of the grid."""
    from pate_fed.flower import rest_idle_threads
    from pate_fed.flower.compat import token_mode
    from pate_fed.flower.engine import count_nodes

    rest_idle_threads()
    from server.app import Coordinator

    started = time.perf_counter()
    shared = _folder_of(context)
    study, run_dir = _study(given, context.run_config, num_nodes=count_nodes(grid))
    progress = make_progress(quiet=False)
    if "ray" in sys.modules and not token_mode():
        progress.log(_OPEN_RAY)
    coordinator = Coordinator(
        study,
        run_dir=fresh_run_dir(run_dir or str(shared), study.name),
        quiet=False,
        progress=progress,
        stop=threading.Event(),
        started=started,
    )

    def start(server_app: ServerApp) -> None:
        with simulated_disks() as disks:
            (disks / "study.toml").write_text(study.to_toml(), encoding="utf-8")
            shared.mkdir(mode=0o700, parents=True, exist_ok=True)
            _sites(disks, coordinator.records).write(shared / _SITE)
            try:
                with telling_of_parties(disks, coordinator.note_faults):
                    server_app(grid, context)
            finally:
                (shared / _SITE).unlink()

    coordinator.run(start)
    coordinator.conclude(as_json=False)
    if coordinator.error is not None:
        raise coordinator.error


def _study(
    given: Study | Mapping[str, Any] | str | Path | None, run_config: Mapping[str, Any], *, num_nodes: int
) -> tuple[Study, str]:
    """The resolved study of the run, and its run directory, "" where none is named."""
    from pate_fed.flower.engine import nested_settings

    settings = nested_settings(run_config)
    config, run_dir = str(settings.pop(_CONFIG, "")), str(settings.pop(_RUN_DIR, ""))
    values, where = (load_study(Path(config)), config) if config else study_values(given)
    values = _over(values, settings)
    parties = values.setdefault("parties", {})
    if isinstance(parties, dict):
        if parties.setdefault("num_clients", num_nodes) != num_nodes:
            raise InputError(
                f"a study of {parties['num_clients']} parties in a federation of {num_nodes} SuperNodes: "
                f"give flwr run --federation-config num-supernodes={parties['num_clients']}, or leave "
                "parties.num_clients out"
            )
    values["engine"] = _over(values.get("engine", {}), {"backend": RAY})
    study = study_from_dict(values, where=f"the run config over {where}")
    study.require_private()
    return study.resolve(), run_dir


def _over(values: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Nested dictionaries with those of `settings` over them; what is no table gives way."""
    merged = dict(values) if isinstance(values, Mapping) else {}
    for key, value in settings.items():
        merged[key] = _over(merged.get(key), value) if isinstance(value, Mapping) else value
    return merged


def _sites(disks: Path, records: str | None) -> SimulatedSites:
    from clients.state_dir import SimulatedSites

    return SimulatedSites(study=disks / "study.toml", state_dir=disks, records=records)
