"""Parts of a user's own, found by name as "own_parts:...": right ones, and those that misbehave."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pate_fed.privacy import NoiseSource, Sensitivity

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class GeometricMax:
    """The class with most votes after two-sided geometric noise of `scale` votes; ε-DP, as its totals are."""

    scale: float = 3.0

    def rdp(self, order: float, sensitivity: Sensitivity) -> float:
        """Bun and Steinke (2016), Proposition 3.3."""
        epsilon = sensitivity.l1 / self.scale
        return min(epsilon, order * epsilon**2 / 2)

    def release(self, totals: Ints, noise: NoiseSource) -> int:
        """One label."""
        noisy = totals + noise.discrete_laplace(totals.shape, scale=self.scale)
        first = np.flatnonzero(noisy == noisy.max())
        return int(first[noise.tie_keys(len(first)).argmax()])


class Picky(GeometricMax):
    """Answers where the noisy winner has at least half of the votes."""

    def release(self, totals: Ints, noise: NoiseSource) -> int | None:  # type: ignore[override]
        """A label, or none."""
        noisy = totals + noise.discrete_laplace(totals.shape, scale=self.scale)
        return int(noisy.argmax()) if 2 * noisy.max() >= totals.sum() else None


def make(scale: float = 3.0) -> GeometricMax:
    """A factory of the same."""
    return GeometricMax(scale)


class GaussianEvent:
    """States its cost as an event of dp-accounting."""

    def parameters(self) -> dict[str, float]:
        """None."""
        return {}

    def dp_event(self, sensitivity: Sensitivity) -> Any:
        """Totals with Gaussian noise of 20 votes."""
        from dp_accounting import dp_event

        return dp_event.GaussianDpEvent(20 / math.sqrt(sensitivity.l2_squared))

    def release(self, totals: Ints, noise: NoiseSource) -> int:
        """One label."""
        return int((totals + noise.discrete_gaussian(totals.shape, sigma=20.0)).argmax())


class Free(GeometricMax):
    """Claims that a query costs nothing."""

    def rdp(self, order: float, sensitivity: Sensitivity) -> float:
        """Nothing."""
        return 0.0


class Negative(GeometricMax):
    """Claims that a query gives privacy back."""

    def rdp(self, order: float, sensitivity: Sensitivity) -> float:
        """Below nothing."""
        return -1.0


class Unknown(GeometricMax):
    """Claims what is no number."""

    def rdp(self, order: float, sensitivity: Sensitivity) -> float:
        """NaN."""
        return math.nan


class Boundless(GeometricMax):
    """Claims no bound at all."""

    def rdp(self, order: float, sensitivity: Sensitivity) -> float:
        """Infinite."""
        return math.inf


class Falling(GeometricMax):
    """Claims a divergence that falls with the order."""

    def rdp(self, order: float, sensitivity: Sensitivity) -> float:
        """1 / order."""
        return 1 / order


class Fickle(GeometricMax):
    """Claims something else each time it is asked."""

    asked: ClassVar[int] = 0

    def rdp(self, order: float, sensitivity: Sensitivity) -> float:
        """More and more."""
        Fickle.asked += 1
        return order * (1 + Fickle.asked / 1000)


class Forgetful(GeometricMax):
    """Is another each time it is made, and says nothing of it."""

    made: ClassVar[int] = 0

    def __init__(self) -> None:
        Forgetful.made += 1
        object.__setattr__(self, "scale", 3.0 + Forgetful.made)

    def parameters(self) -> dict[str, float]:
        """None."""
        return {}


class Turncoat(GeometricMax):
    """Claims something else once its study has begun."""

    turned: ClassVar[float] = 1.0

    def rdp(self, order: float, sensitivity: Sensitivity) -> float:
        """The same, times what it is now."""
        return Turncoat.turned * super().rdp(order, sensitivity)


class Broken(GeometricMax):
    """Fails on totals that were not among those it is tried on, and quotes them."""

    def release(self, totals: Ints, noise: NoiseSource) -> int:
        """Fails where two classes have votes that differ."""
        if 0 < totals.min() < totals.max():
            raise ValueError(f"votes {totals.tolist()}")
        return 0


class Beyond(GeometricMax):
    """Gives classes that are none, but for totals on which it is tried."""

    def release(self, totals: Ints, noise: NoiseSource) -> int:
        """The number of classes."""
        return len(totals) if 0 < totals.min() < totals.max() else 0


class Always(GeometricMax):
    """Gives what is no class."""

    def release(self, totals: Ints, noise: NoiseSource) -> Any:
        """Not a number."""
        return math.nan


class Bare(GeometricMax):
    """Releases without any noise, and claims as if it had some."""

    def release(self, totals: Ints, noise: NoiseSource) -> int:
        """The exact winner."""
        return int(totals.argmax())


def brightness(public: NDArray[Any]) -> Callable[[NDArray[Any]], Floats]:
    """A feature map of images: means of quarters, scaled to a length of at most 1."""
    height, width = public.shape[1] // 2, public.shape[2] // 2

    def encode(inputs: NDArray[Any]) -> Floats:
        quarters = (inputs[:, :height, :width], inputs[:, height:, :width], inputs[:, height:, width:])
        means = [part.reshape(len(inputs), -1).mean(axis=1) / 255 for part in quarters]
        return np.stack(means, axis=1) / 2

    return encode


def on_encoder(public: NDArray[Any]) -> Callable[[NDArray[Any]], Floats]:
    """A feature map on the public encoder: each of its numbers as a positive and a negative part."""
    from pate_fed.learning.features.images import fit_image_embedding

    embed = fit_image_embedding(public).encode

    def encode(inputs: NDArray[Any]) -> Floats:
        found = embed(inputs).astype(np.float64)
        parts = np.concatenate([np.maximum(found, 0), np.maximum(-found, 0)], axis=1)
        return parts / np.maximum(1.0, np.sqrt((parts**2).sum(axis=1, keepdims=True)))

    return encode


def backwards(seen: Any) -> Ints:
    """A query strategy: the last inputs first."""
    return np.asarray(seen.left[::-1])


def rows(public: NDArray[Any]) -> Callable[[NDArray[Any]], Floats]:
    """A feature map of a table's rows: a constant, and how large its first column is among public ones."""
    most = np.nanmax(public[:, 0])

    def encode(inputs: NDArray[Any]) -> Floats:
        share = np.clip(np.nan_to_num(inputs[:, 0]) / most, 0, 1)
        return np.stack([np.full(len(inputs), 0.5), share / 2], axis=1)

    return encode
