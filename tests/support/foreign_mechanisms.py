"""Mechanisms as a package of somebody else's has them: nothing of pate_fed but what it gives out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.privacy import NoiseSource, Sensitivity, TotalsNoise

Ints = NDArray[np.int64]


def argmax(noisy: NDArray[Any], noise: NoiseSource) -> int:
    """The class of the largest; ties evenly."""
    best = np.flatnonzero(noisy == noisy.max())
    return int(best[noise.tie_keys(len(best)).argmax()])


def uniform(shape: int, noise: NoiseSource) -> NDArray[np.float64]:
    """Numbers between 0 and 1."""
    return (noise.tie_keys(shape) - 0.5) / 2.0**62


@dataclass(frozen=True)
class ForeignGNMax:
    """The winner after Gaussian noise."""

    sigma: float = 40.0

    def noise_on_totals(self) -> TotalsNoise:
        """Its law."""
        return TotalsNoise(law="gaussian", scale=self.sigma)

    def release(self, totals: Ints, noise: NoiseSource) -> int:
        """One label."""
        return argmax(totals + noise.discrete_gaussian(totals.shape, sigma=self.sigma), noise)


@dataclass(frozen=True)
class ForeignLNMax:
    """The winner after Laplace noise."""

    scale: float = 40.0

    def noise_on_totals(self) -> TotalsNoise:
        """Its law."""
        return TotalsNoise(law="laplace", scale=self.scale)

    def release(self, totals: Ints, noise: NoiseSource) -> int:
        """One label."""
        return argmax(totals + noise.discrete_laplace(totals.shape, scale=self.scale), noise)


@dataclass(frozen=True)
class GumbelMax:
    """Report noisy max with Gumbel noise, which is the exponential mechanism."""

    scale: float = 40.0

    def noise_on_totals(self) -> TotalsNoise:
        """Its law."""
        return TotalsNoise(law="gumbel", scale=self.scale)

    def release(self, totals: Ints, noise: NoiseSource) -> int:
        """One label."""
        drawn = -np.log(-np.log(uniform(len(totals), noise)))
        return argmax(totals + self.scale * drawn, noise)


@dataclass(frozen=True)
class ExponentialMax:
    """Report noisy max with exponential noise."""

    scale: float = 40.0

    def noise_on_totals(self) -> TotalsNoise:
        """Its law."""
        return TotalsNoise(law="exponential", scale=self.scale)

    def release(self, totals: Ints, noise: NoiseSource) -> int:
        """One label."""
        return argmax(totals - self.scale * np.log(uniform(len(totals), noise)), noise)


@dataclass(frozen=True)
class ExponentialMechanism:
    """A class by chances that grow with e^(votes / scale)."""

    scale: float = 40.0

    def pure_dp(self, sensitivity: Sensitivity) -> float:
        """ε: a class's weight moves by as much as the sum of weights moves the other way, at most."""
        return sensitivity.l1 / self.scale

    def rdp(self, order: float, sensitivity: Sensitivity) -> float:
        """Losses have the range ε (Cesar and Rogers 2021, Lemma 2)."""
        return order * (sensitivity.l1 / self.scale) ** 2 / 8

    def release(self, totals: Ints, noise: NoiseSource) -> int:
        """One label."""
        weight = np.exp((totals - totals.max()) / self.scale).cumsum()
        return int(np.searchsorted(weight, uniform(1, noise)[0] * weight[-1]))


@dataclass(frozen=True)
class RandomisedWinner:
    """The class with most votes, the first of equals, with a chance of e^ε to 1 for each other."""

    epsilon: float = 0.1

    def pure_dp(self, sensitivity: Sensitivity) -> float:
        """ε, whatever moves the winner."""
        return self.epsilon

    def release(self, totals: Ints, noise: NoiseSource) -> int:
        """One label."""
        kept = uniform(1, noise)[0] * (math.exp(self.epsilon) + len(totals) - 1) < math.exp(self.epsilon)
        others = np.delete(np.arange(len(totals)), totals.argmax())
        return int(totals.argmax() if kept else others[noise.tie_keys(len(others)).argmax()])
