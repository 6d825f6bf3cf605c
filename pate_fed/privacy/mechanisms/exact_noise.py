"""Exact discrete Gaussian and Laplace noise, many draws at a time: no float decides what is drawn.

Both laws are Pr[x] ∝ exp(-E(|x|)) over all integers, with E(m) = m²/(2σ²) or m/b. With a power of two s, a
magnitude is m = s·k + j: k is drawn with weight exp(-E(s·k)) by comparing a uniform number U with the exact
tails of that law, j is uniform below s, and m is kept with chance exp(-(E(m) - E(s·k))). Then comes a fair
sign; a negative zero is thrown away. U is 63 bits of entropy at first. A comparison that they leave open goes
on with 64 more bits and tails to as many, as often as it takes. `docs/proofs/sampler.md` has the proof.

Tails are brackets of integers in fixed point, rounded down at one end and up at the other; σ and b are the
fractions that their floats are. The time of a draw depends on what is drawn, as with any such sampler.
"""

from __future__ import annotations

import bisect
import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
Entropy = Callable[[int], Words]
Bracket = tuple[int, int]

_BITS = 63  # of the first comparison; the word's last bit is the sign
_MORE = 64  # bits with which an open comparison goes on
_GUARD = 64  # further bits of the fixed point, so that its rounding seldom leaves a tail's floor open
_CELLS = 64  # steps to a standard deviation: some 600 tails, and 99 % of magnitudes are kept
_OPEN = 2.0**-44  # a uniform number nearer to its chance is compared exactly; floats are within 2^-49


def system_entropy(count: int) -> Words:
    """`count` words of 64 bits from the operating system's CSPRNG."""
    return np.frombuffer(secrets.token_bytes(8 * count), dtype=np.uint64)


@dataclass(frozen=True, slots=True)
class Law:
    """Symmetric law over the integers, E(m) = `square`·m² + `linear`·m; `step` is the power of two s."""

    square: Fraction
    linear: Fraction
    step: int

    def energy(self, magnitude: int) -> Fraction:
        """E(m), an exact fraction."""
        return (self.square * magnitude + self.linear) * magnitude


def gaussian_law(sigma: float) -> Law:
    """Law of the discrete Gaussian, Pr[x] ∝ exp(-x²/(2σ²))."""
    return Law(1 / (2 * Fraction(sigma) ** 2), Fraction(0), _step(sigma / _CELLS))


def laplace_law(scale: float) -> Law:
    """Law of the discrete Laplace, Pr[x] ∝ exp(-|x|/b)."""
    return Law(Fraction(0), 1 / Fraction(scale), _step(scale / _CELLS))


def draw(law: Law, count: int, entropy: Entropy = system_entropy) -> Ints:
    """Independent exact draws. Shape: (count,), int64."""
    out = np.empty(count, dtype=np.int64)
    filled = 0
    while filled < count:
        accepted = _proposals(law, count - filled + 16, entropy)[: count - filled]
        out[filled : filled + accepted.size] = accepted
        filled += accepted.size
    return out


def _proposals(law: Law, count: int, entropy: Entropy) -> Ints:
    """The draws that are kept of `count` proposed ones, in their order."""
    word = entropy(count)
    coarse = _coarse(law, word >> np.uint64(64 - _BITS), entropy)
    magnitude, kept = coarse, np.ones(count, dtype=np.bool_)
    if law.step > 1:
        fine = (entropy(count) & np.uint64(law.step - 1)).astype(np.int64)
        magnitude = coarse * law.step + fine
        kept = _kept(law, coarse, fine, entropy)
    negative = (word & np.uint64(1)).astype(np.bool_)
    kept &= ~(negative & (magnitude == 0))
    return np.where(negative, -magnitude, magnitude)[kept]


def _coarse(law: Law, uniform: Words, entropy: Entropy) -> Ints:
    """How many tails lie above each uniform number, of which `uniform` holds the first 63 bits."""
    tails = _first_tails(law, _BITS)
    upto = np.searchsorted(tails, uniform, side="right")  # at least 1, as the first entry is 0
    above = (tails.size - upto).astype(np.int64)
    for at in np.flatnonzero(tails[upto - 1] == uniform):
        above[at] = _refined(law, int(uniform[at]), entropy)
    return above


def _kept(law: Law, coarse: Ints, fine: Ints, entropy: Entropy) -> NDArray[np.bool_]:
    """Whether each proposed magnitude is kept: a fresh uniform number is below exp(-(E(m) - E(s·k)))."""
    uniform = entropy(coarse.size) >> np.uint64(64 - _BITS)
    j, start = fine.astype(np.float64), coarse * float(law.step)
    excess = j * (float(law.square) * (2 * start + j) + float(law.linear))
    distance = np.exp(-excess) - uniform * 2.0**-_BITS
    kept: NDArray[np.bool_] = distance > 0
    for at in np.flatnonzero(np.abs(distance) <= _OPEN):
        first = law.step * int(coarse[at])
        exact = law.energy(first + int(fine[at])) - law.energy(first)
        kept[at] = exact == 0 or _below(int(uniform[at]), exact, entropy)
    return kept


