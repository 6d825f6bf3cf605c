"""One hospital: agrees to terms, gets ready, answers each question once, refuses the rest.

It does so for every kind of question alike; what an answer is made of stands in `clients/kinds/`. The last
answer is kept until the study has come to its end. A coordinator that was started again gets it as it is, to
the very same question and under the key that asked it first.
"""

from __future__ import annotations

import sys
import time

from clients.base import SummingHospital, forget_replies, is_sound
from clients.kinds import HospitalSide
from clients.site import Objection
from pate_fed.disk import DamagedFileError
from pate_fed.errors import InputError, IntegrityError, require_libraries
from pate_fed.format import printable
from pate_fed.identity import HospitalIdentity
from pate_fed.kinds.terms import Terms
from pate_fed.protocol.messages import (
    AnswerReply,
    EndReply,
    EndRequest,
    JoinReply,
    JoinRequest,
    Question,
    Refusal,
    RefusalReply,
)
from pate_fed.secure_sum import read_fingerprint
from pate_fed.secure_sum.keys import verify
from pate_fed.secure_sum.roster import threshold_for
from pate_fed.structure import PARTY_NAME

DAY_S = 86_400.0
_SHOWN = 20  # changes of who takes part that are told


class Hospital(SummingHospital):
    """A hospital: its answered questions, and what it answers with, lie in the site's state directory."""

    # Agree and get ready.

    def join(self, request: JoinRequest) -> JoinReply | RefusalReply:
        """Agree to the terms and get ready; what is ready already under the same terms is kept."""
        try:
            terms = Terms.from_json(request.terms)
            if terms.needs_torch:
                require_libraries("torch", what="a study of images")
            self._site = self._site.under(terms)
            reason = self._objection(terms)
            if reason is Refusal.NO_POOL and request.pool:
                self._site.keep_pool(request.pool)
                reason = self._objection(terms)
        except IntegrityError:
            return self.refuse(Refusal.MALFORMED)
        except InputError as error:
            return self.unusable(error)
        if reason is not None:
            return self.refuse(reason)
        if (reason := self._bound(terms)) is not None:
            return self.refuse(reason)
        try:
            reason = self._ledger_behind(terms, request) or self._changed(terms, request.hospitals)
        except IntegrityError as error:
            self.fault(error)
            own = isinstance(error, DamagedFileError)
            return self.refuse(Refusal.FAULT if own else Refusal.MALFORMED)
        if reason is not None:
            return self.refuse(reason)
        side = self._side(terms)
        if not self._has_parts(side):
            return self.refuse(Refusal.PART)
        try:
            side.take(request.file)
        except IntegrityError as error:
            self.fault(error)
            return self.refuse(Refusal.FILE)
        # Before it gets ready, so that what is on disk always belongs to terms on disk; and before a label is
        # looked at: asked under 2, 3, 4 classes, whether its records can be used tells which is the largest.
        reason = self._over_account(terms, asked=False) or self._agree(terms)
        if reason is not None:
            return self.refuse(reason)
        return self._answered(lambda: self._ready(side, request.enrol))

    def _ledger_behind(self, terms: Terms, request: JoinRequest) -> Refusal | None:
        """Whether who goes on was put back: it may keep answers that it has released before."""
        if self.simulated or not request.heads:
            return None
        run = request.coordinator
        return self._objects(self._trail.ledger_objection(terms.digest, request.heads, run=run))

    def _changed(self, terms: Terms, told: str) -> Refusal | None:
        """Show who was admitted, renewed or revoked since this hospital's admission; no without enough left.

        What counts is the roster that it pins later; here its people learn of it before anything is made.

        Raises:
            IntegrityError: what the coordinator says of them is malformed.
        """
        identity = self._site.identity
        if self.simulated or identity is None or not told:
            return None
        demands, others = self._site.demands(terms), _others(told, self._party)
        admitted = HospitalIdentity.open(identity).admission.hospitals
        known = {**admitted, **demands.trusted}
        changes = [
            *(f"new {name}={words}" for name, words in others.items() if name not in known),
            *(f"new key {name}={words}" for name, words in others.items() if known.get(name, words) != words),
            *(f"gone {name}" for name in admitted if name not in others),
        ]
        more = f" and {len(changes) - _SHOWN:,} more" if len(changes) > _SHOWN else ""
        text = ", ".join(changes[:_SHOWN]) + more
        if changes:
            print(
                f"{self._party}: the coordinator says, since the admission: {text}",
                file=sys.stderr,
                flush=True,
            )
            self.log.note("hospitals changed", hospitals=text)
        confirmed = sum(demands.trusted.get(name) == words for name, words in others.items())
        parties = min(len(others) + 1, terms.num_clients)  # of more that are admitted so many take part
        needed = demands.confirmed_of(parties, max(threshold_for(parties), terms.least_clients))
        renewed = [name for name in others if demands.trusted.get(name, others[name]) != others[name]]
        if not renewed and confirmed >= needed:
            return None
        sentence = (
            f"{needed} of the other {len(others)} must be confirmed as they are now, {confirmed} are; the "
            f"coordinator says: {text or 'none has changed'}. Telephone whom you take part with, and give a "
            "new admission to `pate-fed hospital accept --confirm NAME=WORDS`, by the words that each reads "
            "out to you, not with these"
        )
        return self._objects((Refusal.POLICY_CONFIRMED, sentence))

    def _ready(self, side: HospitalSide, enrol: bytes) -> JoinReply:
        try:
            for odd in self._site.look_at_records() if sys.stderr.isatty() else ():
                print(f"warning: {self._party}: {printable(odd)}", file=sys.stderr, flush=True)
            side.prepare()
        except InputError:  # that the records do not do follows from them
            self._over_account(side.terms, asked=True)
            raise
        return JoinReply(
            party=self._party, terms_digest=side.terms.digest, enrolment=self._enrol(side.terms, enrol)
        )

    def _objection(self, terms: Terms) -> Refusal | None:
        """Why these terms are not this hospital's study, or None."""
        reason = self._objects(_futile(terms) or self._site.objection(terms))
        if reason is not None:
            return reason
        if terms.asks.reads_inputs:
            if not self._site.has_pool:
                return Refusal.NO_POOL
            dataset = self._site.dataset
            if (terms.pool_size, terms.pool_digest) != (len(dataset.public_images), self._site.pool_digest):
                return Refusal.POOL
            if (terms.num_classes, terms.image_shape) != (
                dataset.num_classes,
                dataset.public_images.shape[1:],
            ):
                return Refusal.TERMS
        if not is_sound(terms):
            return Refusal.TERMS
        return self._objects(self._side(terms).objection())

    def _has_parts(self, side: HospitalSide) -> bool:
        """Whether code that is none of ours is here the one in the terms; each process looks anew."""
        try:
            side.check_parts()
        except (InputError, IntegrityError) as error:
            self.fault(error)
            return False
        return True

    # Answer.

    def answer(self, request: Question) -> AnswerReply | RefusalReply:
        """Answer a question without masks: once, and only under the agreed terms.

        The answer is on the disk before it leaves; asked again, it is sent as it was.

        Shapes: the reply's answer is packed (`Bounds.packed`).
        """
        terms = self._agreed()
        if terms is not None and terms.secure_sum:
            return self.refuse(Refusal.PLAIN)
        if request.given:  # what an answer rests on comes with questions under masks alone
            return self.refuse(Refusal.MALFORMED)
        reason = self._refusal(terms, request, asked=True)
        if terms is None or reason is not None:
            return self.refuse(reason or Refusal.NOT_READY)
        asker = self._asker(request)
        if asker is None:
            return self.refuse(Refusal.MALFORMED)
        if (reason := self._old_copy(request, run=request.coordinator)) is not None:
            return self.refuse(reason)
        before, side = self.journal.overlaps(request.index), self._side(terms)
        try:
            found = self.journal.kept_answer(request, asker=asker)
            if found is None and before:
                found = side.kept()
        except IntegrityError as error:
            self.fault(error)
            return self.refuse(Refusal.REPEATED)
        if found is not None:
            self.log.note("answered again", asks=terms.asks.kind, rows=len(found), bytes=found.nbytes)
        elif not before:
            counted = self._count(terms, request, side.packed)
            keep = bool(asker) and self._site.durable
            found = self.journal.answer_once(request, counted, asker=asker, keep=keep)
        if found is None:
            return self.refuse(Refusal.REPEATED)
        stated = self._stated(f"{request.digest}/".encode() + found.tobytes(), terms)
        return AnswerReply(party=self._party, batch_digest=request.digest, answer=found, statement=stated)

    def _asker(self, request: Question) -> bytes | None:
        """Who asks, as kept answers know it: the authority that admits to the study, and the run's key.

        Empty where no key is shown, to which nothing is kept; None where its signature is wrong.
        """
        if not request.coordinator:
            return b""
        if not verify(request.coordinator, request.signature, bytes.fromhex(request.digest)):
            return None
        settings = self._site.settings
        authority = "" if settings is None else settings.authority or ""
        return authority.encode() + b"/" + request.coordinator

    def _step_refusal(self, terms: Terms | None, question: Question) -> Refusal | None:
        """The same for a step under masks, of which the last two name no places."""
        if terms is None or len(question.index):
            return self._refusal(terms, question, asked=False)
        if question.terms_digest != terms.digest:
            return Refusal.TERMS
        found = self._objects(self._site.objection(terms))
        if found is None and not self._has_parts(self._side(terms)):
            return Refusal.PART
        return found or self._over_account(terms, asked=False)

    def _refusal(self, terms: Terms | None, question: Question, *, asked: bool) -> Refusal | None:
        """Why this question is not answered, or None; then the study counts if it is `asked` for answers."""
        if terms is None:
            return Refusal.NOT_READY
        if question.terms_digest != terms.digest:
            return Refusal.TERMS
        # The policy may be another one than when the hospital agreed: it comes before any code of others.
        found, side = self._site.objection(terms), self._side(terms)
        if found is None and not self._has_parts(side):
            return Refusal.PART
        if (reason := side.refusal(question)) is not None:
            return reason
        rows = side.counted(question)
        if rows and not self.journal.claimed(question.content_digest):  # else it is counted already
            answered = self.journal.answered()
            if answered + rows > terms.max_queries:
                return Refusal.CAPS
            today = self.journal.answered(since=time.time() - DAY_S)
            found = found or self._site.refuses_more(answered=answered, today=today, asked=rows)
        return self._objects(found) or self._over_account(terms, asked=asked)

    # The end.

    def end(self, request: EndRequest) -> EndReply:
        """Note how the study ended, keep receipt and student. After a success kept answers are removed."""
        if request.receipt:
            self._keep_receipt(request.receipt)
        if request.student and not self.left:
            self._keep_student(request.student)
        agreed = self._agreed()
        self.log.note("ended", status=request.status, terms="" if agreed is None else agreed.digest)
        if request.exit_code == 0:  # nobody goes on with it
            self.journal.forget_answer()
            try:
                forget_replies(self._site, self._folder)
            except (IntegrityError, OSError) as error:  # a damaged state repeats nothing; the study is over
                self.fault(error)
        return EndReply(party=self._party)


def _others(told: str, party: str) -> dict[str, str]:
    """Fingerprints by name of all but this hospital, as a coordinator tells them."""
    pairs = [each.partition("=") for each in told.split("\n")]
    try:
        found = {name: read_fingerprint(words) for name, _, words in pairs if PARTY_NAME.fullmatch(name)}
    except InputError as error:
        raise IntegrityError("a hospital's fingerprint that the coordinator tells is none") from error
    if len(found) != len(pairs):
        raise IntegrityError("a hospital's name that the coordinator tells is none, or is there twice")
    return {name: words for name, words in found.items() if name != party}


def _futile(terms: Terms) -> Objection | None:
    """Why no answer under these terms could serve anyone, or None."""
    try:
        terms.asks.require_use(terms)
    except InputError as error:
        return Refusal.FUTILE, str(error)
    return None
