"""What a plain installation can do, and what it says of the libraries that it lacks."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tables_study import write_tables_study

from pate_fed.cli.doctor import machine
from pate_fed.errors import EXTRA_OF, InputError, naming_extras, require_libraries

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ROOMS = ("pate_fed", "clients", "server")

# Runs commands in one process that finds none of the extras' libraries; prints their exit codes and output.
PLAIN = f"""
import contextlib, io, json, sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {set(EXTRA_OF)!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

def hidden_spec(name, package=None, found=__import__("importlib.util").util.find_spec):
    return None if name in {set(EXTRA_OF)!r} else found(name, package)

sys.meta_path.insert(0, Hidden())
import importlib.util
importlib.util.find_spec = hidden_spec
from pate_fed import client, simulation
from pate_fed.cli import main

mains = {{"flower-simulation": simulation.main, "client": client.main}}
told = []
for words in json.loads(sys.argv[1]):
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            code = mains[words[0]](words[1:]) if words[0] in mains else main.main(words)
        except SystemExit as end:
            code = end.code
    told.append([code, out.getvalue(), errors.getvalue()])
print(json.dumps(told))
"""

Told = list[tuple[int, str, str]]


def _plainly(*commands: str, folder: Path) -> Told:
    """Exit code, output and errors of each command where no extra is installed."""
    words = [command.split() for command in commands]
    found = subprocess.run(
        [sys.executable, "-c", PLAIN, json.dumps(words)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder / "state")},
    )
    assert found.returncode == 0, found.stderr
    return [tuple(each) for each in json.loads(found.stdout.splitlines()[-1])]


HELPS = ("--help", "plan --help", "audit --help")
STUDY = (
    "flower-simulation --config simulated.toml --backend inline --run-dir run --format json --quiet",
    "ledger show run",
    "ledger verify run",
    "report run",
    "predict run/student.npz pool.csv --format json",
    "hospital terms identity-north",
)
LACKING = {
    "flower-simulation --num-clients 20": ("torch", "images"),
    "flower-simulation --config simulated.toml --backend ray": ("ray", "simulation"),
    "label-dp --epsilon 1": ("torch", "images"),
    "reproduce pate-2017-adult": ("torch", "images"),
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    """Each command beside four hospitals' tables, all in one process: its imports take most of the time."""
    folder = tmp_path_factory.mktemp("plain")
    write_tables_study(folder)
    commands = (*HELPS, *STUDY, *LACKING)
    return dict(zip(commands, _plainly(*commands, folder=folder), strict=True))


def test_a_study_of_tables_needs_neither_torch_nor_ray(told: dict[str, tuple[int, str, str]]) -> None:
    for command in STUDY:
        code, _, errors = told[command]
        assert code == 0, errors
    assert json.loads(told[STUDY[0]][1])["status"] == "success"
    assert "gnmax: 10 asked" in told[STUDY[1]][1]


def test_accounting_and_planning_need_no_extra(told: dict[str, tuple[int, str, str]], tmp_path: Path) -> None:
    assert [told[command][0] for command in HELPS] == [0, 0, 0]
    code = f"import sys; {_blocking()}; import pate_fed; print(sorted(pate_fed.__all__))"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})


def _blocking() -> str:
    return f"sys.modules.update(dict.fromkeys({sorted(EXTRA_OF)!r}))"


def test_a_command_says_which_extra_it_lacks(told: dict[str, tuple[int, str, str]]) -> None:
    for command, (module, extra) in LACKING.items():
        code, _, errors = told[command]
        assert code == 2, command
        assert errors.startswith("error: ") and len(errors.splitlines()) == 1, errors
        assert errors.endswith(f" needs {module}: pip install 'pate-fed[{extra}]'\n"), errors


def test_doctor_does_not_call_a_missing_torch_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'pate-fed[images]'" in machine._gpu().text


def test_a_library_that_no_extra_brings_stays_a_fault() -> None:
    with pytest.raises(ModuleNotFoundError), naming_extras("this"):
        raise ModuleNotFoundError("No module named 'unheard_of'", name="unheard_of")
    with pytest.raises(InputError, match=r"^this needs ray: pip install 'pate-fed\[simulation\]'$"):
        with naming_extras("this"):
            raise ModuleNotFoundError("No module named 'ray.job'", name="ray.job")
    require_libraries("numpy", what="this")


def _named(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=!~; ]", text)[0].lower() for text in requirements}


def _closure(extra: str) -> set[str]:
    """The libraries of an extra, with those of the extras of ours that it takes in."""
    found: set[str] = set()
    for text in PROJECT["optional-dependencies"][extra]:
        if own := re.fullmatch(r"pate-fed\[(.+)\]", text):
            for other in own[1].split(","):
                found |= _closure(other)
        else:
            found |= _named([text]) | ({"ray"} if "flwr[simulation]" in text else set())
    return found


def test_every_extra_brings_what_errors_say_of_it() -> None:
    packages = {"PIL": "pillow"}
    for module, extra in EXTRA_OF.items():
        package = packages.get(module, module.lower())
        assert package in _closure(extra), module
        assert package not in _named(PROJECT["dependencies"]), module
    assert _closure("all") >= set.union(*map(_closure, ("images", "simulation", "dicom", "onnx", "hospital")))
    assert _closure("test") >= _closure("all")


def test_every_library_that_is_imported_is_declared() -> None:
    """By the plain installation where it is at a module's top and that module is read by plain commands."""
    declared = _named(PROJECT["dependencies"]) | _closure("all") | _closure("files") | _closure("bench")
    packages = {
        "PIL": "pillow",
        "sklearn": "scikit-learn",
        "dp_accounting": "dp-accounting",
        "grpc": "grpcio",
        **dict.fromkeys(("google", "httpx", "starlette"), "flwr"),  # whose own interfaces take them
    }
    optional = {"mlflow", "opendp"}  # a reader's own, asked for where they are used
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            for name in _imported(ast.parse(path.read_text(encoding="utf-8"))):
                root = name.partition(".")[0]
                if root not in {*sys.stdlib_module_names, *ROOMS, *optional}:
                    assert packages.get(root, root.lower()) in declared, (path, name)


def _imported(tree: Any) -> set[str]:
    found: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.expr):  # no statement stands inside one
            found |= _imported(node)
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return found
