"""This machine: the libraries, Flower's programs, noise, masks, disk, memory, clock and GPU."""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
import resource
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import pate_fed
from pate_fed.cli.doctor.findings import Good, Row, look
from pate_fed.errors import IntegrityError, PateFedError
from pate_fed.runtime.run_dir import check_writable

__all__ = ["Load", "rows_of_machine", "simulation"]

_GIB = 1024**3
_LEAST_ROOM, _MUCH_ROOM = 64 * 1024**2, _GIB  # a run leaves 3 MB, a hospital well below 100
_FLOWER = ("flower-superlink", "flower-supernode")
_DRAWS, _SIGMA = 4000, 40.0
_CLOCK_UNSET = 5  # TIME_ERROR of adjtimex(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What will run here: `what` in words, `bytes` of memory, `files` open at once, `places` on disk."""

    what: str
    bytes: float
    files: int
    places: Callable[[], Sequence[Path]]


def rows_of_machine(load: Load) -> Iterator[Row]:
    """What every study needs of a machine, quick checks first."""
    yield from look("libraries", _libraries)
    yield from look("disk", partial(_disk, load))
    yield from look("permissions", _permissions)
    yield from look("open files", partial(_open_files, load))
    yield from look("memory", partial(_memory, load))
    yield from look("clock", _clock)
    yield from look("masks", _masks)
    yield from look("noise", _noise)
    yield from look("Flower", _flower)
    yield from look("GPU", _gpu)


def simulation() -> Load:
    """What a simulation of 250 parties takes, with its default engine."""
    from pate_fed.data.cache import cache_root

    # Measured: 2.2 GB on one core, 2.7 GB on two, with 12 parties as with 250.
    return Load(
        what="a simulation",
        bytes=1.7e9 + 0.55e9 * len(os.sched_getaffinity(0)),
        files=1024,
        places=lambda: (Path("runs"), Path(tempfile.gettempdir()), cache_root()),
    )


def _nearest(path: Path) -> Path:
    """The folder that is there: the path itself, or the one in which it would be made."""
    return next(each for each in (path, *path.absolute().parents) if each.exists())


def _libraries() -> Good:
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    python = ".".join(map(str, sys.version_info[:3]))
    try:
        own = metadata.distribution("pate-fed")
    except metadata.PackageNotFoundError:
        words = "pate_fed runs from a folder, so what it needs is not known: install it with pip"
        return Good(said="", warnings=(words,))
    needed = [Requirement(text) for text in own.requires or ()]
    needed = [each for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})]
    wrong = []
    for each in needed:
        try:
            version = metadata.version(each.name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{each.name} is missing")
            continue
        if not each.specifier.contains(version, prereleases=True):
            wrong.append(f"{each.name} is {version}, not {each.specifier}")
    pythons = SpecifierSet(own.metadata["Requires-Python"] or "")
    if not pythons.contains(python):
        wrong.append(f"Python is {python}, not {pythons}")
    if wrong:
        raise PateFedError(f"{', '.join(wrong)}: install pate_fed again, in a fresh virtual environment")
    return Good(said=f"pate_fed {own.version}, Python {python}, {len(needed)} libraries of fitting versions")


def _disk(load: Load) -> Good:
    seen: dict[int, tuple[Path, int]] = {}
    for wanted in load.places():
        check_writable(wanted, option="folder")
        place = _nearest(wanted)
        seen.setdefault(place.stat().st_dev, (place, shutil.disk_usage(place).free))
    for place, free in seen.values():
        if free < _LEAST_ROOM:
            raise IntegrityError(f"{place}: {_size(free)} are free, a study would stop: make room")
    little = tuple(
        f"{place}: {_size(free)} are free: make room, or give another folder"
        for place, free in seen.values()
        if free < _MUCH_ROOM
    )
    said = ", ".join(f"{_size(free)} free in {place.absolute()}" for place, free in seen.values())
    return Good(said=said, warnings=little)


def _permissions() -> Good:
    mask = os.umask(0o077)
    os.umask(mask)
    if mask & 0o300:
        raise PateFedError(f"umask {mask:04o}: not even their owner can use new folders: umask 0077")
    if not mask & 0o002:
        return Good(said="", warnings=(f"umask {mask:04o}: everyone may change new files: umask 0077",))
    return Good(said=f"umask {mask:04o}; what is private is made for its owner alone in any case")


def _open_files(load: Load) -> Good:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    shown = "any number of" if soft == resource.RLIM_INFINITY else str(soft)
    if soft != resource.RLIM_INFINITY and soft < load.files:
        more = "" if hard == resource.RLIM_INFINITY or hard >= load.files else ", which root must allow"
        raise PateFedError(
            f"{soft} files may be open at once, {load.what} needs {load.files}: ulimit -n {load.files}{more}"
        )
    return Good(said=f"{shown} at once; {load.what} needs {load.files}")


def _memory(load: Load) -> Good:
    import psutil

    free = int(psutil.virtual_memory().available)
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        if Path(limit).is_file() and (most := Path(limit).read_text(encoding="ascii").strip()) != "max":
            free = min(free, int(most) - int(Path(used).read_text(encoding="ascii")))
    said = f"{_size(free)} are free, {load.what} takes about {_size(load.bytes)}"
    return Good(said=said, warnings=(f"{said}: end other programs first",) if free < load.bytes else ())


def _clock() -> Good:
    now = time.time()
    made = (Path(pate_fed.__file__)).stat().st_mtime
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < made - 60:
        raise PateFedError(f"the clock says {shown}, which is before pate_fed was installed: set the clock")
    if _kept_in_time() is False:
        words = "no time service keeps it: run NTP, or compare it with the coordinator's"
        rule = "a hospital may be 5 seconds ahead or 5 minutes behind"
        return Good(said="", warnings=(f"{shown}; {words}; {rule}",))
    return Good(said=f"{shown}{', kept by a time service' if _kept_in_time() else ''}")


def _kept_in_time() -> bool | None:
    """Whether the kernel's clock is set by a time service; None where it does not tell."""
    try:
        # All zeros ask and set nothing. A struct timex has 208 bytes at most.
        state = int(ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512)))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _CLOCK_UNSET


