"""Nothing of the current folder is imported by a command; other rooms' tests run beside such files too."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from pate_fed.runtime.isolation import without_folder

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
OPTIONS = {
    "flower-simulation": ["--help"],
    "pate-fed": ["plan", "--epsilon", "0.01", "--teachers", "2"],
    "pate-fed-coordinator": ["--config", "none.toml", "--insecure"],
    "pate-fed-health": ["hospital", "nowhere"],
    "pate-fed-hospital": ["--hospital", "a", "--data", "none.csv", "--server", "h:1", "--insecure-anywhere"],
}
SHOWN = {
    "flower-simulation": (0, "usage: flower-simulation"),
    "pate-fed": (0, "labels"),
    "pate-fed-coordinator": (2, "none.toml"),
    "pate-fed-health": (1, "not alive"),
    "pate-fed-hospital": (2, "say it twice"),
}
# Children as the reproductions have them, and as a shell would start them.
WORKERS = """
from pate_fed.runtime import isolation
import subprocess, sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
if __name__ == "__main__":
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        print(list(pool.map(abs, [-1])), flush=True)
    subprocess.run([sys.executable, "-c", "import json, clients; print(clients.__file__)"], check=True)
"""


def _run(
    command: list[str], folder: Path, *, search_path: str = str(ROOT)
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": search_path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def _as_installed(folder: Path, name: str) -> str:
    """A console script as pip writes it."""
    module, _, function = SCRIPTS[name].partition(":")
    script = folder / "bin" / name
    script.parent.mkdir(exist_ok=True)
    text = f"import sys\nfrom {module} import {function}\nsys.exit({function}())\n"
    script.write_text(text, encoding="utf-8")
    return str(script)


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_a_command_imports_nothing_of_the_current_folder(
    name: str, tmp_path: Path, plant_foreign_code: Callable[[Path], None]
) -> None:
    plant_foreign_code(tmp_path)
    module = SCRIPTS[name].partition(":")[0].removesuffix(".main")
    code, text = SHOWN[name]
    # An empty entry of PYTHONPATH means the current folder, too.
    runs = [(["-m", module], str(ROOT)), ([_as_installed(tmp_path, name)], f":{ROOT}")]
    for command, search_path in runs:
        ended = _run([*command, *OPTIONS[name]], tmp_path, search_path=search_path)
        assert ended.returncode == code, ended.stderr
        assert text in ended.stdout + ended.stderr


def test_a_console_script_takes_no_pate_fed_of_the_current_folder_either(
    tmp_path: Path, plant_foreign_code: Callable[[Path], None]
) -> None:
    plant_foreign_code(tmp_path)
    (tmp_path / "pate_fed").mkdir()
    (tmp_path / "pate_fed" / "__init__.py").write_text("raise ImportError('foreign')\n", encoding="utf-8")
    ended = _run([_as_installed(tmp_path, "pate-fed"), "--version"], tmp_path)
    assert ended.returncode == 0, ended.stderr


def test_children_and_workers_import_nothing_of_it(
    tmp_path: Path, plant_foreign_code: Callable[[Path], None]
) -> None:
    plant_foreign_code(tmp_path)
    script = tmp_path / "bin" / "pate-fed"
    script.parent.mkdir()
    script.write_text(WORKERS, encoding="utf-8")
    ended = _run([str(script)], tmp_path, search_path=f".:{ROOT}")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["[1]", str(ROOT / "clients" / "__init__.py")]


@pytest.mark.parametrize("module", ["server", "client", "simulation", "cli"])
def test_another_package_of_that_name_is_said_before_anything_is_imported_from_it(
    module: str, tmp_path: Path, plant_foreign_code: Callable[[Path], None]
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    plant_foreign_code(other)
    for path in other.glob("*.py"):
        path.unlink()  # clients/ and server/ are left
    options = {
        "server": ["--config", "study.toml", "--insecure"],
        "client": ["--hospital", "a", "--data", "x", "--server", "h:1", "--insecure"],
        "simulation": ["--num-clients", "2"],
        "cli": ["plan", "--epsilon", "3"],
    }[module]
    ended = _run(["-m", f"pate_fed.{module}", *options], tmp_path, search_path=f"{other}:{ROOT}")
    assert ended.returncode == 2
    assert ended.stderr == (
        f"error: Python finds 'clients' in {other / 'clients'}, but pate_fed needs its own in "
        f"{ROOT / 'clients'}: install it into a virtual environment that holds nothing else of that name\n"
    )


def test_a_program_that_imports_us_keeps_its_search_path(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    ours = "import pate_fed.simulation, pate_fed.server, pate_fed.client, pate_fed.flower.processes\n"
    (own / "__init__.py").write_text(ours, encoding="utf-8")
    (own / "study.py").write_text("import own_part\n", encoding="utf-8")
    (tmp_path / "own_part.py").touch()
    ended = _run(["-m", "own.study"], tmp_path)
    assert ended.returncode == 0, ended.stderr


def test_without_folder(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    entries = ["", str(link), str(tmp_path), f"{tmp_path}/", str(tmp_path / "below"), "/usr/lib"]
    assert without_folder(entries, str(tmp_path)) == [str(tmp_path / "below"), "/usr/lib"]
