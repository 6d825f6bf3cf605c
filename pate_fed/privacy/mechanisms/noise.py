"""Integer noise: exact samplers on the system's CSPRNG to protect, a seeded generator for simulation only.

Both draw from the discrete Gaussian, Pr[x] ∝ exp(-x²/(2σ²)), and the discrete Laplace, Pr[x] ∝ exp(-|x|/b),
over all integers (Canonne, Kamath, Steinke 2020, arXiv 2004.00010, Definition 1). Whoever knows a seed can
subtract the noise, so nothing that is drawn from `SeededNoise` protects anyone, and it says so in its `kind`.

In the exact samplers no float decides what is drawn. Both laws are Pr[x] ∝ exp(-E(|x|)), with E(m) = m²/(2σ²)
or m/b. With a power of two s, a magnitude is m = s·k + j: k is drawn with weight exp(-E(s·k)) by comparing a
uniform number U with the exact tails of that law, j is uniform below s, and m is kept with chance exp(-(E(m)
- E(s·k))). Then comes a fair sign; a negative zero is thrown away. U is 63 bits of entropy at first. A
comparison that they leave open goes on with 64 more bits and tails to as many, as often as it takes.
`docs/proofs/sampler.md` has the proof. Tails are brackets of integers in fixed point, rounded down at one end
and up at the other; σ and b are the fractions that their floats are. The time of a draw depends on what is
drawn, as with any such sampler.
"""

from __future__ import annotations

import bisect
import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError
from pate_fed.privacy.checks import check_scale

Shape = int | tuple[int, ...]
Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
Entropy = Callable[[int], Words]
Bracket = tuple[int, int]

SYSTEM = "exact integer sampler on the system's CSPRNG"
SEEDED = "not private: seeded noise"
GENERATED = "not private: noise of a NumPy generator"

_BITS = 63  # of the first comparison; the word's last bit is the sign
_MORE = 64  # bits with which an open comparison goes on
_GUARD = 64  # further bits of the fixed point, so that its rounding seldom leaves a tail's floor open
_CELLS = 64  # steps to a standard deviation: some 600 tails, and 99 % of magnitudes are kept
_OPEN = 2.0**-44  # a uniform number nearer to its chance is compared exactly; floats are within 2^-49


@runtime_checkable
class NoiseSource(Protocol):
    """Source of noise; `kind` is what the ledger records, `private` whether it protects anyone."""

    @property
    def kind(self) -> str:
        """The source as text, which the ledger records."""

    @property
    def private(self) -> bool:
        """Whether nobody can predict or repeat the noise."""

    def discrete_gaussian(self, shape: Shape, *, sigma: float) -> NDArray[np.int64]:
        """Independent draws of the discrete Gaussian with parameter `sigma`, in votes."""

    def discrete_laplace(self, shape: Shape, *, scale: float) -> NDArray[np.int64]:
        """Independent draws of the discrete Laplace with the given scale, in votes."""

    def tie_keys(self, shape: Shape) -> NDArray[np.int64]:
        """Independent uniform draws from 1..2^62, by which ties are broken without a preference."""


@dataclass(frozen=True, slots=True)
class SystemNoise:
    """Noise that protects: exact samplers, fed by the operating system's CSPRNG; there is no seed."""

    kind: ClassVar[str] = SYSTEM
    private: ClassVar[bool] = True

    def discrete_gaussian(self, shape: Shape, *, sigma: float) -> NDArray[np.int64]:
        """Exact draws, int64 of the given shape; below 1 µs each."""
        law = gaussian_law(check_scale("sigma", sigma))
        return draw(law, math.prod(_axes(shape))).reshape(shape)

    def discrete_laplace(self, shape: Shape, *, scale: float) -> NDArray[np.int64]:
        """Exact draws, int64 of the given shape; below 1 µs each."""
        law = laplace_law(check_scale("scale", scale))
        return draw(law, math.prod(_axes(shape))).reshape(shape)

    def tie_keys(self, shape: Shape) -> NDArray[np.int64]:
        """Uniform keys from the CSPRNG, int64 of the given shape."""
        raw = np.frombuffer(secrets.token_bytes(8 * math.prod(_axes(shape))), dtype=np.int64)
        return (raw & (2**62 - 1)).reshape(shape) + 1  # 62 bits, from 1: 0 marks who is no candidate