def _masks() -> Good:
    """Three parties in this process, sums that are known, and one party that is lost."""
    from pate_fed.secure_sum import CoordinatorSum, Demands, HospitalSum, Identity, SumRange

    study, names = "0" * 64, ("one", "two", "three")
    coordinator = CoordinatorSum(Identity.generate(), study=study)
    few = Demands(least_parties=3, three_agreed=True)
    parties = {
        name: HospitalSum.enrol(
            Identity.generate(), coordinator.enrol_request(), party=name, study=study, demands=few
        )
        for name in names
    }
    for party in parties.values():
        coordinator.admit(party.enrolment)
    roster = coordinator.close_roster()
    for party in parties.values():
        coordinator.note_pinned(party.pin(roster))
    votes = {name: np.arange(12) * (number + 1) for number, name in enumerate(names)}
    for number, lost in enumerate((None, "three")):
        digest = hashlib.sha256(bytes([number])).hexdigest()
        batch = coordinator.open_batch(
            batch=number, batch_digest=digest, length=12, sum_range=SumRange.votes(100)
        )
        for step, requests in enumerate(batch.rounds()):
            for name, request in requests.items():
                if step == 0 or name != lost:
                    batch.take(_answer(parties[name], request, votes[name]))
        wanted = sum(vote for name, vote in votes.items() if name != lost)
        if not np.array_equal(batch.total(), wanted):
            raise IntegrityError("a masked sum came out wrong: install pate_fed and cryptography again")
    return Good(said="the votes of three parties sum right under masks, also when one of them is lost")


def _answer(party: Any, request: Any, votes: Any) -> Any:
    return party.answer(request, lambda: votes)


def _noise() -> Good:
    from pate_fed.privacy import SystemNoise

    noise = SystemNoise()
    drawn, started = noise.discrete_gaussian(_DRAWS, sigma=_SIGMA), time.perf_counter()
    again = noise.discrete_gaussian(_DRAWS, sigma=_SIGMA)
    took = time.perf_counter() - started
    # Nine standard errors either way: chance does not bring that about.
    spread, middle = float(drawn.std()), float(drawn.mean())
    near = abs(spread / _SIGMA - 1) < 9 / math.sqrt(2 * _DRAWS)
    centred = abs(middle) < 9 * _SIGMA / math.sqrt(_DRAWS)
    if not (near and centred) or np.array_equal(drawn, again):
        raise PateFedError("the noise does not have the spread that it should: install opendp again")
    return Good(said=f"{noise.kind}, {took / _DRAWS * 1e6:.0f} µs a draw")


def _flower() -> Good:
    from pate_fed.flower import prepare_environment
    from pate_fed.flower.processes import version_of

    prepare_environment()
    if _temporary() is None:
        return Good(said="", warnings=("not started: no folder holds temporary files, set TMPDIR to one",))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(_FLOWER)) as aside:
        versions = list(aside.map(lambda name: version_of(name, home=Path(folder)), _FLOWER))
    return Good(said=f"SuperLink and SuperNode start (Flower {versions[0]})")


def _temporary() -> str | None:
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return None


def _gpu() -> Good:
    import torch

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count:
        names = ", ".join(
            f"{torch.cuda.get_device_name(each)} ({_size(torch.cuda.mem_get_info(each)[0])} free)"
            for each in range(count)
        )
        return Good(said=f"torch {torch.__version__} sees {names}")
    if told or Path("/dev/nvidiactl").exists():
        why = f" ({str(told[0].message).splitlines()[0]})" if told else ""
        words = f"there is one, but torch {torch.__version__} cannot use it{why}: fit driver and torch"
        return Good(said="", warnings=(words,))
    return Good(said=f"none that torch {torch.__version__} sees; all of it works on the CPU")


def _size(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{max(count, 0) / 1e6:.0f} MB"
