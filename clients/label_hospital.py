"""One hospital with private labels of public inputs: it answers about them once, with noise of its own.

Either its labels leave after randomised response, drawn once and kept, so that a repeated request gets the
same answer; or its counts of labels in public clusters leave, with its share of the noise and under masks,
once. Under other terms nothing leaves any more: what one label costs would add up.
"""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray

from clients.label_site import LabelSite, read_own_labels
from clients.masked import SummingHospital
from clients.state_dir import LABELS_FOLDER
from pate_fed.disk import sync_folder
from pate_fed.errors import IntegrityError
from pate_fed.kinds.label_dp.noise_cluster import label_counts
from pate_fed.kinds.label_dp.randres import RandRes
from pate_fed.kinds.labels import LabelTerms, clusters_digest
from pate_fed.privacy import NoiseSource
from pate_fed.protocol.messages import LabelReply, LabelRequest, Question, RefusalReply
from pate_fed.protocol.refusals import Refusal
from pate_fed.secure_sum import threshold_for

Ints = NDArray[np.int64]

RESPONSE, CLUSTERS = "response.npy", "clusters.npy"
_NONE: Ints = np.empty(0, dtype=np.int64)


class LabelHospital(SummingHospital[LabelTerms]):
    """A hospital with labels: its answer and its claims lie in a folder of the site's state directory."""

    _site: LabelSite

    def __init__(self, site: LabelSite) -> None:
        folder = site.state_dir / LABELS_FOLDER
        if not folder.exists():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if site.durable:
                sync_folder(site.state_dir)
        super().__init__(site, folder)

    def answer(self, request: LabelRequest) -> LabelReply | RefusalReply:
        """Agree to the terms; then the labels after randomised response, or the enrolment for the counts."""
        try:
            terms = LabelTerms.from_json(request.terms)
        except IntegrityError:
            return self.refuse(Refusal.MALFORMED)
        reason = self._objection(terms, request.clusters)
        if reason is not None:
            return self.refuse(reason)
        with self.journal.turn():
            agreed = self._agreed()
            if agreed is not None and not terms.same_answer(agreed):
                return self._bound()
            # What was answered before is given again at no further cost.
            return self._answered(lambda: self._booked(agreed or terms, terms, request))

    def _booked(
        self, booked: LabelTerms, terms: LabelTerms, request: LabelRequest
    ) -> LabelReply | RefusalReply:
        reason = self._over_account(booked)
        if reason is not None:
            return self.refuse(reason)
        return self._counted(terms, request) if terms.secure_sum else self._responded(terms)

    def _step_refusal(self, terms: LabelTerms | None, question: Question) -> Refusal | None:
        if terms is None or not terms.secure_sum or question.terms_digest != terms.digest:
            return Refusal.TERMS
        # The policy may be another one than when the hospital enrolled.
        reason = self._objects(self._site.objection(terms)) or self._over_account(terms)
        if reason is None and len(question.index) and not _asks_all(question, terms.num_clusters):
            return Refusal.MALFORMED
        return reason

    def _noise(self, terms: LabelTerms, batch: int) -> NoiseSource:
        return self._site.noise(terms)

    def _bound(self) -> RefusalReply:
        """No to other terms than the first; its own people are told where those are."""
        where = (
            f"they and the answer are in {self._folder}: without it this hospital would answer anew, and "
            "what both answers cost would add up"
        )
        self._objects((Refusal.ANSWERED, where))
        return self.refuse(Refusal.ANSWERED)

    def _objection(self, terms: LabelTerms, clusters: Ints) -> Refusal | None:
        reason = self._objects(self._site.objection(terms))
        if reason is not None:
            return reason
        if not terms.secure_sum:
            return Refusal.MALFORMED if clusters.size else None
        # What is promised to hide in a sum does so only in one of so many.
        if terms.least_clients < threshold_for(terms.num_clients):
            return Refusal.TERMS
        fits = clusters.shape == (terms.pool_size,) and clusters_digest(clusters) == terms.clusters_digest
        inside = fits and clusters.min() >= 0 and clusters.max() < terms.num_clusters
        return None if inside else Refusal.MALFORMED

    def _responded(self, terms: LabelTerms) -> LabelReply:
        """The labels after randomised response: drawn once, on the disk before they leave."""
        path = self._folder / RESPONSE
        if path.exists():
            self._note_cost(terms, again=True)
        else:
            # Before a label is looked at. Whether labels can be used under terms tells something about them:
            # asked under 2, 3, 4 classes, which is the largest. So there is one such answer.
            self._agree(terms)
            index, true = self._own_labels(terms)
            response = RandRes(num_classes=terms.num_classes, epsilon=terms.epsilon)
            label = response.release(true, self._site.noise(terms)).label
            self._note_cost(terms, again=False)
            self._keep(RESPONSE, np.stack([index, label]))
        index, label = np.load(path, allow_pickle=False)
        return LabelReply(party=self._party, terms_digest=terms.digest, index=index, label=label)

    def _counted(self, terms: LabelTerms, request: LabelRequest) -> LabelReply:
        """Ready for the counts: the clusters are on the disk, and this hospital has enrolled."""
        enrolment = self._enrol(terms, request.enrol)
        self._keep(CLUSTERS, request.clusters)
        self._agree(terms)
        self._own_labels(terms)  # what is wrong with them is said now, not in the middle of a sum
        return LabelReply(
            party=self._party,
            terms_digest=terms.digest,
            index=_NONE,
            label=_NONE,
            enrolment=enrolment,
        )

    def _count(self, terms: LabelTerms, question: Question) -> Ints:
        """This hospital's labels in each cluster, of which a question names all in order."""
        places, label = self._own_labels(terms)
        clusters = np.load(self._folder / CLUSTERS, allow_pickle=False)
        self._note_cost(terms, again=False)
        counts = label_counts(clusters[places], label, terms.num_clusters, terms.num_classes)
        return np.asarray(counts[question.index])

    def _note_cost(self, terms: LabelTerms, *, again: bool) -> None:
        """What an answer costs; one that is given again costs nothing more."""
        self.log.record(
            "labelled again" if again else "labelled",
            mechanism=terms.mechanism,
            epsilon=terms.spent,
            delta=terms.delta,
            terms=terms.digest,
        )

    def _own_labels(self, terms: LabelTerms) -> tuple[Ints, Ints]:
        return read_own_labels(self._site.labels, pool_size=terms.pool_size, num_classes=terms.num_classes)

    @staticmethod
    def _read_terms(text: str) -> LabelTerms:
        return LabelTerms.from_json(text)

    def _keep(self, name: str, array: Ints) -> None:
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=False)
        self._write(name, buffer.getvalue())


def _asks_all(question: Question, num_clusters: int) -> bool:
    """Whether a question is the one that there is: about each cluster once, in order, to be released."""
    return not question.measured and np.array_equal(question.index, np.arange(num_clusters))
