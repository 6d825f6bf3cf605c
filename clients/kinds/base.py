"""What a hospital does for one kind of question; the rest is alike for every kind (`clients.hospital`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clients.local import check_records, kind_of
from clients.log import HospitalLog
from clients.site import Objection, Site
from pate_fed.format import counted
from pate_fed.kinds.terms import Terms
from pate_fed.kinds.words import Facts
from pate_fed.privacy import NoiseSource
from pate_fed.protocol.messages import Packed, Question, Refusal
from pate_fed.secure_sum import add_noise_share
from pate_fed.structure.parts import part_identity, require_same_part

Ints = NDArray[np.int64]


class HospitalSide(ABC):
    """One hospital's work for a kind: `terms` are agreed or about to be, `site` is under them.

    Whatever it returns is exact, unless it is private alone: noise, masks, journal and log come after it.
    """

    def __init__(self, site: Site, terms: Terms, log: HospitalLog) -> None:
        self.site, self.terms, self.log = site, terms, log

    def check_parts(self) -> None:
        """Hold code that is none of ours against the one in the terms.

        Raises:
            InputError: it is not here, or cannot be loaded.
            IntegrityError: it is another one here.
        """
        for kind, part in self.terms.asks.parts:
            if kind != "aggregator":  # it runs at the coordinator
                require_same_part(part_identity(part.name, kind), part)

    @classmethod
    def check_file(cls, path: Path, terms: Terms, *, decimal: str | None) -> str:
        """Read a hospital's records before anyone is connected to; how they were read, if that is not plain.

        Raises:
            InputError: they cannot be used; the error says where and why.
        """
        kind = replace(kind_of(terms), decimal=decimal)
        return check_records(path, kind, unit=terms.privacy.unit).read_as

    def objection(self) -> Objection | None:
        """Why the hospital's settings do not go with the terms, with a sentence for its own log; or None."""
        return None

    def take(self, file: bytes) -> None:
        """Keep the public file that came with the terms.

        Raises:
            IntegrityError: it is not the one in the terms, or none came.
        """

    @abstractmethod
    def prepare(self) -> None:
        """Get ready to answer: what is wrong with the records is found now, and not in the midst of a sum.

        Raises:
            InputError: they cannot be used.
        """

    def rehearse(self, inputs: NDArray[np.generic], *, of_pool: bool, sample: int) -> tuple[Ints, Facts]:
        """Get ready without a coordinator: what comes with the terms is made of public `inputs` here.

        What it could ask about then, int64 (n,), at most `sample` inputs, and what is told of it. `of_pool`
        says that the inputs are the study's.

        Raises:
            InputError: the records cannot be used, or the pool is not the one that the terms follow from.
        """
        self.prepare()
        index = np.arange(min(sample, len(inputs)), dtype=np.int64)
        return index, (("answered", counted(len(index), "input")),)

    def refusal(self, question: Question) -> Refusal | None:
        """Why this question is none of the kind's, or cannot be answered yet; None where it can."""
        return None

    @abstractmethod
    def answer(self, question: Question) -> Ints:
        """What it says, without noise: int64 (rows, columns); InputError where records cannot be used."""

    def packed(self, question: Question) -> Packed:
        """The same as it leaves without masks (`Bounds.packed`)."""
        return self.terms.bounds.packed(self.answer(question))

    def kept(self) -> Packed | None:
        """An answer that is drawn once, and then given to whoever asks under like terms; None: there is none.

        Raises:
            IntegrityError: it is damaged.
        """
        return None

    def add_noise(self, answer: Ints, source: NoiseSource) -> Ints:
        """The answer with this hospital's share of the noise, where the terms want one; once a question."""
        share = self.terms.sigma_party
        return add_noise_share(answer, source.discrete_gaussian, sigma_party=share) if share else answer

    def counted(self, question: Question) -> int:
        """Public inputs that an answer is about, as caps and policies count them."""
        return 0
