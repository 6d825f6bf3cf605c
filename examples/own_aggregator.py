"""A mechanism of one's own with its ledger verified: most votes win, after geometric noise."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pate_fed import simulate
from pate_fed.privacy import NoiseSource, Sensitivity


@dataclass(frozen=True)
class GeometricMax:
    """The class with most votes, each count with noise of `scale` votes."""

    scale: float = 40.0

    def rdp(self, order: float, sensitivity: Sensitivity) -> float:
        """Totals with such noise are ε-DP; Bun and Steinke (2016), Proposition 3.3, in nats."""
        epsilon = sensitivity.l1 / self.scale
        return min(epsilon, order * epsilon**2 / 2)

    def release(self, totals: NDArray[np.int64], noise: NoiseSource) -> int:
        """The label of one query, of its totals (classes,)."""
        noisy = totals + noise.discrete_laplace(totals.shape, scale=self.scale)
        first = np.flatnonzero(noisy == noisy.max())
        return int(first[noise.tie_keys(len(first)).argmax()])  # ties are broken evenly


if __name__ == "__main__":
    study = {"parties": {"num_clients": 250}, "queries": {"labels": 300, "max_queries": 300}}
    run = simulate(study, aggregator=GeometricMax(scale=40))
    print(run)
    run.ledger.require_checked()  # every ε from the rows, and the curve from this code
    print(*run.ledger.lines(), sep="\n")
