"""Private labels of public inputs at a hospital, which answers about them once.

Either its labels leave after randomised response, drawn once and kept, so that whoever asks under like terms
gets the same answer; or its counts of labels in public clusters leave, with its share of the noise and under
masks. Under other terms nothing leaves any more: what one label costs would add up.
"""

from __future__ import annotations

import io
import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clients.kinds.base import HospitalSide
from clients.site import Objection
from pate_fed.disk import sync_folder, write_private
from pate_fed.errors import InputError, IntegrityError
from pate_fed.kinds.label_dp.noise_cluster import label_counts
from pate_fed.kinds.label_dp.randres import RandRes
from pate_fed.kinds.label_dp.release import check_labels
from pate_fed.kinds.labels import LABEL_OF, THERE, LabelTerms
from pate_fed.kinds.terms import Terms
from pate_fed.protocol.messages import Question, Refusal

RESPONSE, CLUSTERS = "response.npy", "clusters.bin"
HEADER = "index,label"
_NUMBER = 8  # bytes

Ints = NDArray[np.int64]


class LabelSide(HospitalSide):
    """A hospital with labels, in a table of the columns index and label."""

    @property
    def asks(self) -> LabelTerms:
        """The terms of private labels."""
        return LabelTerms.of(self.terms)

    @classmethod
    def check_file(cls, path: Path, terms: Terms, *, decimal: str | None) -> str:
        """Read the labels."""
        read_own_labels(path, pool_size=terms.pool_size, num_classes=terms.num_classes)
        return ""

    def objection(self) -> Objection | None:
        """More than the policy answers in a day: what answers about labels is one query."""
        return self.site.refuses_more(answered=0, today=0, asked=self.asks.max_queries)

    def take(self, file: bytes) -> None:
        """Keep the public clusters, where labels are counted in some."""
        if self.asks.file is None:
            if file:
                raise IntegrityError("clusters came, and nothing is counted")
            return
        self._parsed(file)
        write_private(self.site.state_dir / CLUSTERS, file, durable=self.site.durable)

    def prepare(self) -> None:
        """Find what is wrong with the labels."""
        self._labels()

    def refusal(self, question: Question) -> Refusal | None:
        """There is one question: about every cluster or input once, in order, to be released."""
        every = np.arange(self.terms.bounds.rows)
        fits = not question.measured and np.array_equal(question.index, every)
        return None if fits else Refusal.MALFORMED

    def answer(self, question: Question) -> Ints:
        """Counts of labels by cluster, int64 (clusters, classes); or a response, int64 (inputs, 2).

        Raises:
            InputError: the labels cannot be used.
            IntegrityError: what was kept is gone or damaged.
        """
        index, label = self._labels()
        terms, asks = self.terms, self.asks
        if not asks.noisy_alone:
            try:
                clusters = self._parsed((self.site.state_dir / CLUSTERS).read_bytes())
            except OSError as error:
                raise IntegrityError("the clusters that this hospital kept are gone") from error
            return label_counts(clusters[index], label, asks.num_clusters, terms.num_classes)
        response = RandRes(num_classes=terms.num_classes, epsilon=terms.privacy.epsilon or 0.0)
        answer = np.zeros((terms.pool_size, 2), dtype=np.int64)
        answer[index, THERE] = 1
        answer[index, LABEL_OF] = response.release(label, self.site.noise(question.batch)).label
        self._keep(answer)
        kept = self.kept()
        if kept is None:
            raise IntegrityError("the response that was drawn is gone")
        return kept

    def kept(self) -> Ints | None:
        """The response, once it was drawn."""
        path = self.site.state_dir / RESPONSE
        if not self.asks.noisy_alone or not path.exists():
            return None
        try:
            answer = np.asarray(np.load(path, allow_pickle=False), dtype=np.int64)
            self.terms.bounds.check(answer, rows=self.terms.pool_size)
        except (OSError, ValueError, EOFError, IntegrityError) as error:
            raise IntegrityError(f"{path}: the response that was kept is damaged") from error
        return answer

    def _keep(self, answer: Ints) -> None:
        """Write the response unless there is one: two processes that draw at once give the same."""
        path, content = self.site.state_dir / RESPONSE, io.BytesIO()
        np.save(content, answer, allow_pickle=False)
        own = path.with_name(f"{path.name}.{os.getpid()}")
        write_private(own, content.getvalue(), durable=self.site.durable)
        try:
            with suppress(FileExistsError):  # of another process, whose response counts
                os.link(own, path)
            if self.site.durable:
                sync_folder(path.parent)
        finally:
            own.unlink()

    def _parsed(self, file: bytes) -> Ints:
        """The public clusters, int64 (pool_size,)."""
        terms, asks = self.terms, self.asks
        if sha256(file).hexdigest() != asks.clusters:
            raise IntegrityError("the clusters that came are not those in the terms")
        whole = len(file) == _NUMBER * terms.pool_size
        clusters = np.frombuffer(file if whole else b"", dtype="<i8").astype(np.int64)
        if not whole or clusters.min() < 0 or clusters.max() >= asks.num_clusters:
            raise IntegrityError("the clusters that came are not one for each input")
        return clusters

    def _labels(self) -> tuple[Ints, Ints]:
        settings = self.site.settings
        if settings is None:
            raise InputError("a hospital's own table of labels is meant")
        pool, classes = self.terms.pool_size, self.terms.num_classes
        return read_own_labels(Path(settings.data), pool_size=pool, num_classes=classes)


def read_own_labels(path: Path, *, pool_size: int, num_classes: int) -> tuple[Ints, Ints]:
    """A hospital's records: their places among the public inputs and their classes, int64 (n,) each.

    They are in the order of the places: places leave the house, and the file's own order may tell classes.

    Raises:
        InputError: no such table, a record twice or outside the inputs, or a label outside the classes. The
            message shows no label.
    """
    try:
        header, *lines = path.read_text(encoding="utf-8").splitlines()
        cells = [[int(cell) for cell in line.split(",")] for line in lines]
        table = np.array(cells, dtype=np.int64).reshape(len(lines), -1)
        sound = header.strip() == HEADER and table.shape[1:] == (2,)
    except (OSError, ValueError, OverflowError):  # its text would show what stands in the file
        sound = False
    if not sound:
        raise InputError(f"{path}: a table of whole numbers with the columns {HEADER} is meant")
    index, label = table[np.argsort(table[:, 0], kind="stable")].T
    if index.min() < 0 or index.max() >= pool_size or len(np.unique(index)) != len(index):
        raise InputError(
            f"{path}: every index must be there once, and be from 0 to {pool_size - 1}, as there are so many "
            "public inputs"
        )
    return index, check_labels(label, num_classes)
