"""One hospital: agrees to terms, trains its teachers, votes once on a batch, refuses the rest."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from clients.base import BaseHospital
from clients.journal import Journal
from clients.masked import SUM_FOLDER, MaskedStep, enrol, is_sound, refusal_for
from clients.site import Site
from clients.teaching import count_votes, teacher_paths, train_missing
from pate_fed.data import repeated_inputs
from pate_fed.disk import write_private
from pate_fed.errors import InputError, IntegrityError
from pate_fed.protocol.messages import (
    EVALUATION,
    RELEASE,
    EndReply,
    EndRequest,
    Refusal,
    RefusalReply,
    SumReply,
    SumRequest,
    TeachReply,
    TeachRequest,
    Terms,
    VoteReply,
    VoteRequest,
)
from pate_fed.secure_sum import SumRange, SumStore

if TYPE_CHECKING:
    from pate_fed.learning.networks.encoder import Encoder

__all__ = ["Hospital"]

DAY_S = 86_400.0


class Hospital(BaseHospital):
    """Answers the coordinator's two requests from what lies in the site's state directory.

    A new process may serve every message, so nothing is kept in memory between them: agreed terms, teachers
    and answered batches are on the hospital's own disk.
    """

    def __init__(self, site: Site) -> None:
        super().__init__(site.party, Journal(site.state_dir))
        self._site = site

    def teach(self, request: TeachRequest) -> TeachReply | RefusalReply:
        """Agree to the terms and train; teachers already trained under the same terms are kept."""
        try:
            terms = Terms.from_json(request.terms)
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
        agreed = self._agreed_digest()
        if agreed is not None and agreed != terms.digest:
            return self.refuse(Refusal.TERMS)
        try:
            encoder = _read_encoder(terms, request.encoder)
        except IntegrityError as error:
            self.journal.fault(error)
            return self.refuse(Refusal.ENCODER)
        if agreed is None:
            # Before training, so that teachers on disk always belong to terms on disk.
            path, durable = self._site.state_dir / "terms.json", not self._site.simulated
            write_private(path, request.terms.encode(), durable=durable)
        try:
            self._train_missing_teachers(encoder)
        except InputError as error:
            return self.unusable(error)
        try:
            enrolment = enrol(self._store(terms), terms, request.enrol, party=self._site.party)
        except IntegrityError as error:
            self.journal.fault(error)
            return self.refuse(refusal_for(error))
        return TeachReply(
            party=self._site.party,
            terms_digest=terms.digest,
            num_teachers=terms.teachers_per_client,
            enrolment=enrolment,
        )

    def vote(self, request: VoteRequest) -> VoteReply | RefusalReply:
        """Vote on a batch of public inputs: once, and only under the agreed terms.

        Shapes: the reply's votes are int64 (queries, classes); rows sum to the number of teachers.
        """
        reason = self._unasked(request)
        if reason is None and self._terms().secure_sum:
            reason = Refusal.PLAIN
        if reason is not None:
            return self.refuse(reason)
        if not self.journal.claim(request.content_digest, request.index):
            return self.refuse(Refusal.REPEATED)
        votes = self._count_votes(request.index)
        return VoteReply(party=self._site.party, batch_digest=request.digest, votes=votes)

    def sum_step(self, request: SumRequest) -> SumReply | RefusalReply:
        """One step of a batch's secure summation; votes leave this hospital only under all its masks.

        Noise, where the terms say so, is added before the masks; votes are claimed and counted once a batch.
        """
        question = request.question
        if len(question.index):
            reason = self._unasked(question)
            if reason is not None:
                return self.refuse(reason)
        elif self._agreed_digest() != request.terms_digest:
            return self.refuse(Refusal.TERMS)
        terms = self._terms()
        if not terms.secure_sum:
            return self.refuse(Refusal.TERMS)
        step = MaskedStep(
            self._store(terms),
            terms,
            self.journal,
            self._count_votes,
            self._site.noise,
            sum_range=SumRange.totals(terms.num_teachers, noisy=terms.adds_noise),
        )
        return SumReply(party=self._site.party, step=step.answer(request))

    def _unasked(self, request: VoteRequest) -> Refusal | None:
        """Why nothing is voted on this question, or None."""
        agreed = self._agreed_digest()
        if agreed is None or not all(path.exists() for path in teacher_paths(self._site)):
            return Refusal.NOT_TAUGHT
        if request.terms_digest != agreed:
            return Refusal.TERMS
        if request.purpose == EVALUATION and (not self._site.simulated or self._terms().adds_noise):
            return Refusal.POLICY
        dataset = self._site.dataset
        pool = len(dataset.public_images)
        if request.purpose not in (RELEASE, EVALUATION) or not _is_batch(request.index, pool):
            return Refusal.MALFORMED
        if request.purpose == RELEASE and repeated_inputs(dataset)[request.index].any():
            return Refusal.REPEATED  # the same input has another place in the pool, and is asked about there
        if self.journal.claimed(request.content_digest):
            return None  # counted already; whether it may be answered is another question
        answered = self.journal.answered()
        if request.purpose == RELEASE and answered + len(request.index) > self._terms().max_queries:
            return Refusal.CAPS
        # The policy may be another one than when the hospital agreed, if it was started again.
        return self._site.objection(self._terms()) or self._site.enough(
            answered=answered,
            today=self.journal.answered(since=time.time() - DAY_S),
            asked=len(request.index),
        )

    def end(self, request: EndRequest) -> EndReply:
        """Note how the study ended; nothing else happens here."""
        self.journal.note("ended", status=request.status)
        return EndReply(party=self._site.party)

    def _objection(self, terms: Terms) -> Refusal | None:
        """Why these terms are not this hospital's study, or None."""
        reason = self._site.objection(terms)
        if reason is not None:
            return reason
        dataset, study = self._site.dataset, self._site.study
        if (terms.pool_size, terms.pool_digest) != (len(dataset.public_images), self._site.pool_digest):
            return Refusal.POOL
        ours = (dataset.num_classes, study.parties.teachers_per_client, dataset.public_images.shape[1:])
        if (terms.num_classes, terms.teachers_per_client, terms.image_shape) != ours or not is_sound(terms):
            return Refusal.TERMS
        return None

    def _store(self, terms: Terms) -> SumStore:
        """This hospital's machine in the study's secure summation."""
        site = self._site
        return SumStore(
            site.state_dir / SUM_FOLDER,
            site.demands(terms),
            durable=not site.simulated,
            key=site.sum_key,
        )

    def _terms(self) -> Terms:
        """The agreed terms."""
        return Terms.from_json((self._site.state_dir / "terms.json").read_text(encoding="utf-8"))

    def _agreed_digest(self) -> str | None:
        return self._terms().digest if (self._site.state_dir / "terms.json").exists() else None

    def _train_missing_teachers(self, encoder: Encoder | None) -> None:
        train_missing(
            self._site,
            encoder=encoder,
            taught=lambda number: self.journal.note("taught", teacher=number),
            anew=lambda count: self.journal.note("records changed", teachers_trained_again=count),
        )

    def _count_votes(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        votes = count_votes(self._site, self._site.dataset.public_images[index])
        self.journal.note("voted", queries=len(votes), bytes=votes.nbytes)
        return votes


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
    return bool(index.min() >= 0 and index.max() < pool_size and len(np.unique(index)) == len(index))
