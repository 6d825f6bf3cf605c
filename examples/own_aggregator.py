"""A mechanism of one's own at its price, with its ledger verified: most votes win, after geometric noise."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from pate_fed import simulate
from pate_fed.privacy import NoiseSource, TotalsNoise


@dataclass(frozen=True)
class GeometricMax:
    """The class with most votes, each count with noise of `scale` votes; it is charged as LNMax is."""

    scale: float = 40.0

    def noise_on_totals(self) -> TotalsNoise:
        """Other prices are rdp(order, sensitivity), dp_event(sensitivity) and pure_dp(sensitivity)."""
        return TotalsNoise(law="laplace", scale=self.scale)

    def release(self, totals: Any, noise: NoiseSource) -> int:
        """The label of one query, of its totals (classes,)."""
        noisy = totals + noise.discrete_laplace(totals.shape, scale=self.scale)
        return int(np.lexsort((noise.tie_keys(totals.shape), noisy))[-1])


if __name__ == "__main__":
    run = simulate({"parties": {"num_clients": 250}}, aggregator=GeometricMax(scale=40))
    print(run, run.ledger)
