"""The folder in which a user's own state of pate_fed lies, wherever a command is started from."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["state_home"]


def state_home() -> Path:
    """`$XDG_STATE_HOME/pate_fed`, absolute; without the variable `~/.local/state/pate_fed`.

    A relative value of the variable counts as none (XDG Base Directory Specification, section 2): state that
    moves with the current folder would be forgotten.
    """
    named = Path(os.environ.get("XDG_STATE_HOME", ""))
    base = named if named.is_absolute() else Path.home() / ".local" / "state"
    return base / "pate_fed"
