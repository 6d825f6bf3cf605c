"""What `pate-fed doctor` finds, and this machine: libraries, Flower, noise, masks, disk, memory, clock."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import math
import os
import resource
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import pate_fed
from pate_fed.data.source import cache_root
from pate_fed.errors import IntegrityError, PateFedError
from pate_fed.flower import prepare_environment
from pate_fed.flower.processes import version_of
from pate_fed.flower.transport import has_transport, require_transport
from pate_fed.privacy import SystemNoise
from pate_fed.runtime.run_dir import check_writable

if TYPE_CHECKING:
    from pate_fed.secure_sum import CoordinatorSum, Demands, HospitalSum

OK, WARNING, PROBLEM = "ok", "warning", "problem"
_WITHHELD = "shown on a terminal only, as it may tell of single records: run this without a pipe"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check that found no problem, and what it warns of.

    `file_text` stands in a file in place of `text`, where that has figures of a hospital's records.
    """

    text: str = ""
    warnings: tuple[str, ...] = ()
    file_text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the table. `text` is for the user's own terminal, `file_text` for a file.

    `exit_code` is what the study's own command would end with, 0 unless this is a problem.
    """

    check: str
    severity: str
    text: str
    file_text: str
    exit_code: int = 0


def run_check(check: str, function: Callable[[], CheckResult], *, private: bool = False) -> Iterator[Finding]:
    """The findings of one check. What is wrong with `private` things stands in no file."""

    def finding(severity: str, text: str, exit_code: int = 0) -> Finding:
        file_text = _WITHHELD if private else text
        return Finding(check=check, severity=severity, text=text, file_text=file_text, exit_code=exit_code)

    try:
        result = function()
    except PateFedError as error:
        yield finding(PROBLEM, str(error), error.exit_code)
        return
    except Exception as error:  # a broken machine breaks checks in ways that nobody foresaw
        text = f"the check failed with {type(error).__name__}: {error}"
        yield finding(PROBLEM, text, PateFedError.exit_code)
        return
    for text in result.warnings:
        yield finding(WARNING, text)
    if not result.warnings:
        yield Finding(check=check, severity=OK, text=result.text, file_text=result.file_text or result.text)


_GIB = 1024**3
_LEAST_ROOM, _MUCH_ROOM = 64 * 1024**2, _GIB  # a run leaves 3 MB, a hospital well below 100
_TRIED = {  # the lowest and the newest line of each library that .ci/run was seen to pass with
    "Python": ("3.11", "3.13"),
    "cryptography": ("46.0", "50.0"),
    "dp-accounting": ("0.6", "0.6"),
    "flwr": ("1.39", "1.42"),
    "fonttools": ("4.40", "4.68"),
    "fsspec": ("2025.7", "2026.9"),
    "grpcio": ("1.70", "1.85"),
    "jinja2": ("3.1", "3.1"),
    "matplotlib": ("3.10", "3.11"),
    "numpy": ("2.0", "2.5"),
    "onnx": ("1.16", "1.23"),
    "packaging": ("23.0", "25.0"),
    "pillow": ("10.0", "13.0"),
    "psutil": ("5.9", "7.2"),
    "pydicom": ("3.0", "3.0"),
    "ray": ("2.55", "2.55"),
    "rich": ("14.0", "14.3"),
    "safetensors": ("0.4", "0.8"),
    "scikit-learn": ("1.5", "1.9"),
    "scipy": ("1.13", "1.18"),
    "sqlalchemy": ("2.0", "2.1"),
    "threadpoolctl": ("3.1", "3.8"),
    "torch": ("2.6", "2.15"),
    "torchvision": ("0.21", "0.29"),
}
_FLOWER = ("flower-superlink", "flower-supernode")
_DRAWS, _SIGMA = 4000, 40.0
_ROUNDING = 1e-3  # of 32 bits, where a ReLU may fall on the other side
_CLOCK_UNSET = 5  # TIME_ERROR of adjtimex(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """What `what` needs of this machine: bytes of `memory`, `files` open at once, `folders` on its disk.

    `deploys`: it is a process of a study over the network.
    """

    what: str
    memory: float
    files: int
    folders: Callable[[], Sequence[Path]]
    deploys: bool = False


def machine_findings(requirements: Requirements, device: str = "auto") -> Iterator[Finding]:
    """What every study needs of a machine, quick checks first; `device` is what it is to learn on."""
    yield from run_check("libraries", _libraries)
    yield from run_check("disk", partial(_disk, requirements))
    yield from run_check("permissions", _permissions)
    yield from run_check("open files", partial(_open_files, requirements))
    yield from run_check("memory", partial(_memory, requirements))
    yield from run_check("clock", _clock)
    yield from run_check("masks", _masks)
    yield from run_check("noise", _noise)
    yield from run_check("Flower", partial(_flower, requirements))
    yield from run_check("GPU", partial(_gpu, device))


def simulation() -> Requirements:
    """What a simulation of 250 parties needs, with its default engine."""
    # Measured: 2.2 GB on one core, 2.7 GB on two, with 12 parties as with 250.
    return Requirements(
        what="a simulation",
        memory=1.7e9 + 0.55e9 * len(os.sched_getaffinity(0)),
        files=1024,
        folders=lambda: (Path("runs"), Path(tempfile.gettempdir()), cache_root()),
    )


def _libraries() -> CheckResult:
    python = ".".join(map(str, sys.version_info[:3]))
    try:
        own = metadata.distribution("pate-fed")
    except metadata.PackageNotFoundError:
        unknown = "pate_fed runs from a folder, so what it needs is not known: install it with pip"
        return CheckResult(warnings=(unknown,))
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
    versions = {"Python": python}
    for name in _TRIED:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    untried = _untried(versions)
    text = f"pate_fed {own.version}, Python {python}, {len(needed)} libraries of fitting versions"
    return CheckResult(text if untried else f"{text}, each of them tried", untried)


def _untried(versions: Mapping[str, str]) -> tuple[str, ...]:
    """A sentence on those of which this release of pate_fed was not tried with such a version."""
    beyond = []
    for name, version in versions.items():
        lowest, found, newest = map(_line, (_TRIED[name][0], version, _TRIED[name][1]))
        if not lowest <= found <= newest:
            beyond.append(f"{name} {version} (was: {' to '.join(_TRIED[name])})")
    if not beyond:
        return ()
    return (f"not tried with {', '.join(beyond)}: it may well work, and the tests say whether it does",)


def _line(version: str) -> tuple[int, int]:
    return Version(version).major, Version(version).minor


def _disk(requirements: Requirements) -> CheckResult:
    seen: dict[int, tuple[Path, int]] = {}
    for wanted in requirements.folders():
        folder = check_writable(wanted, option="folder")
        seen.setdefault(folder.stat().st_dev, (folder, shutil.disk_usage(folder).free))
    for folder, free in seen.values():
        if free < _LEAST_ROOM:
            raise IntegrityError(f"{folder}: {_size(free)} are free, a study would stop: make room")
    little = tuple(
        f"{folder}: {_size(free)} are free: make room, or give another folder"
        for folder, free in seen.values()
        if free < _MUCH_ROOM
    )
    text = ", ".join(f"{_size(free)} free in {folder.absolute()}" for folder, free in seen.values())
    return CheckResult(text, little)


def _permissions() -> CheckResult:
    mask = os.umask(0o077)
    os.umask(mask)
    if mask & 0o300:
        raise PateFedError(f"umask {mask:04o}: not even their owner can use new folders: umask 0077")
    if not mask & 0o002:
        return CheckResult(warnings=(f"umask {mask:04o}: everyone may change new files: umask 0077",))
    return CheckResult(f"umask {mask:04o}; what is private is made for its owner alone in any case")


def _open_files(requirements: Requirements) -> CheckResult:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    what, needed = requirements.what, requirements.files
    shown = "any number of" if soft == resource.RLIM_INFINITY else str(soft)
    if soft != resource.RLIM_INFINITY and soft < needed:
        more = "" if hard == resource.RLIM_INFINITY or hard >= needed else ", which root must allow"
        raise PateFedError(
            f"{soft} files may be open at once, {what} needs {needed}: ulimit -n {needed}{more}"
        )
    return CheckResult(f"{shown} at once; {what} needs {needed}")


def _memory(requirements: Requirements) -> CheckResult:
    import psutil

    free = int(psutil.virtual_memory().available)
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        if Path(limit).is_file() and (most := Path(limit).read_text(encoding="ascii").strip()) != "max":
            free = min(free, int(most) - int(Path(used).read_text(encoding="ascii")))
    text = f"{_size(free)} are free, {requirements.what} takes about {_size(requirements.memory)}"
    return CheckResult(text, (f"{text}: end other programs first",) if free < requirements.memory else ())


def _clock() -> CheckResult:
    now = time.time()
    made = (Path(pate_fed.__file__)).stat().st_mtime
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < made - 60:
        raise PateFedError(f"the clock says {shown}, which is before pate_fed was installed: set the clock")
    synchronised = _is_synchronised()
    if synchronised is False:
        alone = (
            f"{shown}; no time service keeps it: run NTP, or compare it with the coordinator's; a hospital "
            "may be 5 seconds ahead or 5 minutes behind"
        )
        return CheckResult(warnings=(alone,))
    return CheckResult(f"{shown}{', kept by a time service' if synchronised else ''}")


def _is_synchronised() -> bool | None:
    """Whether the kernel's clock is set by a time service; None where it does not tell."""
    try:
        # All zeros ask and set nothing. A struct timex has 208 bytes at most.
        state = int(ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512)))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _CLOCK_UNSET


