"""Parts of one's own: a teacher, student, data set or mechanism by its code's name, "my_pkg.models:make".

A name is `module:attribute`, or that of an entry point in a group such as `pate_fed.teachers`. A module is
taken from what is installed; in a simulation also from a folder of the user's, which is searched last. Only
names, versions and digests travel between machines, never code: each side loads its own installation's.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import itertools
import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pate_fed.errors import InputError, IntegrityError
from pate_fed.structure import PART_NAME, check, nearest, setting
from pate_fed.structure.faults import describe, ends_process, forget_modules, note_module

if TYPE_CHECKING:
    from pate_fed.data import Dataset

GROUPS: Mapping[str, str] = {
    "teacher": "pate_fed.teachers",
    "student": "pate_fed.students",
    "dataset": "pate_fed.datasets",
    "aggregator": "pate_fed.aggregators",
    "partitioner": "pate_fed.partitioners",
    "feature map": "pate_fed.feature_maps",
    "query strategy": "pate_fed.query_strategies",
    "kind": "pate_fed.kinds",
    "benchmark method": "pate_fed.bench_methods",
}

IN_MEMORY = "in_memory:"
"""What names of objects begin with that are parts of this process alone."""

_HELD: dict[str, Any] = {}  # parts that were given as objects, by name: of this process alone
_numbers = itertools.count()  # no two objects of a process have one name

_folder: Path | None = None  # see `search_folder`

_MOST_NAME = 200
_OWN = ("pate_fed", "clients", "server")  # have names of their own in every list of choices


@dataclass(frozen=True, slots=True, kw_only=True)
class PartIdentity:
    """What two machines compare of a part: its full name, its distribution's version, its source's SHA-256.

    The digest is over all Python files of the module's top-level package, or over its one file.

    Raises:
        InputError: a field is not that.
    """

    name: str = setting(pattern=PART_NAME, most=_MOST_NAME, allowed="module:attribute")
    version: str | None = setting(None, most=100)
    digest: str = setting(pattern=re.compile(r"[0-9a-f]{64}"), allowed="a SHA-256 in hexadecimal")

    def __post_init__(self) -> None:
        check(self)

    @property
    def text(self) -> str:
        """Name, version and digest, as whoever reads an ε compares them."""
        version = f" {self.version}" if self.version else ""
        return f"{self.name}{version} (source SHA-256 {self.digest})"


def is_part(name: str, kind: str) -> bool:
    """Whether a name is `module:attribute`, or an installed entry point of the kind's group."""
    return PART_NAME.fullmatch(name) is not None or name in entry_points(kind)


def search_folder(folder: Path | None) -> None:
    """Let parts be found in a folder of the user's, after all that is installed: for simulations alone."""
    global _folder
    _folder = folder


def hold_part(part: Any, kind: str) -> tuple[str, bool]:
    """The name by which an object of this process is a part, and whether other processes know it, too.

    A function or class that its module has under its own name goes by that; anything else is kept here.
    Until `release_parts`, this process finds the very object by that name.
    """
    module, attribute = getattr(part, "__module__", None), getattr(part, "__qualname__", None)
    name = f"{module}:{attribute}"
    if module not in (None, "__main__", *_OWN) and PART_NAME.fullmatch(name) is not None:
        found: Any = sys.modules.get(str(module))
        for step in str(attribute).split("."):
            found = getattr(found, step, None)
        if found is part:
            return name, True
    of = getattr(part, "__name__", type(part).__name__)
    name = f"{IN_MEMORY}{kind.replace(' ', '_')}_{next(_numbers)}"
    name += f".{of}" if of.isidentifier() else ""
    _HELD[name] = part
    return name, False


def hold_dataset(dataset: Dataset, name: str) -> None:
    """Have this process take a data set that is loaded already for the part of that name."""
    _HELD[name] = dataset


def release_parts() -> None:
    """Keep no object any longer: a data set may be large."""
    _HELD.clear()
    forget_modules()


def load_part(name: str, kind: str) -> Any:
    """The object that a part's name stands for; its module is imported, which runs it.

    `kind` is a key of `GROUPS`.

    Raises:
        InputError: no such module or attribute, or the module fails; the message names the part.
    """
    full = full_name(name, kind)
    if full in _HELD:
        return _HELD[full]
    module, _, attribute = full.partition(":")
    found: Any = _import(module, f"{kind} {name!r}")
    for step in attribute.split("."):
        if not hasattr(found, step):
            hint = nearest(step, [known for known in dir(found) if not known.startswith("_")])
            raise InputError(f"{kind} {name!r}: {module} has no {attribute}{hint}")
        found = getattr(found, step)
    return found


def part_identity(name: str, kind: str) -> PartIdentity:
    """What the terms of a study say of a part, and a hospital holds its own against.

    Raises:
        InputError: no such module, or one without Python source.
    """
    full = full_name(name, kind)
    if full in _HELD:
        return object_identity(_HELD[full], full)
    top = full.partition(":")[0].partition(".")[0]
    module = _import(full.partition(":")[0], f"{kind} {name!r}")
    path = getattr(sys.modules[top], "__file__", None) or getattr(module, "__file__", None)
    if path is None or not path.endswith(".py"):
        raise InputError(f"{kind} {name!r}: {top} has no Python source to compare; a plain module is meant")
    source = Path(path)
    files = sorted(source.parent.rglob("*.py")) if source.name == "__init__.py" else [source]
    states = [each.stat() for each in files]
    written = tuple((state.st_ctime_ns, state.st_mtime_ns, state.st_size) for state in states)
    digest = _digest(source.parent, tuple(files), written)
    return PartIdentity(name=full, version=_version(top, source), digest=digest)


