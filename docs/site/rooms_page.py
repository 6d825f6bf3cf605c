"""The page of rooms: which room imports which, as a picture, and the first sentence of each."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from functools import cache
from pathlib import Path

from pictures import BLUE, MUTED, RED, Picture
from tables import cell, page, table

ROOT = Path(__file__).resolve().parents[2]
# The programs and the functions of the package itself stand above all, as the commands do, which they share.
_COMMANDS = ("simulation", "server", "client", "testing")
# The other files that lie in no folder are what all rooms share, as this room is.
_SHARED = "structure"
_WIDTH, _HIGH, _STEP = 1080, 36, 76

Graph = Mapping[str, Set[str]]


def _modules() -> dict[str, Path]:
    """Every module of ours with its file."""
    paths = [path for top in ("clients", "server", "pate_fed") for path in (ROOT / top).rglob("*.py")]
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted(paths)
    }


def _room(module: str) -> str:
    """The room of a module."""
    top, *below = module.split(".")
    if top != "pate_fed":
        return top
    if not below or below[0] in _COMMANDS:
        return "cli"
    return below[0] if (ROOT / top / below[0]).is_dir() else _SHARED


def _imports(tree: ast.AST, modules: Mapping[str, Path]) -> Iterator[str]:
    """The modules of ours that a file imports, also inside of functions, but for the type checker."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr):
            continue
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module in modules:
            for each in node.names:
                whole = f"{node.module}.{each.name}"
                yield whole if whole in modules else node.module
        else:
            yield from _imports(node, modules)


@cache
def arrows() -> Graph:
    """Which rooms each room imports. The package's own name (its version) counts as no room."""
    modules = _modules()
    found: dict[str, set[str]] = {_room(module): set() for module in modules}
    for module, path in modules.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found[_room(module)] |= {_room(each) for each in _imports(tree, modules) if each != "pate_fed"}
    return {room: frozenset(others - {room}) for room, others in found.items()}


def _reached(graph: Graph, room: str) -> set[str]:
    """All rooms below a room, over any number of arrows."""
    seen, open_ = set[str](), [room]
    while open_:
        for below in graph[open_.pop()] - seen:
            seen.add(below)
            open_.append(below)
    return seen


def floors(graph: Graph) -> list[list[str]]:
    """The rooms by floor, the lowest first: each above all that it imports. A circle shares its floor."""
    reached = {room: _reached(graph, room) for room in graph}
    circle = {room: {other for other in reached[room] if room in reached[other]} | {room} for room in graph}

    @cache
    def floor(room: str) -> int:
        below = {each for other in circle[room] for each in graph[other]} - circle[room]
        return 1 + max(map(floor, below), default=-1)

    found = defaultdict(list)
    for room in sorted(graph):
        found[floor(room)].append(room)
    return [found[number] for number in range(len(found))]


def _drawn(graph: Graph) -> Iterator[tuple[str, str]]:
    """The arrows that follow from no others; all arrows of a circle."""
    reached = {room: _reached(graph, room) for room in graph}
    for room, others in graph.items():
        for other in sorted(others):
            apart = [each for each in others - {other} if room not in reached[each] | {each}]
            if room in reached[other] or not any(
                other in reached[each] and each not in reached[other] for each in apart
            ):
                yield room, other


def _path(room: str) -> str:
    return f"{room}/" if room in ("clients", "server") else f"pate_fed/{room}/"


def _files(room: str) -> list[str]:
    """The files beside the folders that belong to a room."""
    if room == "cli":
        return [f"{name}.py" for name in _COMMANDS]
    alone = sorted(path.name for path in (ROOT / "pate_fed").glob("*.py") if path.stem != "__init__")
    return [name for name in alone if name[:-3] not in _COMMANDS] if room == _SHARED else []


def rooms_picture() -> Picture:
    """Rooms on their floors; an arrow leads to what a room imports."""
    graph, stories = arrows(), floors(arrows())
    top = 24 + _STEP * (len(stories) - 1)
    picture = Picture(
        _WIDTH, top + _HIGH + 24, "Rooms of the repository by floor; each imports only what lies below it"
    )
    place: dict[str, tuple[float, float]] = {}
    for number, story in enumerate(stories):

        def over(room: str) -> float:
            below = [place[each][0] for each in graph[room] if each in place]
            return sum(below) / len(below) if below else _WIDTH / 2

        for column, room in enumerate(sorted(story, key=lambda room: (over(room), room))):
            share = _WIDTH / len(story)
            lean = 60 * (-1) ** number if len(story) == 1 else 0  # else all arrows would lie on one line
            place[room] = share * (column + 0.5) + lean, top - _STEP * number
    for room, other in _drawn(graph):
        (x, y), (to_x, to_y) = place[room], place[other]
        if y < to_y:
            slide = max(-50.0, min(50.0, (to_x - x) / 8))
            picture.arrow(x + slide, y + _HIGH, to_x - slide, to_y - 2)
        else:
            side = 62 if to_x > x else -62
            picture.arrow(x + side, y + _HIGH / 2, to_x - side, to_y + _HIGH / 2, colour=RED)
    for room, (x, y) in place.items():
        files = _files(room)
        half = 62 + 35 * len(files)
        picture.box(x - half, y, 2 * half, _HIGH, edge=BLUE if room in ("clients", "server") else MUTED)
        shown = ", ".join([_path(room).removeprefix("pate_fed/"), *files])
        picture.text(x, y + 23, shown, size=14, bold=True)
    return picture


def _first_sentence(room: str) -> str:
    text = ast.get_docstring(ast.parse((ROOT / _path(room) / "__init__.py").read_text(encoding="utf-8")))
    return " ".join((text or "").split("\n\n")[0].split())


def rooms_page() -> str:
    """The page's text."""
    rows = [
        (
            str(number),
            ", ".join(f"`{name}`" for name in (_path(room), *_files(room))),
            cell(_first_sentence(room)),
        )
        for number, story in reversed(list(enumerate(floors(arrows()))))
        for room in story
    ]
    lines = [
        "# Rooms of the repository",
        "",
        "Each room imports only what lies below it; an arrow that follows from others is not drawn.",
        "`clients/` and `server/` never import each other. `tests/test_arrows.py` holds every import.",
        "Each room's `__init__.py` says where to begin. A hospital's reviewer reads `clients/` and",
        "`pate_fed/secure_sum/`: nothing else decides what leaves the house. An auditor reads `server/` and",
        "`pate_fed/privacy/`: nothing else decides what is released and what it costs.",
        "",
        "![Rooms on their floors, and what each imports](assets/rooms.svg)",
        "",
        *table(("floor", "room", "what is in it"), rows),
        "Files without a folder lie in `pate_fed/`; its own functions belong to `cli/`. Beside the rooms lie",
        "`deploy/`, `docs/`, `examples/`, and `tests/`, which mirrors the rooms.",
    ]
    return page(lines)
