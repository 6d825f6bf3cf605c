"""What a hospital is in either kind of study: agreed terms, a journal, and refusals from a fixed list."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from clients.journal import Journal
from clients.site import BaseSite, Objection
from clients.state_dir import TERMS_FILE
from pate_fed.disk import write_private
from pate_fed.errors import InputError, IntegrityError
from pate_fed.protocol.label_terms import LabelTerms
from pate_fed.protocol.messages import Refusal, RefusalReply, Reply, Terms
from pate_fed.secure_sum import RefusedError, SumRefusal

__all__ = ["BaseHospital"]

T = TypeVar("T", Terms, LabelTerms)
R = TypeVar("R", bound=Reply)


class BaseHospital(ABC, Generic[T]):
    """One hospital's side of a study; whatever goes out is made in a class that extends it.

    A new process may serve every message, so nothing is kept in memory between them: agreed terms, answered
    questions and the state of sums lie in `folder`, the site's state directory or one in it.
    """

    def __init__(self, site: BaseSite, folder: Path) -> None:
        self._site, self._party, self._folder = site, site.party, folder
        self.journal = Journal(site.state_dir, answered=folder / "answered")

    def refuse(self, reason: Refusal) -> RefusalReply:
        """A refusal from the fixed list, noted in the hospital's own log."""
        self.journal.note("refused", reason=reason.name)
        return RefusalReply(party=self._party, code=reason.name)

    def unusable(self, error: InputError) -> RefusalReply:
        """The hospital's own data do not do; why is for its own eyes."""
        self.journal.note("data", sentence=str(error))
        return self.refuse(Refusal.DATA)

    @staticmethod
    @abstractmethod
    def _read_terms(text: str) -> T:
        """Terms of this kind of study from their JSON."""

    def _agreed(self) -> T | None:
        """The terms that this hospital agreed to; None before."""
        path = self._folder / TERMS_FILE
        return self._read_terms(path.read_text(encoding="utf-8")) if path.exists() else None

    def _agree(self, terms: T) -> None:
        """Bind this hospital to the terms, once."""
        if not (self._folder / TERMS_FILE).exists():
            self._write(TERMS_FILE, terms.to_json().encode())

    def _write(self, name: str, content: bytes) -> None:
        write_private(self._folder / name, content, durable=not self._site.simulated)

    def _objects(self, found: Objection | None) -> Refusal | None:
        """The reason of an objection, if there is one; its sentence is for the hospital's own eyes."""
        if found is None:
            return None
        reason, sentence = found
        self.journal.note("policy", reason=reason.name, sentence=f"{reason.value}: {sentence}")
        return reason

    def _answered(self, answer: Callable[[], R]) -> R | RefusalReply:
        """The answer, or a refusal where the hospital's own data or what came cannot be used."""
        try:
            return answer()
        except InputError as error:
            return self.unusable(error)
        except IntegrityError as error:
            self.journal.fault(error)
            return self.refuse(_refusal_for(error))


def _refusal_for(error: IntegrityError) -> Refusal:
    """What the coordinator is told where a hospital does not enrol."""
    if not isinstance(error, RefusedError):
        return Refusal.FAULT
    known = {SumRefusal.VERSION: Refusal.VERSION, SumRefusal.COORDINATOR: Refusal.COORDINATOR}
    return known.get(error.reason, Refusal.MALFORMED)
