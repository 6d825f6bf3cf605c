"""Flower's own way in: `flwr run` with pate_fed's apps, their settings, and Flower's mods around them."""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from pate_fed.flower import prepare_environment

prepare_environment()

from flwr.app import Context, Message, RecordDict
from flwr.common.config import flatten_dict
from flwr.supercore import object_ref

import pate_fed
from clients.site_files import LOCAL_SITE, SITE_VARIABLE
from pate_fed import Run, make_client_app, make_server_app
from pate_fed.cli import flower_app
from pate_fed.errors import InputError
from pate_fed.flower.engine import nested_settings
from pate_fed.flower.inline import InlineGrid
from pate_fed.flower.records import is_the_shim

ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "examples" / "flower_project"
SMALL: dict[str, Any] = {
    "study.seed": 1,
    "data.glyph.classes": 3,
    "data.glyph.private": 120,
    "data.glyph.public": 60,
    "teacher.name": "hog-linear",
    "aggregation.aggregator": "gnmax",
    "aggregation.sigma2": 2.0,
    "queries.labels": 4,
    "queries.max-queries": 4,
    "queries.evaluate": False,
    "privacy.allow-weak": True,
    "student.name": "encoder-head",
}


@pytest.fixture
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder of this test's own; what the apps put into the environment is taken back."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv(SITE_VARIABLE, "")
    monkeypatch.setattr("pate_fed.flower.engine._STILL_S", 0.01)  # an inline grid has all its nodes at once
    return tmp_path


def _context(**settings: Any) -> Context:
    return Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=settings)


