"""The arrows of the house: who may import whom, held against every import in the code."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = [path for room in ("pate_fed", "clients", "server") for path in sorted((ROOT / room).rglob("*.py"))]

ENTRY_POINTS = ("pate_fed/simulation.py", "pate_fed/server.py", "pate_fed/client.py")


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def _forbidden(path: Path) -> tuple[str, ...]:
    relative = path.relative_to(ROOT).as_posix()
    room = relative.split("/")[0]
    rules = {"pate_fed": ("clients", "server"), "clients": ("server",), "server": ("clients",)}[room]
    if relative.startswith("pate_fed/cli/") or relative in ENTRY_POINTS:
        rules = ()  # these bring both sides together
    if room == "pate_fed" and not relative.startswith("pate_fed/flower/"):
        rules += ("flwr", "ray")
    if relative.startswith(("pate_fed/privacy/", "pate_fed/secure_sum/")):
        rules += ("torch", "torchvision", "pate_fed.learning")
    if relative.startswith("pate_fed/learning/"):
        rules += ("pate_fed.privacy",)
    return rules


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_follow_the_arrows(path: Path) -> None:
    rules = _forbidden(path)
    broken = {name for name in _imports(path) if any(name == r or name.startswith(r + ".") for r in rules)}
    assert not broken


def test_the_rule_catches_a_broken_arrow(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("def f():\n    from clients.app import app\n", encoding="utf-8")
    assert "clients.app" in _imports(bad)
    assert "clients" in _forbidden(ROOT / "pate_fed" / "study.py")


@pytest.mark.parametrize("room", ["privacy", "learning"])
def test_rooms_import_without_their_optional_neighbours(room: str) -> None:
    code = (
        "import sys\n"
        "for name in ('flwr', 'ray', 'opendp', 'dp_accounting'): sys.modules[name] = None\n"
        f"import pate_fed.{room} as room\n"
        "assert all(hasattr(room, name) for name in room.__all__)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_help_needs_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from pate_fed.simulation import _parser\n"
        "_parser().format_help()\n"
        "heavy = {'torch', 'ray', 'matplotlib', 'flwr', 'scipy', 'jinja2'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
