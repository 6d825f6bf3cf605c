"""What every kind of study has at a hospital: a journal of its own, and refusals from the fixed list."""

from __future__ import annotations

from clients.journal import Journal
from pate_fed.errors import InputError
from pate_fed.protocol.messages import Refusal, RefusalReply

__all__ = ["BaseHospital"]


class BaseHospital:
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
