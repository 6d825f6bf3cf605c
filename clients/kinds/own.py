"""A kind of question of somebody's own at a hospital: its code reads the records once the policy lists it.

What it gives is held to the shape in the terms, and a question to that of all questions: as many places as
the terms say, each once in a study, so that no more are answered than were agreed to.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clients.kinds.base import HospitalSide
from clients.site import Objection
from pate_fed.errors import InputError, IntegrityError
from pate_fed.kinds.own import KIND, OwnTerms, shares_of
from pate_fed.kinds.words import Facts
from pate_fed.privacy import NoiseSource
from pate_fed.protocol.messages import Question, Refusal
from pate_fed.structure.faults import telling

Ints = NDArray[np.int64]

_LARGEST = 2**31 - 1  # sums under masks are read mod 2^32, around zero


class OwnSide(HospitalSide):
    """A hospital that answers by code of somebody's own, installed here."""

    @property
    def asks(self) -> OwnTerms:
        """The terms of the kind."""
        return OwnTerms.of(self.terms)

    @cached_property
    def _code(self) -> Any:
        return self.asks.code()

    def check_parts(self) -> None:
        """That it is the code in the terms and claims no less here, and says the same of what it asks."""
        if not self.asks.fits(self._code, self.terms):
            raise IntegrityError(f"{self.asks.mechanism}: asks or adds something else than the terms say")

    def objection(self) -> Objection | None:
        """Noise or a size that is not what the code says: the policy has listed it by now."""
        try:
            fits = self.asks.fits(self._code, self.terms)
        except (InputError, IntegrityError) as error:
            return Refusal.PART, str(error)
        return None if fits else (Refusal.TERMS, f"{self.asks.mechanism} is not what the terms say of it")

    def prepare(self) -> None:
        """Try it on the records, so that what is wrong is found now; nothing of it is kept."""
        self._answer(np.arange(self.asks.rows, dtype=np.int64))

    def rehearse(self, inputs: NDArray[np.generic], *, of_pool: bool, sample: int) -> tuple[Ints, Facts]:
        """One answer."""
        self.prepare()
        places = np.arange(self.asks.rows, dtype=np.int64)
        return places, (("places", f"{self.asks.rows:,} a question"),)

    def refusal(self, question: Question) -> Refusal | None:
        """A question has as many places as all, rising, all of which there are."""
        places, own = question.index, self.asks
        sound = not question.measured and places.shape == (own.rows,)
        sound = sound and 0 <= places[0] and places[-1] < own.places and bool((np.diff(places) > 0).all())
        return None if sound else Refusal.MALFORMED

    def answer(self, question: Question) -> Ints:
        """What the code says of this hospital's records: int64 (rows, columns)."""
        return self._answer(question.index)

    def counted(self, question: Question) -> int:
        """Places: so many of each question that their number caps the questions."""
        return len(question.index)

    def add_noise(self, answer: Ints, source: NoiseSource) -> Ints:
        """The answer with a share of the kind's own noise, where the terms want one."""
        if self.terms.sigma_party is None:
            return answer
        name = self.asks.mechanism
        with telling(f"{KIND} {name!r}: noise fails", quoting=False):
            noise = self._code.noise(answer.shape, source, shares_of(self.terms))
        return answer + self._sound(noise, "noise")

    def _answer(self, places: Ints) -> Ints:
        dataset, own = self.site.dataset, self.site.own_records()
        records = (dataset.private_images[own], dataset.private_labels[own], self.site.own_patients())
        with telling(f"{KIND} {self.asks.mechanism!r}: answer fails", quoting=False):
            found = self._code.answer(*records, places.copy())
        return self._sound(found, "answer")

    def _sound(self, found: Any, what: str) -> Ints:
        shape, most = (self.asks.rows, self.asks.columns), _LARGEST // (2 * self.terms.num_clients)
        if not isinstance(found, np.ndarray) or found.shape != shape or found.dtype != np.int64:
            raise InputError(f"{KIND} {self.asks.mechanism!r}: {what} gives no int64 {shape}")
        if found.size and max(abs(int(found.min())), abs(int(found.max()))) > most:
            raise InputError(f"{KIND} {self.asks.mechanism!r}: {what} gives more than {most:,}")
        return found
