"""The folder in which a user's own state of pate_fed lies, wherever a command is started from."""

from __future__ import annotations

import os
from pathlib import Path

from pate_fed.errors import InputError


def state_home() -> Path:
    """`$XDG_STATE_HOME/pate_fed`, absolute; without the variable `~/.local/state/pate_fed`.

    A relative value of the variable counts as none (XDG Base Directory Specification, section 2): state that
    moves with the current folder would be forgotten.

    Raises:
        InputError: nothing says where it is.
    """
    named = Path(os.environ.get("XDG_STATE_HOME", ""))
    if named.is_absolute():
        return named / "pate_fed"
    try:
        return Path.home() / ".local" / "state" / "pate_fed"
    except RuntimeError as error:  # a user without an entry in the system's list, as in some containers
        raise InputError(
            "this user has no home folder for its account and state: set XDG_STATE_HOME to a folder that "
            "stays"
        ) from error
