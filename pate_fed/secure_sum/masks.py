"""What is added to a vector before it leaves: a hospital's share of noise, then masks mod 2^16 or 2^32.

The source of noise is the caller's; this room knows nothing of privacy accounting. A mask is uniform integers
from a key of 256 bits: AES-256-CTR over zeros from a zero counter, a keystream: without its key it is not
told from uniform integers. Each key is derived for one pair (or one hospital) and one batch and makes one
mask.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, modes
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from numpy.typing import NDArray

from pate_fed.errors import InputError
from pate_fed.secure_sum.keys import KEY_BYTES

Vector = NDArray[np.uint16] | NDArray[np.uint32]

_DTYPES: dict[int, np.dtype[Any]] = {16: np.dtype("<u2"), 32: np.dtype("<u4")}
_FROM_ZERO = modes.CTR(bytes(16))  # a key makes one keystream
_BLOCK = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SumRange:
    """Where every entry of a sum surely lies, both ends included; it decides the modulus.

    Raises:
        InputError: an empty range, or one that 32 bits do not hold.
    """

    smallest: int
    largest: int

    def __post_init__(self) -> None:
        if not self.smallest <= self.largest < self.smallest + 2**32:
            raise InputError(
                f"smallest={self.smallest}, largest={self.largest}: sums mod 2^32 hold a range of 1 to 2^32 "
                "integers"
            )

    @classmethod
    def votes(cls, num_teachers: int) -> SumRange:
        """Totals of votes without noise: 0 to the number of all teachers."""
        return cls(smallest=0, largest=num_teachers)

    @classmethod
    def noisy(cls) -> SumRange:
        """Totals with noise, which has no bound: all 32 bits, around zero."""
        return cls(smallest=-(2**31), largest=2**31 - 1)

    @property
    def bits(self) -> int:
        """16 where the range is at most half of the circle mod 2^16 (half the upload), else 32."""
        return 16 if self.largest - self.smallest < 2**15 else 32

    def lift(self, residues: Vector) -> NDArray[np.int64]:
        """The integers in the range that have these residues: int64, the same shape."""
        # the one in the range, which is no longer than the circle
        lifted: NDArray[np.int64] = (residues.astype(np.int64) - self.smallest) % 2**self.bits + self.smallest
        return lifted

    def fold(self, sums: NDArray[np.int64]) -> NDArray[np.int64]:
        """Lifted sums, those beyond the range brought into it; the same where they lie in it.

        Somebody who masks other than its votes can shift a sum anywhere on the circle mod 2^bits. One up the
        circle is never more than one up or down the range here, wherever that is, so that a shift makes an
        honest vote count no more than it does: up to the largest, flat, and down again to the smallest on the
        far half of the circle.

        Raises:
            InputError: a range of more than half of the circle.
        """
        span, half = self.largest - self.smallest, 2 ** (self.bits - 1)
        if span >= half:
            raise InputError(f"a range of {span + 1} integers is more than half of 2^{self.bits}")
        up = sums - self.smallest
        folded: NDArray[np.int64] = np.where(
            up < half, np.minimum(up, span), np.maximum(span - (up - half), 0)
        )
        return folded + self.smallest


class Masker:
    """Adds and takes away masks of one length, mod 2^`bits`, in place and without new memory.

    Raises:
        InputError: `bits` is not 16 or 32, or `length` is less than 1.
    """

    __slots__ = ("_buffer", "_mask", "_zeros", "dtype", "length")

    def __init__(self, length: int, bits: int) -> None:
        if bits not in _DTYPES or length < 1:
            raise InputError(f"length={length}, bits={bits}: at least one entry of 16 or 32 bits is meant")
        self.length, self.dtype = length, _DTYPES[bits]
        size = length * self.dtype.itemsize
        self._zeros = bytes(size)
        self._buffer = bytearray(size + _BLOCK - 1)
        self._mask = np.frombuffer(self._buffer, dtype=self.dtype, count=length)

    def __repr__(self) -> str:
        return f"Masker(length={self.length}, dtype={self.dtype})"

    def residues(self, values: NDArray[np.int64]) -> Vector:
        """Integers reduced mod 2^bits: a new, writable vector of shape (length,)."""
        reduced: Vector = values.reshape(-1).astype(self.dtype)
        return reduced

    def add(self, total: Vector, key: bytes) -> None:
        """Add the mask of `key` to `total`, in place."""
        self._expand(key)
        np.add(total, self._mask, out=total)

    def take(self, total: Vector, key: bytes) -> None:
        """Take the mask of `key` from `total`, in place."""
        self._expand(key)
        np.subtract(total, self._mask, out=total)

    def _expand(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise InputError(f"a mask's key has {KEY_BYTES} bytes, not {len(key)}")
        Cipher(AES(key), _FROM_ZERO).encryptor().update_into(self._zeros, self._buffer)


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