@lru_cache(maxsize=64)  # a process asks for every party and batch, and a package may be large
def _digest(folder: Path, files: tuple[Path, ...], written: tuple[tuple[int, ...], ...]) -> str:
    """SHA-256 over the files; `written` is when they were, and how long they are."""
    digest = hashlib.sha256()
    for each in files:
        held = each.read_bytes()
        digest.update(f"{each.relative_to(folder).as_posix()}\n{len(held)}\n".encode() + held)
    return digest.hexdigest()


def object_identity(part: Any, name: str) -> PartIdentity:
    """The identity of an object of this process: the digest is over its class's or its own source text.

    Where there is none, as of what was typed at a prompt, it is over the name.
    """
    kind = part if isinstance(part, type) or inspect.isroutine(part) else type(part)
    try:
        text = inspect.getsource(kind)
    except (OSError, TypeError):
        text = name
    return PartIdentity(name=name, digest=hashlib.sha256(text.encode()).hexdigest())


def own_identity(part: Any, name: str = "") -> PartIdentity:
    """The identity of an object, class or factory of this process, by the name of its class."""
    kind = part if isinstance(part, type) or hasattr(part, "__qualname__") else type(part)
    of_class = f"{kind.__module__}:{kind.__qualname__}".replace(".<locals>", "")
    return object_identity(part, name or of_class)


def own_files() -> dict[str, bytes]:
    """Python files of the folder of `search_folder` that this process has imported, by their paths there.

    Of a package all of its files, as its digest is over all. For a simulation's processes elsewhere.
    """
    if _folder is None:
        return {}
    folder, found = _folder.resolve(), dict[str, bytes]()
    tops = {name.partition(".")[0] for name in sys.modules} - {*_OWN, "__main__"}
    for top in tops:
        path = getattr(sys.modules.get(top), "__file__", None)
        if path is None or not path.endswith(".py"):
            continue
        source = Path(path).resolve()
        package = source.name == "__init__.py"
        if (source.parent.parent if package else source.parent) != folder:
            continue
        for each in sorted(source.parent.rglob("*.py")) if package else [source]:
            found[each.relative_to(folder).as_posix()] = each.read_bytes()
    return found


def require_same_part(ours: PartIdentity, theirs: PartIdentity) -> None:
    """Hold the part that is installed here against the one that a study names.

    Raises:
        IntegrityError: another name, version or source; the message has both digests.
    """
    if ours != theirs:
        raise IntegrityError(
            f"{theirs.name} differs from the study's: here version {ours.version or 'unknown'} with digest "
            f"{ours.digest}, in the study version {theirs.version or 'unknown'} with digest {theirs.digest}"
        )


def full_name(name: str, kind: str) -> str:
    """A part's name, or an entry point's, as module:attribute; an InputError where it is neither."""
    if PART_NAME.fullmatch(name) is not None and len(name) <= _MOST_NAME:
        return name
    known = entry_points(kind)
    if name in known and PART_NAME.fullmatch(known[name]) is not None:
        return known[name]
    raise InputError(
        f"{kind} {name!r}: module:attribute is meant, as my_package.models:make, or an installed entry point "
        f"of the group {GROUPS[kind]}{nearest(name, known)}"
    )


def entry_points(kind: str) -> dict[str, str]:
    """Parts of a kind that installed packages offer: module:attribute by the entry point's name."""
    return dict(_offered(GROUPS[kind], _installations()))


@lru_cache(maxsize=64)
def _offered(group: str, installations: tuple[tuple[str, int], ...]) -> Mapping[str, str]:
    """Entry points of a group; all packages are looked through, so once for each state of these folders."""
    return {each.name: each.value for each in metadata.entry_points(group=group)}


def _import(module: str, what: str) -> ModuleType:
    """The module, from what is installed, else from the folder of `search_folder`."""
    top = module.partition(".")[0]
    if top in _OWN:
        raise InputError(f"{what}: what is built in has a name of its own; a module of yours is meant")
    folder = _folder
    if folder is not None and top not in sys.modules and importlib.util.find_spec(top) is None:
        place = str(folder.absolute())
        if place not in sys.path:
            sys.path.append(place)
            importlib.invalidate_caches()
    note_module(top)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            where = f"nor in {folder}" if folder is not None else "install it here first"
            raise InputError(
                f"{what}: there is no module {error.name} among what is installed, {where}"
            ) from error
        raise InputError(f"{what}: {module} needs {error.name}, which is not installed") from error
    except BaseException as error:
        if ends_process(error):
            raise
        raise InputError(f"{what}: {module} fails when it is imported ({describe(error)})") from error


@lru_cache(maxsize=256)
def _version(top: str, source: Path) -> str | None:
    """The version of what brought that file; once for each."""
    names = _distributions(_installations()).get(top, [])
    return metadata.version(names[0]) if names else None


@lru_cache(maxsize=4)
def _distributions(installations: tuple[tuple[str, int], ...]) -> Mapping[str, list[str]]:
    """What is installed by module; a quarter of a second, so once for each state of these folders."""
    return metadata.packages_distributions()


def _installations() -> tuple[tuple[str, int], ...]:
    """Folders that something is installed in, with the time of their last change."""
    found = []
    for place in dict.fromkeys(sys.path):
        with suppress(OSError):
            if any(name.endswith((".dist-info", ".egg-info")) for name in os.listdir(place or ".")):
                found.append((place, os.stat(place or ".").st_mtime_ns))
    return tuple(found)
