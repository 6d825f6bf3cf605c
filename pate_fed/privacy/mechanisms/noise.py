"""Integer noise: exact samplers on the system's CSPRNG to protect, a seeded generator for simulation only.

Both draw from the discrete Gaussian, Pr[x] ∝ exp(-x²/(2σ²)), and the discrete Laplace, Pr[x] ∝ exp(-|x|/b),
over all integers (Canonne, Kamath, Steinke 2020, arXiv 2004.00010, Definition 1). Whoever knows a seed can
subtract the noise, so nothing that is drawn from `SeededNoise` protects anyone, and it says so in its `kind`.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError
from pate_fed.privacy.checks import check_scale
from pate_fed.privacy.mechanisms.exact_noise import draw, gaussian_law, laplace_law

Shape = int | tuple[int, ...]

SYSTEM = "exact integer sampler on the system's CSPRNG"
SEEDED = "not private: seeded noise"
GENERATED = "not private: noise of a NumPy generator"


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
        return (raw & (2**62 - 1)).reshape(shape) + 1


@dataclass(frozen=True, slots=True, eq=False)
class GeneratorNoise:
    """Noise of a NumPy generator, for simulation: it has the right law, and protects nobody."""

    kind: ClassVar[str] = GENERATED
    private: ClassVar[bool] = False
    rng: np.random.Generator

    def discrete_gaussian(self, shape: Shape, *, sigma: float) -> NDArray[np.int64]:
        """Draws by rejection from the discrete Laplace (arXiv 2004.00010, Algorithm 3), int64."""
        sigma = check_scale("sigma", sigma)
        scale = math.floor(sigma) + 1
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
    """The source itself; a NumPy generator as one that protects nobody.

    Raises:
        InputError: a seed, None or an old RandomState.
    """
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