def _refined(law: Law, uniform: int, entropy: Entropy) -> int:
    """How many tails lie above a uniform number whose first 63 bits are `uniform`; draws what it needs."""
    bits = _BITS
    while True:
        bits, uniform = bits + _MORE, uniform << _MORE | int(entropy(1)[0])
        tails = _tails(law, bits)
        at = bisect.bisect_right(tails, uniform)
        if at == 0 or tails[at - 1] != uniform:
            return len(tails) - at


def _below(uniform: int, exponent: Fraction, entropy: Entropy) -> bool:
    """Whether a uniform number whose first 63 bits are `uniform` is below exp(-`exponent`), exponent > 0."""
    bits = _BITS
    while True:
        low, high = _exp_minus(exponent, bits + _GUARD)
        if uniform + 1 <= low >> _GUARD:
            return True
        if uniform << _GUARD >= high:
            return False
        bits, uniform = bits + _MORE, uniform << _MORE | int(entropy(1)[0])


@lru_cache(maxsize=256)
def _first_tails(law: Law, bits: int) -> Words:
    return np.array(_tails(law, bits), dtype=np.uint64)


@lru_cache(maxsize=16)
def _tails(law: Law, bits: int) -> tuple[int, ...]:
    """⌊2^bits Pr[K > k]⌋, where Pr[K = k] ∝ exp(-E(s·k)), ascending; cut at the first that is 0."""
    point = bits + _GUARD
    while (found := _floors(law, bits, point)) is None:
        point += _GUARD
    return found


def _floors(law: Law, bits: int, point: int) -> tuple[int, ...] | None:
    """The tails from weights to `point` binary places; None where their rounding leaves a floor open."""
    weights = _weights(law, point)
    low, high = weights[-1]
    sums = [(0, _rest(law, high, len(weights)))]
    for low, high in reversed(weights):
        sums.append((sums[-1][0] + low, sums[-1][1] + high))
    least, most = sums.pop()  # the normaliser
    floors: list[int] = []
    for low, high in reversed(sums):
        down, up = (low << bits) // most, (high << bits) // least
        if down != up:
            return None
        floors.append(down)
        if down == 0:
            break
    return tuple(reversed(floors))


def _rest(law: Law, last: int, count: int) -> int:
    """Bound on the sum of all weights after the `count`-th, of which the last is at most `last`.

    From there E grows by at least g = E(s·n) - E(s·(n - 1)) a step, so the sum is at most
    last·e^-g/(1 - e^-g), which is at most last/g.
    """
    growth = law.energy(law.step * count) - law.energy(law.step * (count - 1))
    return math.ceil(last / growth)


def _weights(law: Law, point: int) -> list[Bracket]:
    """Brackets of exp(-E(s·k)) for k = 0, 1, … until one cannot be told from 0 in `point` places."""
    quotient = _exp_minus(law.energy(law.step), point)  # exp(-(E(s·(k+1)) - E(s·k))) at k = 0
    change = _exp_minus(2 * law.square * law.step**2, point)
    found = [(1 << point, 1 << point)]
    while found[-1][0] > 0:
        found.append(_times(found[-1], quotient, point))
        quotient = _times(quotient, change, point)
    return found


def _times(a: Bracket, b: Bracket, point: int) -> Bracket:
    return a[0] * b[0] >> point, -(-(a[1] * b[1]) >> point)


@lru_cache(maxsize=256)
def _exp_minus(exponent: Fraction, point: int) -> Bracket:
    """Bracket of exp(-exponent) in units of 2^-point, for exponent >= 0.

    The exponent is halved until it is below 1/4, e^y taken from its series, inverted, and squared again.
    """
    halvings = max(0, math.ceil(exponent).bit_length() + 2)
    work = point + 2 * halvings + 32
    y = exponent / (1 << halvings)
    below, above = math.floor(y * (1 << work)), math.ceil(y * (1 << work))
    term, total, n = (1 << work, 1 << work), (1 << work, 1 << work), 0
    while term[0] > 0:
        n += 1
        low, high = _times(term, (below, above), work)
        term = low // n, -(-high // n)
        total = total[0] + term[0], total[1] + term[1]
    total = total[0], total[1] + term[1] + 1  # all further terms together are below the last
    result = (1 << 2 * work) // total[1], -(-(1 << 2 * work) // total[0])
    for _ in range(halvings):
        result = _times(result, result, work)
    return result[0] >> work - point, -(-result[1] >> work - point)


def _step(width: float) -> int:
    """Largest power of two of at most `width`, and at least 1."""
    return 1 << max(0, math.floor(width).bit_length() - 1)
