"""What every kind of study has at a hospital: a journal of its own, and refusals from the fixed list."""

from __future__ import annotations

import os
from pathlib import Path

from clients.journal import Journal
from pate_fed.errors import InputError
from pate_fed.protocol import Refusal, RefusalReply

__all__ = ["House", "sync_folder", "write_private"]


class House:
    """One hospital's side of a study; whatever goes out is made in a class that extends it."""

    def __init__(self, party: str, journal: Journal) -> None:
        self._party = party
        self.journal = journal

    def refuse(self, reason: Refusal) -> RefusalReply:
        """A refusal from the fixed list, noted in the hospital's own log."""
        self.journal.note("refused", reason=reason.name)
        return RefusalReply(party=self._party, code=reason.name)

    def unusable(self, error: InputError) -> RefusalReply:
        """The hospital's own data do not do; why is for its own eyes."""
        self.journal.note("data", sentence=str(error))
        return self.refuse(Refusal.DATA)


def write_private(path: Path, content: bytes, *, durable: bool = True) -> None:
    """All of it or nothing, for this user alone; on the disk when this returns.

    Not `durable` leaves that to the system: for a simulation, whose folder no power cut outlives.
    """
    part = path.with_name(path.name + ".part")
    handle = os.open(part, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    part.replace(path)
    if durable:
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Have the system keep the names in a folder: a new file without its name is lost in a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
