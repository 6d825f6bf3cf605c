"""Shamir's sharing of random secrets, t of n, vectorised over many secrets.

A secret is 17 limbs, uniform in the field of 65521 elements (272 bits in all; keys of 256 bits are derived
from it). A share is 17 limbs too, so each limb of both fits 16 bits. Fewer than t shares are independent of
the secret, exactly (Shamir 1979). All arithmetic is exact: a sum of 65520 products stays below 2^48, so that
float64 holds it, and every part of it, in whatever order they are added.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import IntegrityError
from pate_fed.secure_sum.keys import SHARE_BYTES, random_below

PRIME = 65521  # the largest prime below 2^16
LIMBS = 17
SECRET_BYTES = SHARE_BYTES  # 2 * LIMBS
MAX_SHARES = PRIME - 1

_ROWS = 64  # of gaps at once
_ONE_THREAD = 2**18  # multiplications: for more OpenBLAS wakes its threads, which then wait on all cores

Limbs = NDArray[np.int64]
Shares = NDArray[np.uint16]


def fresh_secrets(count: int) -> Limbs:
    """Random secrets: int64 (count, 17)."""
    return random_below(PRIME, count * LIMBS).reshape(count, LIMBS)


def from_bytes(data: bytes) -> Shares:
    """Secrets or shares from their bytes, 34 each: uint16 (count, 17); IntegrityError outside the field."""
    if len(data) % SECRET_BYTES:
        raise IntegrityError("a share has another length than 34 bytes")
    if not in_field(data):
        raise IntegrityError("a share is not in its field")
    return np.frombuffer(data, dtype="<u2").reshape(-1, LIMBS)


def in_field(data: bytes) -> bool:
    """Whether every limb in these bytes is in the field."""
    return int(np.frombuffer(data, dtype="<u2").max(initial=0)) < PRIME  # 65521 to 65535 are no limbs


def to_bytes(limbs: Limbs | Shares) -> bytes:
    """Limbs as bytes, two each."""
    return limbs.astype("<u2").tobytes()


def split(secrets: Limbs, *, shares: int, threshold: int) -> Limbs:
    """Shares at the points 1 to `shares` of polynomials of degree `threshold` - 1 with the secrets at 0.

    Shapes: `secrets` int64 (count, 17); the result int64 (shares, count, 17).
    """
    size = secrets.size
    coefficients = np.concatenate(
        [secrets.reshape(1, size), random_below(PRIME, (threshold - 1) * size).reshape(-1, size)]
    )
    return _evaluate(_powers(shares, threshold), coefficients).reshape(shares, *secrets.shape)


def combine(points: Limbs, shares: Limbs | Shares) -> Limbs:
    """The values at 0 of the polynomials of least degree through these shares.

    Shapes: `points` int64 (t,), distinct, 1 and up; `shares` whole numbers (t, ...); the result int64 (...).
    """
    # at most 65520 products below 2^32: exact in int64
    total: Limbs = np.tensordot(_weights(points.astype("<i8").tobytes()), shares.astype(np.int64), 1)
    return total % PRIME


def _evaluate(powers: NDArray[np.float64], coefficients: Limbs) -> Limbs:
    """The product of both in the field, in float64, since BLAS knows no integers: int64."""
    factor, values = coefficients.astype(np.float64), np.empty((len(powers), coefficients.shape[1]))
    rows = max(1, _ONE_THREAD // coefficients.size)
    for start in range(0, len(powers), rows):
        np.matmul(powers[start : start + rows], factor, out=values[start : start + rows])
    products: Limbs = values.astype(np.int64) % PRIME
    return products


@lru_cache(maxsize=4)
def _powers(shares: int, threshold: int) -> NDArray[np.float64]:
    """Powers 0 to threshold - 1 of the points in the field: (shares, threshold). Public."""
    points = np.arange(1, shares + 1, dtype=np.int64)
    table = np.ones((shares, threshold), dtype=np.int64)
    for power in range(1, threshold):
        table[:, power] = table[:, power - 1] * points % PRIME
    return table.astype(np.float64)


@lru_cache(maxsize=8)
def _weights(packed: bytes) -> Limbs:
    """Lagrange's weights at 0 of points, int64: the product over j of x_j / (x_j - x_i). Public."""
    points = np.frombuffer(packed, dtype="<i8")
    below = points % PRIME  # of x_i and all its gaps
    for start in range(0, len(points), _ROWS):
        gaps = (points[start : start + _ROWS, None] - points) % PRIME
        rows = np.arange(len(gaps))
        gaps[rows, start + rows] = 1
        below = below * _product(gaps) % PRIME  # products below 2^32: exact in int64
    power, inverse = below, np.ones_like(below)
    for bit in bin(PRIME - 2)[:1:-1]:  # x^(p - 2) is the inverse, as the field's number is prime
        inverse = inverse * power % PRIME if bit == "1" else inverse
        power = power * power % PRIME
    weights: Limbs = inverse * _product(points[:, None]) % PRIME
    return weights


def _product(factors: Limbs) -> Limbs:
    """The product of the rows in the field, by halves."""
    while len(factors) > 1:
        half = len(factors) // 2
        factors = np.concatenate([factors[:half] * factors[half : 2 * half] % PRIME, factors[2 * half :]])
    product: Limbs = factors[0]
    return product
