"""Parts of a user's own that fail once a study runs, each at a line that is known; `FAULT` says how.

They pass what is tried on them before anything is asked.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from own_parts import GeometricMax, brightness

FAULT, MAIN = "PATE_FED_TESTS_FAULT", "PATE_FED_TESTS_MAIN"
"""Environment variables: which fault, and the process in which data and partitions do not fail."""

_TRIED = 24, 12  # records on which a teacher is tried, labels on which a student is


class Odd(BaseException):
    """No Exception, cannot be pickled, and has no text."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(lambda: (one, two))

    def __str__(self) -> str:
        raise RuntimeError("no text")


def plain() -> None:
    raise ValueError("bad luck")


def in_library() -> None:
    np.zeros(3).reshape(2, 2)


in_lambda = lambda: 1 / 0  # noqa: E731


def in_c() -> None:
    struct.unpack("i", b"")


def leaving() -> None:
    sys.exit(3)


def odd() -> None:
    raise Odd(1, 2)


def interrupted() -> None:
    raise KeyboardInterrupt


FAULTS: dict[str, tuple[Callable[[], object], str]] = {
    "plain": (plain, "ValueError: bad luck"),
    "in_library": (in_library, "ValueError: cannot reshape array of size 3 into shape (2,2)"),
    "in_lambda": (in_lambda, "ZeroDivisionError: division by zero"),
    "in_c": (in_c, "error: unpack requires a buffer of 4 bytes"),
    "leaving": (leaving, "SystemExit: 3"),
    "odd": (odd, "Odd: its text cannot be made (RuntimeError)"),
}


def told(fault: str) -> str:
    """How a fault is told, with its line."""
    function, words = FAULTS[fault]
    code = function.__code__
    line = code.co_firstlineno + (code.co_name != "<lambda>")
    return f"{words}, at {code.co_filename}, line {line}, in {code.co_name}"


def _fail() -> None:
    """The fault that is asked for; of a folder, the next one that nobody has met, whichever process asks."""
    name = os.environ[FAULT]
    if os.path.isdir(name):
        for each in FAULTS:
            with suppress(FileExistsError):
                os.close(os.open(os.path.join(name, each), os.O_CREAT | os.O_EXCL))
                FAULTS[each][0]()
    (FAULTS[name][0] if name in FAULTS else interrupted)()


class Teacher:
    """Fails when it is fitted to a party's records; as a student, to released labels."""

    def fit(self, x: Any, y: Any) -> None:
        """Learn nothing."""
        if len(x) not in _TRIED:
            _fail()

    def predict(self, x: Any) -> Any:
        """The first class."""
        return np.zeros(len(x), dtype=np.int64)


def network(shape: tuple[int, ...], classes: int) -> Any:
    """A network that fails while it learns."""
    from torch import nn

    class Failing(nn.Sequential):
        def forward(self, images: Any) -> Any:
            if self.training:
                _fail()
            return super().forward(images)

    return Failing(nn.Flatten(), nn.Linear(int(np.prod(shape)), classes))


class Mechanism(GeometricMax):
    """Fails when it releases under noise that is not seeded."""

    def release(self, totals: Any, noise: Any) -> int:
        """A label on which it is tried."""
        if type(noise).__name__ != "SeededNoise":
            _fail()
        return 0


def features(public: Any) -> Callable[[Any], Any]:
    """A feature map that fails on what is not public."""
    encode, known = brightness(public), {each.tobytes() for each in public}

    def checked(inputs: Any) -> Any:
        if not known.issuperset(each.tobytes() for each in inputs):
            _fail()
        return encode(inputs)

    return checked


def strategy(seen: Any) -> Any:
    """A query strategy that fails when it is asked for more than one."""
    if seen.wanted > 1:
        _fail()
    return seen.left


def _elsewhere() -> bool:
    return os.environ.get(MAIN) != str(os.getpid())


def load() -> dict[str, Any]:
    """A data set that fails in processes of parties."""
    if _elsewhere():
        _fail()
    labels = np.arange(180) % 3
    rows = labels[:, None] + np.zeros((180, 2))
    private = {"private_images": rows[:120], "private_labels": labels[:120]}
    return {**private, "public_images": rows[120:], "public_labels": labels[120:]}


def deal(labels: Any, parties: int, seed: int) -> Any:
    """A partition that fails in processes of parties."""
    if _elsewhere():
        _fail()
    return np.array_split(np.arange(len(labels)), parties)