def _masks() -> CheckResult:
    """Three parties in this process, sums that are known, and one party that is lost."""
    from pate_fed.secure_sum import Demands, SumRange
    from pate_fed.secure_sum.messages import BatchReply

    names = ("one", "two", "three")
    few = Demands(least_parties=3, three_agreed=True)
    coordinator, parties = enrolled(names, study="0" * 64, demands=few)
    votes = {name: np.arange(12) * (number + 1) for number, name in enumerate(names)}
    for number, lost in enumerate((None, "three")):
        digest = hashlib.sha256(bytes([number])).hexdigest()
        batch = coordinator.open_batch(
            batch=number, batch_digest=digest, length=12, sum_range=SumRange.votes(100)
        )
        for step, requests in enumerate(batch.rounds()):
            for name, request in requests.items():
                if step == 0 or name != lost:
                    reply = parties[name].answer(request, partial(votes.__getitem__, name))
                    assert isinstance(reply, BatchReply)  # what a request of a batch is answered with
                    batch.take(reply)
        wanted = sum(vote for name, vote in votes.items() if name != lost)
        if not np.array_equal(batch.total(), wanted):
            raise IntegrityError("a masked sum came out wrong: install pate_fed and cryptography again")
    return CheckResult("the votes of three parties sum right under masks, also when one of them is lost")


