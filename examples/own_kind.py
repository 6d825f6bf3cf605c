"""A kind of question of one's own: the median of one number over all hospitals' records, in two questions.

Each hospital counts its records in bins, under masks and with noise. The first question has equal bins over
the range that is known beforehand. The second has finer ones inside the bin in which the noisy median lay.
Released are the two bins.

Cost. A record is in one bin of a question, so one that is another, or comes or goes, moves at most two counts
by 1 each: the L1 sensitivity is 2. Noise on a count is discrete Laplace, Pr[x] ~ exp(-|x| / scale), so a
question's noisy counts are 2/scale-DP, and two questions cost twice that. With the unit patient one record of
each counts.

Shares. Discrete Laplace noise is the difference of two geometric numbers, and a geometric number is the sum
of m independent ones with Pr[k] ~ C(k - 1 + 1/m, k) a^k, a = exp(-1/scale): their generating functions are
((1 - a) / (1 - a z))^(1/m). So m hospitals add exactly the noise of one. More hospitals than are counted on
add noise that is independent of it, which is post-processing.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pate_fed import simulate
from pate_fed.privacy import NoiseSource, Sensitivity

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Median:
    """The median of number `column` of the records' inputs, which lies between `low` and `high`."""

    column: int = 0
    low: float = 0.0
    high: float = 1.0
    bins: int = 32
    scale: float = 8.0

    # What hospitals agree to.

    questions = 2

    @property
    def shape(self) -> tuple[int, int]:
        """One column of counts."""
        return self.bins, 1

    @property
    def places(self) -> int:
        """Question q has the places from q * bins on: q = 0 first, then 1 + the bin that was released."""
        return self.bins * (1 + self.bins)

    @property
    def says(self) -> str:
        """What is asked."""
        span = f"{self.low:g} to {self.high:g}"
        return f"how many records have number {self.column} in each of {self.bins} bins of {span}"

    def rdp(self, order: float, sensitivity: Sensitivity) -> float:
        """RDP of one question in nats, as it is 2/scale-DP; Bun and Steinke (2016), Proposition 3.3."""
        if sensitivity.unit not in ("record", "patient"):
            return float("inf")  # nothing bounds what a whole hospital moves
        epsilon = 2 / self.scale
        return min(epsilon, order * epsilon**2 / 2)

    # At a hospital.

    def answer(self, inputs: NDArray[np.generic], labels: Ints, patients: Ints | None, places: Ints) -> Ints:
        """How many records are in each bin of a question; where patients are given, of each the first."""
        if patients is not None:
            inputs = inputs[np.unique(patients, return_index=True)[1]]
        numbers = inputs.reshape(len(inputs), -1)[:, self.column].astype(np.float64)
        bins = np.searchsorted(self.edges(int(places[0]) // self.bins), numbers, side="right")
        return np.bincount(bins, minlength=self.bins).astype(np.int64)[:, None]

    def noise(self, shape: tuple[int, ...], source: NoiseSource, shares: int) -> Ints:
        """One of so many shares of discrete Laplace noise on every count; of one share it is the whole."""
        count = int(np.prod(shape))
        return (self._share(count, source, shares) - self._share(count, source, shares)).reshape(shape)

    def _share(self, count: int, source: NoiseSource, shares: int) -> Ints:
        """Shares of geometric numbers, exact: a number k is kept with probability C(k - 1 + 1/m, k).

        That is the product over i = 1..k of ((i - 1) m + 1) / (i m), each a draw of whole numbers.
        """
        found = np.empty(0, dtype=np.int64)
        while len(found) < count:
            drawn = source.discrete_laplace((4 * count,), scale=self.scale)
            drawn = drawn[drawn >= 0]  # geometric: Pr[k] ~ exp(-k / scale)
            for i in range(1, int(drawn.max(initial=0)) + 1 if shares > 1 else 0):
                kept = (drawn < i) | (_below(i * shares, len(drawn), source) < (i - 1) * shares + 1)
                drawn = drawn[kept]
            found = np.concatenate([found, drawn])
        return found[:count]

    def sigma(self, shares: int) -> float:
        """The standard deviation of a share: of the whole noise it is sqrt(2 a) / (1 - a)."""
        a = float(np.exp(-1 / self.scale))
        return float(np.sqrt(2 * a / shares) / (1 - a))

    # At the coordinator, of released numbers alone.

    def ask(self, released: list[int]) -> Ints | None:
        """All bins; then those inside the bin that was released."""
        if len(released) == 2:
            return None
        question = 0 if not released else 1 + released[0]
        return np.arange(self.bins, dtype=np.int64) + question * self.bins

    def release(self, noisy: Ints, source: NoiseSource) -> int:
        """The first bin up to which half of all noisy counts lie."""
        below = np.cumsum(noisy)
        return int(np.argmax(2 * below >= below[-1]))

    def tell(self, released: list[int]) -> str:
        """Where the median is, by the last bin."""
        edges = self.edges(1 + released[0])
        low, high = np.concatenate([[self.low], edges, [self.high]])[released[1] : released[1] + 2]
        return (
            f"The median of number {self.column} lies between {low:.4g} and {high:.4g}, as far as noise lets."
        )

    def edges(self, question: int) -> NDArray[np.float64]:
        """The inner edges of a question's bins; the first and the last bin have all that lies beyond."""
        coarse = np.linspace(self.low, self.high, self.bins + 1)
        if question == 0:
            return coarse[1:-1]
        return np.linspace(*coarse[question - 1 : question + 1], self.bins - 1)


def _below(most: int, count: int, source: NoiseSource) -> Ints:
    """Uniform whole numbers from 0 to below `most`; keys are uniform from 1 to 2^62."""
    keys = source.tie_keys((count,)) - 1
    while (late := keys >= 2**62 // most * most).any():
        keys[late] = source.tie_keys((int(late.sum()),)) - 1
    return keys % most


if __name__ == "__main__":
    rows = np.random.default_rng(0).normal(50, 10, size=(3000, 1))
    data = {
        "private_images": rows[:2900],
        "private_labels": np.arange(2900) % 2,
        "public_images": rows[2900:],
    }
    study = {"parties": {"num_clients": 10}, "secrecy": {"secure_sum": True, "noise_at": "hospitals"}}
    run = simulate(study, dataset=data, kind=Median(low=0, high=100))
    print(run)
