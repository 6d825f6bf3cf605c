"""Every error that a user can meet, with the exit code that a command ends with.

PateFedError              1  a fault of the program
├── InputError            2  the user's input is wrong: what, where, and what would be right
├── BudgetError           3  the privacy budget would be passed
├── QuorumError           4  too few hospitals are left
├── PolicyError           5  a hospital's policy refuses
└── IntegrityError        6  the ledger or a message failed its check
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager

# Libraries that a plain installation lacks, and the extra in pyproject.toml that brings each.
EXTRA_OF: dict[str, str] = {
    "PIL": "images",
    "fontTools": "images",
    "fsspec": "cluster",
    "matplotlib": "images",
    "onnx": "onnx",
    "pydicom": "dicom",
    "ray": "simulation",
    "torch": "images",
    "torchvision": "images",
}


class PateFedError(Exception):
    """Base of all errors with a message meant for the user; `exit_code` is the command's status."""

    exit_code: int = 1


class InputError(PateFedError, ValueError):
    """The user's input is wrong."""

    exit_code = 2


class BudgetError(PateFedError):
    """A spend would pass the privacy budget; nothing was spent."""

    exit_code = 3


class QuorumError(PateFedError):
    """Fewer hospitals answer than the study's quorum."""

    exit_code = 4


class PolicyError(PateFedError):
    """A hospital's own policy forbids what was asked."""

    exit_code = 5


class IntegrityError(PateFedError):
    """The ledger or a message is not what it claims to be."""

    exit_code = 6


def require_libraries(*modules: str, what: str) -> None:
    """Hold that libraries of extras are installed, without importing them; `what` needs them.

    Raises:
        InputError: one is not; the message has the line to type.
    """
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise _lacking(module, what)


@contextmanager
def naming_extras(what: str) -> Iterator[None]:
    """Let a failed import inside, of a library that an extra brings, be a sentence; `what` needs it.

    Raises:
        InputError: such a library is missing; the message has the line to type.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in EXTRA_OF:
            raise
        raise _lacking(module, what) from error


@contextmanager
def naming_refusal(what: str, then: str = "") -> Iterator[None]:
    """Let what the system refuses inside be a sentence: `what`, its reason in brackets, and `then`.

    Raises:
        InputError: it does.
    """
    try:
        yield
    except OSError as error:
        raise InputError(f"{what} ({error.strerror}){then}") from error


@contextmanager
def naming_mismatch() -> Iterator[None]:
    """Let a torchvision that fails as it is imported inside, made for another torch, be a sentence.

    Raises:
        InputError: it does; the message says what to install.
    """
    try:
        yield
    except (RuntimeError, OSError) as error:
        raise InputError(
            f"torchvision does not load beside this torch ({str(error).partition(chr(10))[0]}): install both "
            "from the same index, as docs/install.md has it"
        ) from error


def _lacking(module: str, what: str) -> InputError:
    return InputError(f"{what} needs {module}: pip install 'pate-fed[{EXTRA_OF[module]}]'")
