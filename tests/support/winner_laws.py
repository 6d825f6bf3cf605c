"""The noisy argmax's own law, by enumeration: every class's chance to win, ties shared evenly."""

from __future__ import annotations

import itertools
import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def gaussian_masses(sigma: float, reach: int) -> Floats:
    """Chances of discrete Gaussian noise of -`reach`..`reach`."""
    mass = np.exp(-((np.arange(-reach, reach + 1) / sigma) ** 2) / 2)
    return mass / mass.sum()


def winner_law(totals: tuple[int, ...], mass: Floats) -> Floats:
    """The law of the mechanism itself, where `mass` is the noise's, of an odd length.

    Class c wins at noisy total x together with s others: 1/(s + 1) of the chance that exactly those tie.
    """
    reach = len(mass) // 2
    below = np.concatenate(([0.0], np.cumsum(mass)))
    x = np.arange(min(totals) - reach, max(totals) + reach + 1)

    place = x - np.array(totals)[:, None] + reach
    equal = np.where((place >= 0) & (place <= 2 * reach), mass[np.clip(place, 0, 2 * reach)], 0.0)
    less = below[np.clip(place, 0, 2 * reach + 1)]
    chances = []
    for c in range(len(totals)):
        others = [each for each in range(len(totals)) if each != c]
        won = np.zeros(len(x))
        for tied in itertools.product((False, True), repeat=len(others)):
            term = equal[c].copy()
            for each, same in zip(others, tied, strict=True):
                term *= equal[each] if same else less[each]
            won += term / (1 + sum(tied))
        chances.append(won.sum())
    return np.array(chances)


def winner_laws(totals: Ints, sigma: float) -> Floats:
    """The same for many histograms at once: ties by uniform keys θ, a polynomial that three nodes integrate.

    Shapes: `totals` (n, classes), at most 6 classes; the result too.
    """
    reach = math.ceil(9 * sigma) + 1
    mass = gaussian_masses(sigma, reach)
    below = np.concatenate(([0.0], np.cumsum(mass)))
    x = np.arange(totals.min() - reach, totals.max() + reach + 1)
    place = x - totals[..., None]  # (n, classes, x)
    equal = np.where(np.abs(place) <= reach, mass[np.clip(place + reach, 0, 2 * reach)], 0.0)
    less = below[np.clip(place + reach, 0, 2 * reach + 1)]
    nodes, weights = np.polynomial.legendre.leggauss(3)
    won = np.zeros(totals.shape)
    for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        beaten = less + node * equal
        for c in range(totals.shape[1]):
            others = np.prod(np.delete(beaten, c, axis=1), axis=1)
            won[:, c] += weight * (equal[:, c] * others).sum(axis=1)
    return won