def enrolled(
    names: Sequence[str], *, study: str, demands: Demands | None = None
) -> tuple[CoordinatorSum, dict[str, HospitalSum]]:
    """The coordinator and the parties of a sum under masks, all in this process, who know each other."""
    from pate_fed.secure_sum import CoordinatorSum, HospitalSum, Identity

    coordinator = CoordinatorSum(Identity.generate(), study=study)
    how: dict[str, Any] = {"study": study, "demands": demands}
    parties = {
        name: HospitalSum.enrol(Identity.generate(), coordinator.enrol_request(), party=name, **how)
        for name in names
    }
    for party in parties.values():
        coordinator.admit(party.enrolment)
    coordinator.close_roster()
    for name, party in parties.items():
        coordinator.note_pinned(party.pin(coordinator.pin_request(name)))
    return coordinator, parties


def _noise() -> CheckResult:
    noise = SystemNoise()
    drawn, started = noise.discrete_gaussian(_DRAWS, sigma=_SIGMA), time.perf_counter()
    again = noise.discrete_gaussian(_DRAWS, sigma=_SIGMA)
    took = time.perf_counter() - started
    # Nine standard errors either way: chance does not bring that about.
    spread, middle = float(drawn.std()), float(drawn.mean())
    near = abs(spread / _SIGMA - 1) < 9 / math.sqrt(2 * _DRAWS)
    centred = abs(middle) < 9 * _SIGMA / math.sqrt(_DRAWS)
    if not (near and centred) or np.array_equal(drawn, again):
        raise PateFedError("the noise does not have the spread that it should: install pate_fed again")
    return CheckResult(f"{noise.kind}, {took / _DRAWS * 1e6:.0f} µs a draw")


