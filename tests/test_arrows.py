"""The arrows of the house: who may import whom, held against every import in the code."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Set
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("pate_fed", "clients", "server")
SOURCES = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in SOURCES
}

# The entry points, thin, and the commands; everything else in pate_fed is below both parties.
ABOVE_BOTH = ("pate_fed/cli/", "pate_fed/simulation.py", "pate_fed/server.py", "pate_fed/client.py")
# What neither the privacy room nor secure summation may know: learning, the wire, the parties' affairs.
_OUTSIDE = (
    "torch",
    "torchvision",
    "sklearn",
    *(f"pate_fed.{room}" for room in ("bench", "cli", "data", "flower", "identity", "label_dp", "learning")),
    *(f"pate_fed.{room}" for room in ("protocol", "report", "reproduce", "runtime")),
)
_ABOVE_MECHANISMS = tuple(
    f"pate_fed.privacy.{name}" for name in ("accounting", "filter", "ledger", "planning")
)
# What lies below a path must not know what stands above it.
FORBIDDEN = {
    "pate_fed/structure/": (*_OUTSIDE, "pate_fed.secure_sum", "pate_fed.privacy", "pate_fed.config"),
    "pate_fed/privacy/": (*_OUTSIDE, "pate_fed.secure_sum", "pate_fed.config"),
    "pate_fed/privacy/bounds/": (*_ABOVE_MECHANISMS, "pate_fed.privacy.mechanisms"),
    "pate_fed/privacy/protection.py": (
        *_ABOVE_MECHANISMS,
        "pate_fed.privacy.mechanisms",
        "pate_fed.privacy.bounds",
    ),
    "pate_fed/privacy/mechanisms/": _ABOVE_MECHANISMS,
    "pate_fed/privacy/accounting.py": ("pate_fed.privacy.ledger", "pate_fed.privacy.planning"),
    "pate_fed/privacy/ledger/": ("pate_fed.privacy.planning",),
    "pate_fed/privacy/planning/": ("pate_fed.privacy.ledger",),
    "pate_fed/secure_sum/": (*_OUTSIDE, "pate_fed.privacy", "pate_fed.config"),
    "pate_fed/learning/": ("pate_fed.privacy",),
    "pate_fed/runtime/": ("pate_fed.flower",),
    "clients/": ("server",),
    "server/": ("clients",),
    # What protects knows nothing of what presents.
    "server/release.py": ("pate_fed.report",),
    "server/state.py": ("pate_fed.report",),
}


def _imports(tree: ast.AST) -> Iterator[str]:
    """Every import, also inside functions; those for the type checker alone are left aside."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr):
            continue  # no statement stands inside one
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in MODULES else node.module
        else:
            yield from _imports(node)


