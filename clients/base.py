"""What a hospital is in every study: agreed terms, claims, a log, refusals from a fixed list."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TypeVar

from clients.account import state_id
from clients.journal import Journal
from clients.leave import erase, has_left, turn_to_answer
from clients.log import HospitalLog
from clients.receipts import keep_receipt
from clients.site import BaseSite, Objection
from clients.state_dir import OLD_LABELS, TERMS_FILE
from pate_fed.disk import write_private
from pate_fed.errors import InputError, IntegrityError
from pate_fed.identity.keys import KEY_FILE
from pate_fed.kinds.terms import Terms
from pate_fed.protocol.messages import RefusalReply, Reply
from pate_fed.protocol.refusals import Refusal
from pate_fed.secure_sum import RefusedError, SumRefusal
from pate_fed.structure.faults import keep

R = TypeVar("R", bound=Reply)


class BaseHospital:
    """One hospital's side of a study; whatever goes out is made in a class that extends it.

    A new process may serve every message, so nothing is kept in memory between them: agreed terms, answered
    questions and the state of sums lie in the site's state directory.
    """

    def __init__(self, site: BaseSite) -> None:
        self._site, self._party, self._folder = site, site.party, site.state_dir
        durable = site.durable
        self.journal = Journal(site.state_dir, durable=durable)
        key = None if site.identity is None else site.identity / KEY_FILE
        self.log = HospitalLog(site.state_dir, key=key, durable=durable)

    @property
    def simulated(self) -> bool:
        """Whether this process only plays a hospital."""
        return self._site.simulated

    @property
    def left(self) -> bool:
        """Whether this hospital has left the study: it answers nothing any more."""
        return has_left(self._site.state_dir)

    def turn_to_answer(self) -> AbstractContextManager[None]:
        """While it is held `pate-fed hospital leave` waits; a simulated hospital has nobody to wait."""
        return nullcontext() if self.simulated else turn_to_answer(self._site.state_dir)

    def forget(self) -> None:
        """Erase what answers are made of, once this hospital has left."""
        erase(self._site.state_dir)

    def refuse(self, reason: Refusal) -> RefusalReply:
        """A refusal from the fixed list, noted in the hospital's own log."""
        self.log.note("refused", reason=reason.name)
        return RefusalReply(party=self._party, code=reason.name)

    def unusable(self, error: InputError) -> RefusalReply:
        """The hospital's own data do not do; why is for its own eyes."""
        self.fault(error, "data")
        return self.refuse(Refusal.DATA)

    def fault(self, error: BaseException, event: str = "fault") -> None:
        """Something went wrong here; what, is for the hospital's own eyes, or for who simulates it."""
        self.log.fault(error, event)
        keep(error)

    def _agreed(self) -> Terms | None:
        """The terms that this hospital agreed to; None before."""
        path = self._folder / TERMS_FILE
        return Terms.from_json(path.read_text(encoding="utf-8")) if path.exists() else None

    def _bound(self, terms: Terms) -> Refusal | None:
        """No to other terms than those that this hospital answers under, but for ones of the same answer."""
        agreed, where, once = self._agreed(), self._folder, terms.asks.once_for_all
        if once and (where / OLD_LABELS).exists():
            where /= OLD_LABELS
        elif agreed is None or agreed.answer_digest == terms.answer_digest:
            return None
        if not once:
            return Refusal.TERMS
        sentence = (
            f"they and the answer are in {where}: without it this hospital would answer anew, and what both "
            "answers cost would add up"
        )
        return self._objects((Refusal.ANSWERED, sentence))

    def _agree(self, terms: Terms) -> Refusal | None:
        """Bind this hospital to the terms; why it is bound to others, that came at the same time."""
        with self.journal.turn():
            reason = self._bound(terms)
            if reason is None and self._agreed() != terms:
                content = terms.to_json().encode()
                write_private(self._folder / TERMS_FILE, content, durable=self._site.durable)
        return reason

    def _objects(self, found: Objection | None) -> Refusal | None:
        """The reason of an objection, if there is one; its sentence is for the hospital's own eyes."""
        if found is None:
            return None
        reason, sentence = found
        self.log.note("policy", reason=reason.name, sentence=f"{reason.value}: {sentence}")
        return reason

    def _over_account(self, terms: Terms) -> Refusal | None:
        """Book the study on the hospital's account over all its studies, once; why it may not be, or None."""
        site = self._site
        if site.account is None:
            return None
        data = "" if site.settings is None else Path(site.settings.data).name
        try:
            booked = site.account.book(terms, state=state_id(site.state_dir), data=data, policy=site.policy)
        except InputError as error:
            self.fault(error, "data")
            return Refusal.DATA
        return self._objects(booked)

    def _keep_receipt(self, receipt: str) -> None:
        """Keep the coordinator's receipt of what came from this hospital, if it is one."""
        try:
            if self._site.identity is None:
                raise IntegrityError("a receipt came, and this hospital has no identity to check it with")
            keep_receipt(self._site.state_dir, receipt, self._site.identity)
            self.log.note("receipt", kept=hashlib.sha256(receipt.encode()).hexdigest())
        except (InputError, IntegrityError, OSError) as error:
            self.log.note("receipt refused", why=str(error))

    def _answered(self, answer: Callable[[], R]) -> R | RefusalReply:
        """The answer, or a refusal where the hospital's own data or what came cannot be used."""
        try:
            return answer()
        except InputError as error:
            return self.unusable(error)
        except IntegrityError as error:
            self.fault(error)
            return self.refuse(_refusal_for(error))


def _refusal_for(error: IntegrityError) -> Refusal:
    """What the coordinator is told where a hospital does not enrol."""
    if not isinstance(error, RefusedError):
        return Refusal.FAULT
    known = {SumRefusal.VERSION: Refusal.VERSION, SumRefusal.COORDINATOR: Refusal.COORDINATOR}
    return known.get(error.reason, Refusal.MALFORMED)
