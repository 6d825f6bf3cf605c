"""A hospital's share of the noise, added before masking, so that what is unmasked is noisy already.

The source of noise is the caller's (`pate_fed.privacy` has exact samplers on the system's CSPRNG); this room
knows nothing of privacy accounting.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError

LEAST_VARIANCE = 2.0
"""Votes squared, a hospital's share. Below it a sum of discrete Gaussians is no longer close to one (Kairouz,
Liu, Steinke 2021, arXiv 2102.06387), and the ledger's figure would not hold."""


class DrawNoise(Protocol):
    """Fresh, independent draws of the discrete Gaussian with parameter `sigma`, in votes."""

    def __call__(self, shape: tuple[int, ...], /, *, sigma: float) -> NDArray[np.int64]:
        """Draws of the given shape."""


def add_noise_share(votes: NDArray[np.int64], draw: DrawNoise, *, sigma_party: float) -> NDArray[np.int64]:
    """Votes plus this hospital's share of noise: int64, the same shape.

    Call it once a batch: two noisy copies of one vector halve the noise that protects it. The machine masks a
    batch once, so the second copy cannot leave.

    Raises:
        InputError: `sigma_party` squared is below 2, or the source gave something else than was asked for.
    """
    if not 0 < sigma_party < math.inf or sigma_party**2 < LEAST_VARIANCE:
        raise InputError(
            f"sigma_party={sigma_party}: a hospital's share of noise needs a variance of at least "
            f"{LEAST_VARIANCE:g} votes squared; give more noise or count on fewer honest hospitals"
        )
    noise = draw(votes.shape, sigma=sigma_party)
    if noise.shape != votes.shape or noise.dtype != np.int64:
        raise InputError("the source of noise gave another shape or type than int64 of the votes' shape")
    return votes + noise