@cache
def _read(path: Path) -> tuple[frozenset[str], tuple[str, ...], tuple[tuple[str, str], ...]]:
    """A module's imports, those of ours by string, and underscore names that it takes, each with whose it is.

    Kept trees would be searched for garbage.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    by_string = (f"{path.relative_to(ROOT)}:{line}: {name}" for line, name in _by_string(tree))
    return frozenset(_imports(tree)), tuple(by_string), tuple(_underscored(tree))


def _underscored(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = (each.name for each in node.names)
            yield from ((node.module, name) for name in names if re.match(r"_(?!_)", name))


def _imported(path: Path) -> frozenset[str]:
    return _read(path)[0]


def _by_string(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of each import of a module of ours through a string."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Constant):
            continue
        name = str(node.args[0].value)
        if name.split(".")[0] in ROOMS and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield node.lineno, name


def _forbidden(path: Path) -> tuple[str, ...]:
    relative = path.relative_to(ROOT).as_posix()
    rules = tuple(name for above, names in FORBIDDEN.items() if relative.startswith(above) for name in names)
    if relative.startswith("pate_fed/"):
        if not relative.startswith(ABOVE_BOTH):
            rules += ("clients", "server")
        if not relative.startswith("pate_fed/flower/"):
            rules += ("flwr", "ray")
    return rules


def test_imports_follow_the_arrows() -> None:
    broken = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in SOURCES
        for rules in [_forbidden(path)]
        for name in sorted(_imported(path))
        if any(name == rule or name.startswith(rule + ".") for rule in rules)
    ]
    assert not broken


def test_the_rule_catches_a_broken_arrow() -> None:
    bad = "def f():\n    from clients.app import app\n    from pate_fed.privacy import accounting\n"
    assert list(_imports(ast.parse(bad))) == ["clients.app", "pate_fed.privacy.accounting"]
    assert "clients" in _forbidden(ROOT / "pate_fed" / "study.py")
    assert "clients" not in _forbidden(ROOT / "pate_fed" / "simulation.py")
    assert "pate_fed.privacy.accounting" in _forbidden(ROOT / "pate_fed" / "privacy" / "bounds" / "new.py")


@pytest.mark.parametrize("room", ["privacy", "learning"])
def test_rooms_import_without_their_optional_neighbours(room: str) -> None:
    code = (
        "import sys\n"
        "for name in ('flwr', 'ray', 'opendp', 'dp_accounting'): sys.modules[name] = None\n"
        f"import pate_fed.{room} as room\n"
        "assert all(hasattr(room, name) for name in room.__all__)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.parametrize("room", ["privacy", "secure_sum"])
def test_accounting_and_summation_load_nothing_of_learning_or_the_wire(room: str) -> None:
    code = (
        "import sys\n"
        f"import pate_fed.{room}\n"
        "heavy = {'torch', 'sklearn', 'flwr', 'ray', 'opendp', 'dp_accounting'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_help_needs_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from pate_fed.simulation import make_parser\n"
        "make_parser().format_help()\n"
        "heavy = {'torch', 'ray', 'matplotlib', 'flwr', 'scipy', 'jinja2'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_the_house_has_at_most_24_rooms_at_the_top() -> None:
    inside = [
        path for path in (ROOT / "pate_fed").iterdir() if path.suffix == ".py" or list(path.glob("*.py"))
    ]
    rooms = [path.name for path in inside if path.name != "__init__.py"] + ["clients", "server"]
    assert len(rooms) <= 24, sorted(rooms)  # the last is the benchmark


def test_every_module_has_a_test_of_its_name_in_the_same_room() -> None:
    """Those of more than 40 lines; what a package gives out is tested where it is made."""
    tests = ROOT / "tests"
    lacking = [
        path.relative_to(ROOT)
        for path in SOURCES
        for place in [path.relative_to(ROOT / "pate_fed" if path.is_relative_to(ROOT / "pate_fed") else ROOT)]
        if path.name != "__init__.py" and not (tests / place.parent / f"test_{path.name}").is_file()
    ]
    long = [str(path) for path in lacking if len((ROOT / path).read_text(encoding="utf-8").splitlines()) > 40]
    assert not long


# Lines and files that a room may have: who adds raises a number in the same commit, and says what for.
BUDGET = {
    "clients": (5_130, 21),
    "pate_fed": (1_270, 8),
    "pate_fed/bench": (1_350, 8),
    "pate_fed/cli": (9_300, 38),
    "pate_fed/config": (2_390, 10),
    "pate_fed/data": (5_120, 16),
    "pate_fed/flower": (3_750, 17),
    "pate_fed/identity": (1_260, 6),
    "pate_fed/kinds": (6_600, 24),
    "pate_fed/learning": (8_040, 34),
    "pate_fed/privacy": (13_260, 43),
    "pate_fed/protocol": (570, 3),
    "pate_fed/report": (5_900, 19),
    "pate_fed/reproduce": (2_540, 13),
    "pate_fed/runtime": (1_020, 8),
    "pate_fed/secure_sum": (3_970, 15),
    "pate_fed/structure": (1_170, 5),
    "server": (5_670, 21),
}


def _lines_by_room() -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for path in SOURCES:
        top, *inner = path.relative_to(ROOT).parts
        room = f"{top}/{inner[0]}" if top == "pate_fed" and len(inner) > 1 else top
        lines, files = found.get(room, (0, 0))
        found[room] = lines + len(path.read_text(encoding="utf-8").splitlines()), files + 1
    return found


def test_every_room_keeps_its_budget_of_lines_and_files() -> None:
    found = _lines_by_room()
    assert found.keys() == BUDGET.keys()
    beyond = {
        room: (size, BUDGET[room])
        for room, size in found.items()
        if size[0] > BUDGET[room][0] or size[1] > BUDGET[room][1]
    }
    assert not beyond, "lines and files, and what the room may have"


def test_no_module_of_ours_is_imported_by_string() -> None:
    """The type checker sees no import through a string."""
    found = [each for path in SOURCES for each in _read(path)[1]]
    assert not found, "\n".join(found)
    assert list(_by_string(ast.parse("import_module('clients.app')"))) == [(1, "clients.app")]


def test_only_packages_list_their_names() -> None:
    listing = [
        str(path.relative_to(ROOT))
        for path in SOURCES
        if path.name != "__init__.py"
        and re.search(r"^__all__\b", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert not listing


def _room(module: str) -> str:
    """The package that a module lies in."""
    return (
        module if (ROOT.joinpath(*module.split(".")) / "__init__.py").is_file() else module.rpartition(".")[0]
    )


def test_no_room_takes_an_underscore_name_of_another() -> None:
    taken = [
        f"{name} takes {taken} of {module}"
        for name, path in MODULES.items()
        for module, taken in _read(path)[2]
        if module in MODULES and _room(module) != _room(name)
    ]
    assert not taken
    assert list(_underscored(ast.parse("from a.b import c, _d, __e"))) == [("a.b", "_d")]


def test_there_is_no_circle_of_imports() -> None:
    """Not inside functions either: no module needs, by whatever way, one that needs it."""
    needs = {name: _imported(path) & MODULES.keys() for name, path in MODULES.items()}
    circles = [circle for circle in _strongly_connected(needs) if len(circle) > 1]
    assert not circles, "\n".join(" <-> ".join(sorted(circle)) for circle in circles)


def test_the_search_finds_a_circle() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"a"}}
    assert {frozenset(part) for part in _strongly_connected(graph)} == {
        frozenset("abc"),
        frozenset("d"),
        frozenset("e"),
    }


def _strongly_connected(graph: Mapping[str, Set[str]]) -> list[set[str]]:
    """Components of which every node reaches every other (Kosaraju): by finishing time, then backwards."""
    back: dict[str, set[str]] = {name: set() for name in graph}
    for name, used in graph.items():
        for each in used:
            back[each].add(name)
    finished: list[str] = []
    seen: set[str] = set()
    for name in graph:
        _visit(name, graph, seen, finished)
    parts: list[set[str]] = []
    seen = set()
    for name in reversed(finished):
        part: list[str] = []
        _visit(name, back, seen, part)
        if part:
            parts.append(set(part))
    return parts


def _visit(name: str, graph: Mapping[str, Set[str]], seen: set[str], finished: list[str]) -> None:
    if name in seen:
        return
    seen.add(name)
    for each in graph[name]:
        _visit(each, graph, seen, finished)
    finished.append(name)
