"""A disk that is full, gone or read-only: a sentence about what holds, not a fault of the program."""

from __future__ import annotations

import errno
from pathlib import Path

from pate_fed.errors import IntegrityError

__all__ = ["in_words"]

_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO})


def in_words(error: BaseException, run_dir: Path) -> BaseException:
    """The error itself, or what it means where it is the disk's."""
    if not isinstance(error, OSError) or error.errno not in _DISK:
        return error
    told = IntegrityError(
        f"{run_dir}: cannot be written ({error.strerror}); nothing was released that is not on the ledger, "
        "and once there is room the same command goes on"
    )
    told.__cause__ = error
    return told
