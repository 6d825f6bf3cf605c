"""A kind of question of somebody's own at the coordinator: questions, a released number each, a sentence.

What an auditor should find: the next question follows from the numbers that are on the ledger, and noise is
added here before its code releases anything, or was added at the hospitals. A question that was asked and did
not come is charged, and ends the study: hospitals answer it once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import BudgetError, InputError, IntegrityError
from pate_fed.kinds.own import KIND, OwnTerms
from pate_fed.protocol.messages import Question
from pate_fed.structure.faults import telling
from server.kinds.base import Course
from server.release import Release, ReleaseFailedError
from server.state import Totals

Ints = NDArray[np.int64]


class OwnCourse(Course):
    """The course of a study whose kind of question is somebody's own."""

    once = True
    lost = (
        "ε counts as spent at every hospital that was asked (its own log says whether it answered), and none "
        "of them answers it again in this study"
    )

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._asks = OwnTerms.of(self._terms)
        self._mechanism, self._code = self._asks.release, self._asks.code()

    def next_question(self, number: int) -> Question | None:
        """What its code asks next, by the numbers so far."""
        _, answered, label = self._ledger.released()
        if not answered.all():
            raise BudgetError(f"hospitals were asked before, and there was no answer; {self.lost}")
        if len(label) == self._asks.questions:
            return None
        with telling(f"{KIND} {self._asks.mechanism!r}: ask fails"):
            places = self._code.ask(label.tolist())
        return None if places is None else self._question(number, self._checked(places))

    def _checked(self, places: Any) -> Ints:
        own, found = self._asks, np.asarray(places)
        rising = found.shape == (own.rows,) and found.dtype == np.int64 and bool((np.diff(found) > 0).all())
        if not rising or found[0] < 0 or found[-1] >= own.places:
            raise InputError(
                f"{KIND} {own.mechanism!r}: ask gives no {own.rows} rising places below {own.places}, int64"
            )
        return found

    def task(self, question: Question) -> str:
        """It is summed under masks."""
        return "summing under masks"

    def release(self, question: Question, totals: Totals) -> Release:
        """One number of the noisy totals."""
        with self._progress.phase("releasing", 1) as bar:
            try:
                noisy = (
                    totals.value if self._terms.adds_noise else totals.value + self._noise_on(totals.value)
                )
                number = self._mechanism.label(self._code, noisy.reshape(-1), self._noise)
            except IntegrityError as error:
                raise ReleaseFailedError(str(error)) from None
            bar.advance()
        return self._as_charged(question, number)

    def _noise_on(self, value: Ints) -> Ints:
        name = self._asks.mechanism
        try:
            with telling(f"{KIND} {name!r}: noise fails", quoting=False):
                noise = self._code.noise(value.shape, self._noise, 1)
        except InputError as error:
            raise IntegrityError(str(error)) from None
        if not isinstance(noise, np.ndarray) or (noise.shape, noise.dtype) != (value.shape, np.int64):
            raise IntegrityError(f"{KIND} {name!r}: noise gives no int64 {value.shape}")
        return noise

    def void(self, question: Question) -> Release:
        """No number."""
        return self._as_charged(question, -1)

    def _as_charged(self, question: Question, number: int) -> Release:
        """One query of the mechanism, by the first of the question's places."""
        label = np.array([number], dtype=np.int64)
        return Release.of(self._ledger.terms, self._mechanism, question.index[:1], label)

    def measure(self) -> None:
        """There is nothing to compare it with."""

    def learn(self) -> None:
        """Tell what came out of it, in its code's sentence; nothing is trained."""
        _, answered, label = self._ledger.released()
        with telling(f"{KIND} {self._asks.mechanism!r}: tell fails"):
            told = str(self._code.tell(label[answered].tolist()))
        self.figures.cautions = (*self.figures.cautions, told)