def test_a_mod_of_flower_s_wraps_every_message_and_the_study_runs(
    apart: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    counted: list[str] = []

    def count(message: Message, context: Context, call_next: Callable[..., Message]) -> Message:
        counted.append(message.metadata.message_type)
        return call_next(message, context)

    grid = InlineGrid(make_client_app(mods=[count]), num_nodes=4)
    make_server_app({"aggregation": {"sigma2": 9.0}})(grid, _context(**SMALL))
    assert counted == ["train.join"] * 4 + ["query.answer"] * 4
    run = Run.load(apart / "pate_fed" / "flower" / "1")
    assert run.metrics["status"] == "success" and run.metrics["num_clients"] == 4
    assert run.result.study.terms.asks.aggregation.sigma2 == 2.0  # the run config goes before the app's study
    assert not list(run.path.glob("site.json"))
    assert "SUCCESS" in capfd.readouterr().out.splitlines()[-1]


def test_what_is_wrong_is_said_before_anything_is_asked(apart: Path) -> None:
    def run(**settings: Any) -> None:
        grid = InlineGrid(make_client_app(), num_nodes=2)
        pate_fed.server_app(grid, _context(**settings))

    with pytest.raises(InputError, match=r"250 parties in a federation of 2 SuperNodes.*num-supernodes=250"):
        run(**{"parties.num-clients": 250})
    with pytest.raises(InputError, match=r"queries\.label in the run config.*labels"):
        run(**{"queries.label": 3})
    with pytest.raises(InputError, match=r"run config data\.glyph\.classes: glyph is a value already"):
        run(**{"data.glyph": 1, "data.glyph.classes": 3})
    assert not list(apart.iterdir())


def test_a_study_from_a_file(apart: Path) -> None:
    (apart / "study.toml").write_text('[study]\nname = "told"\n[queries]\nlabels = 7\n', encoding="utf-8")
    settings = {"config": str(apart / "study.toml"), "run-dir": "here", "queries.labels": 9}
    study, run_dir = flower_app._study(None, settings, num_nodes=100)
    assert (study.name, study.queries.labels, study.parties.num_clients, run_dir) == ("told", 9, 100, "here")
    assert study.engine.backend == "ray"
    assert nested_settings({"a-b.c": 1, "a_b.d": 2}) == {"a_b": {"c": 1, "d": 2}}


def test_a_real_hospital_keeps_its_own_site(apart: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = str(apart / LOCAL_SITE)
    monkeypatch.setenv(SITE_VARIABLE, own)
    message: Any = object()
    assert flower_app._in_its_run(message, _context(), lambda asked, context: asked) is message
    assert os.environ[SITE_VARIABLE] == own


def test_flower_finds_the_apps_by_name_without_importing_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pate_fed:server_app", "pate_fed:client_app"):
        assert object_ref.validate(name) == (True, None)
    components = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"][
        "app"
    ]
    for name in components["components"].values():
        assert object_ref.validate(name, project_dir=PROJECT) == (True, None)


def test_what_the_page_says_of_a_project_is_what_flower_and_a_study_take() -> None:
    from flwr.cli.app import app as flwr_app  # it loads all of Flower's command line
    from typer.main import get_command

    page = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
    [settings] = re.findall(r"(?ms)^```\n(\[tool\.flwr.*?)^```", page)
    app = tomllib.loads(settings)["tool"]["flwr"]["app"]
    assert all(object_ref.validate(name) == (True, None) for name in app["components"].values())
    lines = [shlex.split(line) for line in re.findall(r"(?m)^flwr run (.+)$", page)]
    [words] = [line for line in lines if "--run-config" in line]
    given = tomllib.loads(words[words.index("--run-config") + 1])
    config = {name: value for name, value in (app["config"] | given).items() if name != "queries"}
    study, _ = flower_app._study(
        None, {**config, "queries.labels": given["queries"]["labels"]}, num_nodes=250
    )
    assert study.queries.labels == 800
    known = {option for each in get_command(flwr_app).commands["run"].params for option in each.opts}
    assert {word for line in lines for word in line if word.startswith("--")} <= known


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's own
def test_a_project_s_bundle_is_not_what_hospitals_take() -> None:
    from flwr.cli.build import build_fab_from_disk  # it loads all of Flower's command line

    assert not is_the_shim(build_fab_from_disk(PROJECT))


@pytest.mark.processes  # Flower looks at every file of the checkout, environments included
@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's own
def test_the_checkout_s_bundle_holds_no_code_and_is_not_what_hospitals_take() -> None:
    from flwr.cli.build import build_fab_from_disk

    bundle = build_fab_from_disk(ROOT)
    assert not is_the_shim(bundle)
    with zipfile.ZipFile(BytesIO(bundle)) as found:
        assert found.namelist() == ["pyproject.toml", "LICENSE", ".info/CONTENT"]


def test_the_checkout_s_own_settings_are_a_study(apart: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["version"] == pate_fed.__version__  # Flower takes no dynamic one
    app = project["tool"]["flwr"]["app"]
    for name in app["components"].values():
        assert object_ref.validate(name) == (True, None)
    study, run_dir = flower_app._study(None, flatten_dict(app["config"]), num_nodes=2)
    assert (study.parties.num_teachers, study.queries.labels, run_dir) == (250, 500, "")


def test_a_ray_that_takes_anyone_in_is_told_of(
    apart: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Flower starts it, before any code of ours: what is in its environment decides."""
    monkeypatch.setitem(sys.modules, "ray", object())
    (apart / "taken").touch()
    settings = SMALL | {"run-dir": str(apart / "taken")}
    for asks in (True, False):
        monkeypatch.setattr("pate_fed.flower.compat.token_mode", lambda asks=asks: asks)
        with pytest.raises(InputError, match="a file of that name exists"):
            pate_fed.server_app(InlineGrid(make_client_app(), num_nodes=2), _context(**settings))
        assert ("RAY_AUTH_MODE=token" in capfd.readouterr().err) != asks


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def _flower(folder: Path) -> Iterator[Callable[..., str]]:
    """Runs `flwr` commands with a home and a local SuperLink of their own, which ends afterwards."""
    port = str(_free_port())
    environment = {
        **os.environ,
        "FLWR_HOME": str(folder / "flwr"),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": port,
        "XDG_STATE_HOME": str(folder),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    }
    environment.pop(SITE_VARIABLE, None)

    def run(*words: str) -> str:
        done = subprocess.run(
            ["flwr", *words],
            cwd=folder / "project",
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
        )
        return done.stdout + done.stderr

    try:
        yield run
    finally:
        _end_superlink(port)


def _end_superlink(port: str) -> None:
    """Flower leaves it running, detached: found by the port that only this test uses."""
    import psutil

    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if port in words and any("flower-superlink" in word for word in words):
            family = [process, *process.children(recursive=True)]
            for each in family:
                each.send_signal(signal.SIGTERM)
            psutil.wait_procs(family, timeout=10)


def _run_to_its_end(flwr: Callable[..., str], *words: str) -> tuple[dict[str, Any], str]:
    """What `flwr list` says of a run once it ended, and what was told; no exit code tells of a failure."""
    told = flwr("run", *words, "--stream")
    [run] = json.loads(flwr("list", "--format", "json"))["runs"]
    while not run["status"].startswith("finished"):
        time.sleep(0.5)
        [run] = json.loads(flwr("list", "--format", "json"))["runs"]
    assert run["status"] == "finished:completed", told
    return run, told


@pytest.mark.slow
def test_flwr_run_plays_the_project_s_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real processes: Flower's SuperLink, its simulation process, Ray and the parties' actors."""
    monkeypatch.delenv("RAY_AUTH_MODE")  # which `prepare_environment` has set here
    shutil.copytree(PROJECT, tmp_path / "project")
    pyproject = tmp_path / "project" / "pyproject.toml"
    text = pyproject.read_text(encoding="utf-8").replace(
        "teachers-per-client = 125", "teachers-per-client = 5"
    )
    small = {key: value for key, value in SMALL.items() if key not in ("teacher.name", "queries.labels")}
    pyproject.write_text(text + "".join(f"{key} = {json.dumps(small[key])}\n" for key in small))
    with _flower(tmp_path) as flwr:
        run, told = _run_to_its_end(flwr, ".", "--run-config", "queries.labels=3")
    found = Run.load(tmp_path / "pate_fed" / "flower" / run["run-id"])
    assert found.metrics["status"] == "success" and found.metrics["num_teachers"] == 10
    assert found.metrics["queries_answered"] == 3
    assert found.result.study.terms.asks.teacher.name == "pate_study.apps:teacher"
    assert "query.answer: " in told  # what the project's own mod says
    assert "this Ray lets in whoever reaches its ports" in told


@pytest.mark.slow
def test_flwr_run_in_the_checkout_plays_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the page has it: nothing is installed anew, and Ray asks for a token."""
    monkeypatch.setenv("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION", "1")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    (tmp_path / "project").symlink_to(ROOT)
    tables: dict[str, Any] = {}
    for key, value in SMALL.items():
        section, _, name = key.rpartition(".")
        tables.setdefault(section, {})[name.replace("-", "_")] = value
    text = "".join(
        f"[{section}]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in held.items())
        for section, held in tables.items()
    )
    (tmp_path / "small.toml").write_text(text, encoding="utf-8")
    settings = f'config="{tmp_path / "small.toml"}" parties.teachers-per-client=5 queries.labels=3'
    with _flower(tmp_path) as flwr:
        run, told = _run_to_its_end(flwr, ".", "--run-config", settings)
    found = Run.load(tmp_path / "pate_fed" / "flower" / run["run-id"])
    assert found.metrics["status"] == "success" and found.metrics["num_teachers"] == 10
    assert "lets in whoever" not in told and "uv sync" not in told