@dataclass(frozen=True, slots=True, eq=False)
class GeneratorNoise:
    """Noise of a NumPy generator, for simulation: it has the right law, and protects nobody."""

    kind: ClassVar[str] = GENERATED
    private: ClassVar[bool] = False
    rng: np.random.Generator

    def discrete_gaussian(self, shape: Shape, *, sigma: float) -> NDArray[np.int64]:
        """Draws by rejection from the discrete Laplace (arXiv 2004.00010, Algorithm 3), int64."""
        sigma = check_scale("sigma", sigma)
        scale = math.floor(sigma) + 1  # Algorithm 3, its t
        out = np.empty(math.prod(_axes(shape)), dtype=np.int64)
        filled = 0
        while filled < out.size:
            # About 70 % are accepted for large σ; a little more is proposed than is missing.
            proposed = self._laplace(int(1.6 * (out.size - filled)) + 16, float(scale))
            excess = (np.abs(proposed) - sigma * sigma / scale) / sigma
            accepted = proposed[self.rng.random(proposed.size) < np.exp(-0.5 * excess * excess)]
            accepted = accepted[: out.size - filled]
            out[filled : filled + accepted.size] = accepted
            filled += accepted.size
        return out.reshape(shape)

    def discrete_laplace(self, shape: Shape, *, scale: float) -> NDArray[np.int64]:
        """Draws as the difference of two geometric variables, int64."""
        return self._laplace(math.prod(_axes(shape)), check_scale("scale", scale)).reshape(shape)

    def tie_keys(self, shape: Shape) -> NDArray[np.int64]:
        """Uniform keys, int64 of the given shape."""
        return self.rng.integers(1, 2**62, size=shape, endpoint=True)

    def _laplace(self, count: int, scale: float) -> NDArray[np.int64]:
        chance = -math.expm1(-1.0 / scale)
        return self.rng.geometric(chance, count) - self.rng.geometric(chance, count)


@dataclass(frozen=True, slots=True, eq=False)
class SeededNoise(GeneratorNoise):
    """Noise for simulation, the same for the same seed: it has the right law, and protects nobody.

    Raises:
        InputError: a seed that is not a whole number of at least 0.
    """

    kind: ClassVar[str] = SEEDED
    rng: np.random.Generator = field(init=False, repr=False)
    seed: int

    def __post_init__(self) -> None:
        if isinstance(self.seed, bool) or not isinstance(self.seed, (int, np.integer)) or self.seed < 0:
            raise InputError(f"seed={self.seed!r}: must be a whole number of at least 0")
        object.__setattr__(self, "rng", np.random.default_rng([0x9A7E, self.seed]))


def as_noise(source: NoiseSource | np.random.Generator) -> NoiseSource:
    """The source itself, or a NumPy generator as one that protects nobody; InputError: a seed or None."""
    if isinstance(source, np.random.Generator):
        return GeneratorNoise(source)
    if source is None or isinstance(source, (int, np.integer, np.random.RandomState)):
        raise InputError(
            f"noise={source!r}: SystemNoise() is meant, which protects, or for a simulation "
            "SeededNoise(seed) or a NumPy generator"
        )
    return source


def noise_from_seed(seed: int | None) -> NoiseSource:
    """Noise that protects where there is no seed, seeded noise otherwise."""
    return SystemNoise() if seed is None else SeededNoise(seed)


def _axes(shape: Shape) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else shape


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
    kept &= ~(negative & (magnitude == 0))  # else 0 would come up twice as often
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
