"""One hospital: agrees to terms, trains its teachers, votes once on a batch, refuses the rest.

Where the terms ask for sums of features by class instead, nothing is trained: they leave once, under masks.
The votes on the last batch are kept until the study has come to its end. A coordinator that was started again
gets them as they are, to the very same question and under the key that asked it first.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from clients.class_sums import asks_all_features, check_sums, count_sums, keep_features
from clients.masked import SummingHospital, forget_replies, is_sound
from clients.site import Objection, Site
from clients.state_dir import LABELS_FOLDER
from clients.teaching import count_votes, teacher_paths, train_missing
from pate_fed.data import repeated_inputs
from pate_fed.errors import InputError, IntegrityError, require_libraries
from pate_fed.privacy import NoiseSource
from pate_fed.privacy.mechanisms.own import OwnMechanism, check_claim
from pate_fed.protocol.cost import check_reach, make_mechanism
from pate_fed.protocol.messages import (
    EndReply,
    EndRequest,
    RefusalReply,
    TeachReply,
    TeachRequest,
    VoteReply,
    VoteRequest,
)
from pate_fed.protocol.refusals import Refusal
from pate_fed.protocol.terms import Terms
from pate_fed.secure_sum.keys import verify
from pate_fed.structure.parts import part_identity, require_same_part

if TYPE_CHECKING:
    from pate_fed.learning.networks.encoder import Encoder

DAY_S = 86_400.0


class Hospital(SummingHospital[Terms]):
    """A hospital that votes: its teachers and answered batches lie in the site's state directory."""

    _site: Site

    def __init__(self, site: Site) -> None:
        super().__init__(site, site.state_dir)

    def teach(self, request: TeachRequest) -> TeachReply | RefusalReply:
        """Agree to the terms and train; teachers already trained under the same terms are kept."""
        try:
            terms = Terms.from_json(request.terms)
            if terms.table is None:
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
        agreed = self._agreed()
        if agreed is not None and agreed.digest != terms.digest:
            return self.refuse(Refusal.TERMS)
        if not self._has_part(terms):
            return self.refuse(Refusal.PART)
        try:
            encoder = _read_encoder(terms, request.encoder)
            if terms.sums is not None:
                keep_features(self._site, terms, request.features)
        except IntegrityError as error:
            self.fault(error)
            return self.refuse(Refusal.ENCODER if terms.sums is None else Refusal.FEATURES)
        reason = self._over_account(terms)
        if reason is not None:
            return self.refuse(reason)
        self._agree(terms)  # before training, so that teachers on disk always belong to terms on disk
        if terms.sums is not None:
            return self._answered(lambda: self._ready_to_sum(terms, request.enrol))
        return self._answered(lambda: self._taught(terms, encoder, request.enrol))

    def _has_part(self, terms: Terms) -> bool:
        """Whether code that is none of ours is here the one in the terms, and a mechanism claims no less."""
        features = None if terms.sums is None else terms.sums.part
        try:
            for part, kind in ((terms.teacher_part, "teacher"), (features, "feature map")):
                if part is not None:
                    require_same_part(part_identity(part.name, kind), part)
            mechanism = None if terms.claim is None else make_mechanism(terms)
            if isinstance(mechanism, OwnMechanism):
                check_claim(mechanism)
        except (InputError, IntegrityError) as error:
            self.fault(error)
            return False
        return True

    def _ready_to_sum(self, terms: Terms, enrol: bytes) -> TeachReply:
        """Nothing is trained: the public feature map is on the disk, and the records fit it."""
        check_sums(self._site, terms)
        return TeachReply(
            party=self._party,
            terms_digest=terms.digest,
            num_teachers=0,
            enrolment=self._enrol(terms, enrol),
        )

    def _taught(self, terms: Terms, encoder: Encoder | None, enrol: bytes) -> TeachReply:
        train_missing(
            self._site,
            encoder=encoder,
            taught=lambda number: self.log.note("taught", teacher=number),
            anew=lambda count: self.log.note("records changed", teachers_trained_again=count),
        )
        return TeachReply(
            party=self._party,
            terms_digest=terms.digest,
            num_teachers=terms.teachers_per_client,
            enrolment=self._enrol(terms, enrol),
        )

    def vote(self, request: VoteRequest) -> VoteReply | RefusalReply:
        """Vote on a batch of public inputs: once, and only under the agreed terms.

        The votes are on the disk before they leave; asked again, they are sent as they were.

        Shapes: the reply's votes are int64 (queries, classes); rows sum to the number of teachers.
        """
        terms = self._agreed()
        reason = self._refusal(terms, request)
        if terms is None or reason is not None:
            return self.refuse(reason or Refusal.NOT_TAUGHT)
        if terms.secure_sum:
            return self.refuse(Refusal.PLAIN)
        asker = self._asker(request)
        if asker is None:
            return self.refuse(Refusal.MALFORMED)
        try:
            votes = self.journal.kept_answer(request, asker=asker)
        except IntegrityError as error:
            self.fault(error)
            return self.refuse(Refusal.REPEATED)
        if votes is not None:
            self.log.note("voted again", queries=len(votes), bytes=votes.nbytes)
        elif not self.journal.overlaps(request.index):
            counted, keep = self._count(terms, request), bool(asker) and self._site.durable
            votes = self.journal.answer_once(request, counted, asker=asker, keep=keep)
        if votes is None:
            return self.refuse(Refusal.REPEATED)
        return VoteReply(party=self._party, batch_digest=request.digest, votes=votes)

    def _asker(self, request: VoteRequest) -> bytes | None:
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

    def _step_refusal(self, terms: Terms | None, question: VoteRequest) -> Refusal | None:
        if terms is not None and terms.sums is not None:
            return self._sums_refusal(terms, question)
        return self._refusal(terms, question) if len(question.index) else None

    def _sums_refusal(self, terms: Terms, question: VoteRequest) -> Refusal | None:
        """Why nothing is summed for this question, or None. It names no features in the last two steps."""
        if question.terms_digest != terms.digest:
            return Refusal.TERMS
        if len(question.index) and not asks_all_features(terms, question):
            return Refusal.MALFORMED
        # The policy may be another one than when the hospital agreed, if it was started again.
        found = self._objects(self._site.objection(terms))
        if found is None and not self._has_part(terms):  # another process may find another source
            found = Refusal.PART
        return found or self._over_account(terms)

    def _refusal(self, terms: Terms | None, request: VoteRequest) -> Refusal | None:
        """Why nothing is voted on this question, or None."""
        if terms is not None and terms.sums is not None:
            return Refusal.PLAIN  # nobody votes in this study
        if terms is None or not all(path.exists() for path in teacher_paths(self._site)):
            return Refusal.NOT_TAUGHT
        if request.terms_digest != terms.digest:
            return Refusal.TERMS
        if not self._has_part(terms):  # another process may find another source
            return Refusal.PART
        if request.measured and (not self._site.simulated or terms.adds_noise):
            return Refusal.POLICY
        dataset = self._site.dataset
        pool = len(dataset.public_images)
        if not _is_batch(request.index, pool) or not len(request.released):
            return Refusal.MALFORMED
        if repeated_inputs(dataset)[request.released].any():
            return Refusal.REPEATED  # the same input has another place in the pool, and is asked about there
        if self.journal.claimed(request.content_digest):
            # Counted already. An answer that was given is not given again under a policy that forbids it.
            return self._objects(self._site.objection(terms))
        answered, asked = self.journal.answered(), len(request.released)
        if answered + asked > terms.max_queries:
            return Refusal.CAPS
        # The policy may be another one than when the hospital agreed, if it was started again.
        today = self.journal.answered(since=time.time() - DAY_S)
        found = self._site.objection(terms)
        found = found or self._site.refuses_more(answered=answered, today=today, asked=asked)
        return self._objects(found) or self._over_account(terms)

    def end(self, request: EndRequest) -> EndReply:
        """Note how the study ended, and keep the receipt. After a success kept answers are removed."""
        if request.receipt:
            self._keep_receipt(request.receipt)
        agreed = self._agreed()
        self.log.note("ended", status=request.status, terms="" if agreed is None else agreed.digest)
        if request.exit_code == 0:  # nobody goes on with it
            self.journal.forget_answer()
            try:
                for folder in (self._folder, self._folder / LABELS_FOLDER):
                    forget_replies(self._site, folder)
            except IntegrityError as error:  # a damaged state repeats nothing either
                self.fault(error)
        return EndReply(party=self._party)

    def _objection(self, terms: Terms) -> Refusal | None:
        """Why these terms are not this hospital's study, or None."""
        reason = self._objects(_futile(terms) or self._site.objection(terms))
        if reason is not None:
            return reason
        if not self._site.has_pool:
            return Refusal.NO_POOL
        dataset, study = self._site.dataset, self._site.study
        if (terms.pool_size, terms.pool_digest) != (len(dataset.public_images), self._site.pool_digest):
            return Refusal.POOL
        parties = (study.parties.teachers_per_client, study.parties.records_per_teacher)
        ours = (dataset.num_classes, parties, dataset.public_images.shape[1:])
        theirs = (terms.teachers_per_client, terms.records_per_teacher)
        if (terms.num_classes, theirs, terms.image_shape) != ours or not is_sound(terms):
            return Refusal.TERMS
        return None

    @staticmethod
    def _read_terms(text: str) -> Terms:
        return Terms.from_json(text)

    def _noise(self, terms: Terms, batch: int) -> NoiseSource:
        return self._site.noise(batch)

    def _count(self, terms: Terms, question: VoteRequest) -> NDArray[np.int64]:
        asked = question.digest
        if terms.sums is not None:
            sums = count_sums(self._site, terms)
            self.log.record("summed", features=len(sums), bytes=sums.nbytes, question=asked)
            return sums
        votes = count_votes(self._site, self._site.dataset.public_images[question.index])
        self.log.record("voted", queries=len(votes), bytes=votes.nbytes, question=asked)
        return votes


def _futile(terms: Terms) -> Objection | None:
    """Why no vote under these terms could serve anyone, or None."""
    try:
        check_reach(terms)
    except InputError as error:
        return Refusal.FUTILE, str(error)
    return None


def _read_encoder(terms: Terms, content: bytes) -> Encoder | None:
    """The encoder that the terms name, or None where they name none.

    Raises:
        IntegrityError: another one came, or none, or one that nobody agreed to.
    """
    if terms.encoder is None and not content:
        return None
    if terms.encoder is None:
        raise IntegrityError("an encoder came, and the study's terms name none")
    from pate_fed.learning.networks.encoder import Encoder

    encoder = Encoder.from_bytes(content, digest=terms.encoder)
    if encoder.image_shape != terms.image_shape:
        raise IntegrityError(f"the encoder is of images {encoder.image_shape}, not {terms.image_shape}")
    return encoder


def _is_batch(index: NDArray[np.int64], pool_size: int) -> bool:
    """Whether `index` is one-dimensional, not empty, inside the pool and without repeats."""
    if index.ndim != 1 or len(index) == 0:
        return False
    if index.min() < 0 or index.max() >= pool_size:
        return False
    return int(np.bincount(index).max()) == 1
