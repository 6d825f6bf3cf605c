"""Fixtures that several rooms share."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, settings

# Before torch is loaded, here and in the processes that tests start: their networks are too small for two
# threads, which would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Some hundred processes are started here, and each would compile the same code anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# What tests write is synced some ten thousand times, a wait for the disk each: it lies in memory where there
# is room for it, and goes when a test has passed.
MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:
    if min(shutil.disk_usage(MEMORY).free, psutil.virtual_memory().available) > 4 * 2**30:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

ROOT = Path(__file__).resolve().parent.parent
# A worker takes a whole room: what the room's tests share is made once, and what they compute, as a plan's
# curves, is found again. The longest begin first, so that no worker is left with one at the end.
LONGEST = [
    *("deployment", "privacy", "server", "learning", "reproduce", "cli", "label_dp", "clients", "kinds"),
    *("test_same_studies.py", "test_pretend_card.py", "secure_sum", "test_examples.py", "data", "runtime"),
    *("flower", "test_api.py", "config", "test_extras.py"),
]
PLANNED = {
    f"{module}.py"
    for module in (
        *("config/test_auto", "config/test_defaults", "config/test_study", "cli/test_plan"),
        "docs/test_generated",
    )
}


def _room(nodeid: str) -> str:
    """The tests that a worker takes together; those that plan noise belong to the accounting's."""
    path = nodeid.partition("::")[0].partition("tests/")[2]
    return "privacy" if path in PLANNED else path.partition("/")[0]


# A student's file for use without this package takes a third of a small study's time. Where studies run for
# something else it is left out; `tests/learning` and the modules that look at one in a run directory make it.
WITHOUT_EXPORT = {"server", "kinds", "cli", "clients", "reproduce", "test_same_studies.py"}
LOOK_AT_EXPORT = {
    "server/test_simulation",
    "server/test_label_study",
    "cli/test_label_dp",
    "cli/test_predict",
}

# A machine that does other things as well fails no test for that.
# The same examples in every run: what turns red is the change, not the day.
settings.register_profile(
    "pate_fed", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("pate_fed")

# Searches for garbage among what is only being imported take a third of the collection's time, and at the end
# of a session as long again.
gc.disable()
atexit.register(gc.unfreeze)


def pytest_configure(config: pytest.Config) -> None:
    """A worker ends as soon as all else is done: to take apart what it imported is three seconds' work."""
    if hasattr(config, "workerinput"):
        atexit.register(os._exit, 0)


def pytest_collection_finish() -> None:
    """From here on garbage is looked for, among what the tests make."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long rooms first, in whatever order they have among themselves."""
    places = {room: place for place, room in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(_room(item.nodeid), len(places)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Whole rooms to each worker, with `--dist loadscope`."""
    from xdist.scheduler import LoadScopeScheduling

    class Rooms(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _room(nodeid)

    return Rooms(config, log) if config.getvalue("dist") == "loadscope" else None


@pytest.fixture(autouse=True, scope="session")
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of the tests' own for users' state: nothing is written to the home of whoever runs them."""
    folder = tmp_path_factory.mktemp("state-home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder))
        yield folder


@pytest.fixture(autouse=True, scope="module")
def no_export(request: pytest.FixtureRequest) -> Iterator[None]:
    """Studies of these modules write no student.ts."""
    module = request.path.relative_to(ROOT / "tests").with_suffix("").as_posix()
    with pytest.MonkeyPatch.context() as patch:
        if _room(request.node.nodeid) in WITHOUT_EXPORT and module not in LOOK_AT_EXPORT:
            for owner in ("export", "student"):
                patch.setattr(f"pate_fed.learning.students.{owner}.write_torchscript", lambda *_, **__: None)
        yield


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference cases and real data beside a developer's checkout; absent elsewhere."""
    folder = Path(os.environ.get("PATE_FED_SHARED", ROOT.parent / "shared"))
    if not (folder / "oracle").is_dir():
        pytest.skip(f"no reference data at {folder} (set PATE_FED_SHARED)")
    return folder


# Names of ours, of libraries, and of what Python itself imports late.
FOREIGN = [
    *("clients.py", "clients/__init__.py", "clients/policy.py", "server.py", "server/__init__.py"),
    *("torch.py", "numpy.py", "yaml.py", "scipy.py", "flwr.py", "ray.py", "psutil.py"),
    *("argparse.py", "json.py", "threading.py"),
]
# An editable installation's finder imports __future__ before any code of ours runs.
if not any(name.startswith("__editable__") for name in sys.modules):
    FOREIGN.append("__future__.py")


@pytest.fixture
def plant_foreign_code(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], None]]:
    """Lays modules with names of ours and of libraries into a folder; none is imported by the test's end."""
    marks = tmp_path_factory.mktemp("imported")

    def plant(folder: Path) -> None:
        for name in FOREIGN:
            path, mark = folder / name, marks / name.replace("/", ".")
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"open({str(mark)!r}, 'a')\nraise ImportError\n", encoding="utf-8")

    yield plant
    assert [path.name for path in marks.iterdir()] == []


@pytest.fixture
def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Callable[[Sequence[str]], int], Sequence[str]], tuple[str, str]]:
    """Calls a command with wrong input in `tmp_path`, where it changes nothing; its output and error."""
    monkeypatch.chdir(tmp_path)

    def refused(main: Callable[[Sequence[str]], int], options: Sequence[str]) -> tuple[str, str]:
        before = sorted(tmp_path.rglob("*"))
        assert main(options) == 2
        assert sorted(tmp_path.rglob("*")) == before
        captured = capsys.readouterr()
        return captured.out, captured.err

    return refused


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What `pate_fed.disk` syncs from here on, in turn, as its name was then."""
    paths: list[str] = []
    sync = os.fsync

    def watch(handle: int) -> None:
        paths.append(os.readlink(f"/proc/self/fd/{handle}"))
        sync(handle)

    monkeypatch.setattr("pate_fed.disk.os.fsync", watch)
    return paths
