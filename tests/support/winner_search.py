"""How much the noisy argmax can reveal, from below: a search over real histograms, by code of its own.

Three contests are searched, by hill climbing from many starts: two classes; two classes and one further
class; two classes among a crowd of so many equal ones that their largest noisy total is a fixed number (of a
discrete Gaussian's many draws nearly all of the largest are one value, and with it the largest tie key).
Each is a study's own law, or a limit of such laws.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Score = Callable[[Floats, Floats], Floats]
"""A divergence of laws on the last axis."""


def renyi(order: float) -> Score:
    """Rényi divergence at `order`, -∞ where a float cannot tell it."""

    def score(p: Floats, q: Floats) -> Floats:
        with np.errstate(all="ignore"):
            moment = np.where(p > 0, np.exp(order * np.log(p) + (1 - order) * np.log(q)), 0.0).sum(axis=-1)
            found: Floats = np.log(moment) / (order - 1)
        return np.where(np.isfinite(found), found, -np.inf)

    return score


def hockey_stick(epsilon: float) -> Score:
    """Σ max(0, p - e^ε q)."""

    def score(p: Floats, q: Floats) -> Floats:
        found: Floats = np.maximum(p - math.exp(epsilon) * q, 0.0).sum(axis=-1)
        return found

    return score


class Noise:
    """Integer noise by its weights, and what two or three noisy totals do."""

    def __init__(self, kind: str, scale: float) -> None:
        self.reach = math.ceil((13 if kind == "gaussian" else 60) * scale) + 4
        z = np.arange(-self.reach, self.reach + 1)
        weight = np.exp(-((z / scale) ** 2) / 2) if kind == "gaussian" else np.exp(-np.abs(z) / scale)
        self.z, self.mass = z, weight / weight.sum()
        # Pr[Z <= z] from the nearer end, so that small chances stay exact.
        low, high = np.cumsum(self.mass), np.cumsum(self.mass[::-1])[::-1]
        self.at_most = np.where(z < 0, low, 1 - np.append(high[1:], 0.0))

    def below(self, x: Ints) -> tuple[Floats, Floats]:
        """Pr[Z < x] and Pr[Z = x]."""
        place = np.clip(x + self.reach, -1, 2 * self.reach + 1)
        padded, mass = np.concatenate(([0.0], self.at_most, [1.0])), np.pad(self.mass, 1)
        return padded[np.maximum(place, 0)], mass[place + 1]

    def two(self, d: Ints) -> Floats:
        """Laws of two classes of which the first has d votes more. Shapes: (n,) to (n, 2)."""
        return np.stack([self._first(each, None) for each in (d, -d)], axis=-1)

    def crowd(self, u: Ints, v: Ints) -> Floats:
        """Laws of a, b and the crowd, whose best is 0 and loses every tie. Shapes: (n,) to (n, 3)."""
        neither = self.below(-u)[0] * self.below(-v)[0]
        return np.stack([self._first(u - v, -u), self._first(v - u, -v), neither], axis=-1)

    def three(self, u: Ints, v: Ints) -> Floats:
        """Laws of a, b and one other class, u and v votes below the two. Shapes: (n,) to (n, 3)."""
        return np.stack(
            [self._best(first, second) for first, second in ((u - v, u), (v - u, v), (-u, -v))], axis=-1
        )

    def _first(self, ahead: Ints, least: Ints | None) -> Floats:
        """Pr[Z >= least, ahead + Z beats Z'], a tie counting half."""
        less, same = self.below(self.z + ahead[:, None])
        mass = self.mass if least is None else np.where(self.z >= least[:, None], self.mass, 0.0)
        found: Floats = (mass * (less + same / 2)).sum(axis=1)
        return found

    def _best(self, first: Ints, second: Ints) -> Floats:
        """Pr[Z beats Z' - first and Z'' - second], ties by uniform keys."""
        (less, same), (less2, same2) = (self.below(self.z + each[:, None]) for each in (first, second))
        found: Floats = (
            self.mass * (less * less2 + (less * same2 + same * less2) / 2 + same * same2 / 3)
        ).sum(1)
        return found


def largest(
    noise: Noise, score: Score, *, scale: float, shift: int, starts: int = 40, seed: int = 0
) -> float:
    """The most that the search finds, `shift` votes moved from a to b."""
    rng = np.random.default_rng(seed)
    wide = 3 * scale + 2 * shift

    def two(at: Ints) -> Floats:
        return score(noise.two(at[:, 0]), noise.two(at[:, 0] - 2 * shift))

    def crowd(at: Ints) -> Floats:
        u, v = at.T
        return score(noise.crowd(u, v), noise.crowd(u - shift, v + shift))

    def three(at: Ints) -> Floats:
        u, v = at.T
        return score(noise.three(u, v), noise.three(u - shift, v + shift))

    best = -np.inf
    for law in (two, crowd, three):
        at = np.rint(rng.normal(shift / 2, wide, (starts, 2))).astype(np.int64)
        value, step = law(at), max(1.0, wide)
        while step >= 0.5:
            tried = at + np.rint(rng.normal(0, step, at.shape)).astype(np.int64)
            found = law(tried)
            better = found > value
            at[better], value[better] = tried[better], found[better]
            worst, champion = value.argmin(), value.argmax()
            at[worst], value[worst] = at[champion], value[champion]
            step *= 0.9
        for move in np.vstack([np.eye(2), -np.eye(2), [[1, 1], [-1, -1]]]).astype(np.int64):
            value = np.maximum(value, law(at + move))
        best = max(best, float(value.max()))
    return best