def _flower(requirements: Requirements) -> CheckResult:
    if requirements.deploys:
        require_transport(requirements.what)
    elif not has_transport():
        simulated = (
            f"Flower {metadata.version('flwr')} simulates studies; hospitals' processes need another one"
        )
        return CheckResult(f"{simulated}: pip install 'pate-fed[deploy]'")
    prepare_environment()
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        return CheckResult(warnings=("not started: no folder holds temporary files, set TMPDIR to one",))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(_FLOWER)) as aside:
        versions = list(aside.map(lambda name: version_of(name, home=Path(folder)), _FLOWER))
    return CheckResult(f"SuperLink and SuperNode start (Flower {versions[0]})")


def _gpu(device: str = "auto") -> CheckResult:
    if importlib.util.find_spec("torch") is None:
        return CheckResult("not looked for: tables need none; for images: pip install 'pate-fed[images]'")
    import torch

    from pate_fed.learning.tensors import resolve_device

    with warnings.catch_warnings(record=True) as complaints:
        warnings.simplefilter("always")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count:
        names = ", ".join(
            f"{torch.cuda.get_device_name(each)} ({_size(torch.cuda.mem_get_info(each)[0])} free)"
            for each in range(count)
        )
        tried = _tried(resolve_device(device))
        return CheckResult(f"torch {torch.__version__} sees {names}{tried}")
    if device not in ("auto", "cpu"):
        resolve_device(device)  # which says that it is not there
    if complaints or Path("/dev/nvidiactl").exists():
        why = f" ({str(complaints[0].message).splitlines()[0]})" if complaints else ""
        unusable = f"there is one, but torch {torch.__version__} cannot use it{why}: fit driver and torch"
        return CheckResult(warnings=(unusable,))
    return CheckResult(f"none that torch {torch.__version__} sees; all of it works on the CPU")


def _tried(device: str) -> str:
    """What a network of ours and its gradients say on a card beside the CPU; nothing of a CPU."""
    import torch

    from pate_fed.learning.networks.classifiers import build_classifier
    from pate_fed.learning.tensors import seeded

    if device == "cpu":
        return ""
    found = []
    for each in ("cpu", device):
        with seeded(0, "cpu"):
            network, images = build_classifier("deep-cnn", (16, 16, 1), 3).eval(), torch.rand(8, 1, 16, 16)
        network.to(each)
        try:
            with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
                said = network(images.to(each)).square().sum()
                gradients = torch.autograd.grad(said, list(network.parameters()))
        except RuntimeError as error:
            raise PateFedError(f"{device} does not compute: {str(error).splitlines()[0]}") from error
        found.append(torch.cat([own.flatten().cpu() for own in gradients]))
    off = float((found[1] - found[0]).norm() / found[0].norm())
    if not off < _ROUNDING:
        raise PateFedError(
            f"{device} computes other gradients than the CPU, by {off:.1%}: fit driver and torch"
        )
    return f"; gradients on {device} are the CPU's to {off:.0e}"


def _size(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{max(count, 0) / 1e6:.0f} MB"
