"""How a student's probabilities fit the truth of the public inputs that tested it; it costs no privacy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.format import share_text

_BINS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A reliability diagram, and the same for each class as a whole.

    `bins` go by the probability of the class that the student named, in tenths: inputs, right ones, and the
    mean probability. `by_class` has for each class the sum of its probabilities, and the inputs of it.
    """

    bins: tuple[tuple[int, int, float], ...] = ()
    by_class: tuple[tuple[float, int], ...] = ()

    @classmethod
    def of(cls, probabilities: NDArray[Any], truth: NDArray[np.int64]) -> Calibration | None:
        """Of probabilities float (n, classes) and true classes int64 (n,), -1 where unknown.

        None where nothing is known, or where the student tells classes alone, as all is certain to it.
        """
        shares, truth = np.asarray(probabilities, dtype=np.float64)[truth >= 0], truth[truth >= 0]
        if not len(truth) or (shares.max(axis=1) == 1.0).all():
            return None
        named, top = shares.argmax(axis=1), shares.max(axis=1)
        place = np.minimum((top * _BINS).astype(np.int64), _BINS - 1)
        inside = [place == number for number in range(_BINS)]
        return cls(
            bins=tuple(
                (int(here.sum()), int((named == truth)[here].sum()), round(float(top[here].mean()), 6))
                for here in inside
                if here.any()
            ),
            by_class=tuple(
                (round(float(total), 3), int(count))
                for total, count in zip(
                    shares.sum(axis=0), np.bincount(truth, minlength=shares.shape[1]), strict=True
                )
            ),
        )

    @property
    def count(self) -> int:
        """Test inputs behind it."""
        return sum(count for count, _, _ in self.bins)

    @property
    def error(self) -> float:
        """The expected calibration error (Naeini et al. 2015, AAAI), in ten bins."""
        return sum(abs(right - count * mean) for count, right, mean in self.bins) / max(self.count, 1)

    @property
    def sure_of(self) -> str:
        """What it is sure of on average, beside what it gets right, in words."""
        sure = sum(count * mean for count, _, mean in self.bins) / max(self.count, 1)
        right = sum(right for _, right, _ in self.bins) / max(self.count, 1)
        return (
            f"On average it is {share_text(sure, self.count)} sure of its answer and right in "
            f"{share_text(right, self.count)}"
        )
