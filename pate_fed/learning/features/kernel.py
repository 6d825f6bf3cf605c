"""Features of a Gaussian kernel, never negative: at anchors of the public pool, or at random.

With anchors c_j and their kernel matrix K, (K + jitter)^(-1/2) k(x, c) are Nyström features, whose inner
products are the kernel. The symmetric root leaves each near its own anchor, so that few are negative; these
become 0, and what is left is scaled to length 1 and rounded down to the lattice. A power beyond 1/2 takes
length from what all inputs have in common, which tells no classes apart but would take most of the length
that the noise is measured against.

What a row becomes follows from that row alone, to the bit: whatever sums over a row's numbers is computed of
whole numbers that stay below 2^53, where doubles are exact. So neither the rows beside it nor the number of
threads, which choose the order of a matrix product's sums, have a part in it.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.learning.features.feature_map import Embedding, FeatureMap, FeatureSettings
from pate_fed.structure import to_plain

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Exact = NDArray[np.float64]

JITTER = 1e-2  # of a kernel's unit diagonal
CONSTANT = 8  # a part of the length: 1/64 of its square is the same for all inputs
_EXACT = 52  # bits of whole numbers whose sums and products are exact in doubles, with one to spare
_FAR = 4  # bits before the point of an embedded number: beyond 16 the kernel is 0 at every anchor near 0


def gaussian_kernel(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """exp(-|a_i - b_j|²): (n, d) and (m, d) to (n, m)."""
    squares = (a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1)
    squares -= 2 * (a @ b.T)
    np.maximum(squares, 0, out=squares)
    np.negative(squares, out=squares)
    found: NDArray[Any] = np.exp(squares, out=squares)
    return found


def _bits(terms: int) -> int:
    """Bits that whole numbers may have so that a sum of so many products of two is exact."""
    return (_EXACT - math.ceil(math.log2(terms + 1))) // 2


def whole(values: NDArray[Any], places: int, *, most: float) -> Exact:
    """Values cut at ±`most`, as whole numbers of 2^-`places`, float64 of the same shape."""
    found: Exact = values.astype(np.float64)
    np.clip(found, -most, most, out=found)
    found *= 2.0**places
    return np.rint(found, out=found)


@dataclass(frozen=True, slots=True, eq=False)
class WholeMatrix:
    """A public matrix (k, m) as whole numbers of 2^-`places`, so many that sums of k products are exact."""

    entries: Exact
    places: int

    @classmethod
    def of(cls, matrix: NDArray[Any]) -> WholeMatrix:
        """The matrix, rounded."""
        largest = float(np.abs(matrix).max(initial=2.0**-60))
        places = _bits(len(matrix)) - math.ceil(math.log2(largest))
        return cls(whole(matrix, places, most=largest), places)


def row_product(rows: NDArray[Any], matrix: WholeMatrix, *, most: float) -> Exact:
    """Rows (n, k), cut at ±`most` and rounded, times a public matrix: float64 (n, m), each row by itself."""
    places = _bits(rows.shape[1]) - math.ceil(math.log2(most))
    product = whole(rows, places, most=most) @ matrix.entries
    product *= 2.0 ** -(places + matrix.places)
    found: Exact = product
    return found


def row_kernel(rows: NDArray[Any], points: NDArray[Any]) -> Exact:
    """exp(-|a_i - b_j|²) of rows (n, d) and public points (m, d), float64 (n, m), each row by itself."""
    places = _bits(4 * rows.shape[1]) - _FAR  # of three terms, one of them twice
    a, b = (whole(each, places, most=2.0**_FAR) for each in (rows, points))
    found: Exact = a @ b.T
    found *= -2
    found += np.einsum("ij,ij->i", a, a)[:, None]
    found += np.einsum("ij,ij->i", b, b)
    found *= -(2.0 ** (-2 * places))
    np.exp(found, out=found)
    return found


def rounded_down(found: NDArray[Any], lattice: int) -> Ints:
    """A constant and non-negative numbers (n, d) scaled to the rest of the length; whole steps (n, 1 + d)."""
    constant = lattice // CONSTANT
    rest = np.sqrt(lattice**2 - constant**2)
    exact = found.astype(np.float64)
    exact *= 2.0 ** _bits(found.shape[1]) / np.maximum(exact.max(axis=1, keepdims=True), 1e-300)
    np.rint(exact, out=exact)
    length = np.sqrt(np.einsum("ij,ij->i", exact, exact))[:, None]
    exact *= rest / np.maximum(length, 1.0)
    steps = np.empty((len(found), 1 + found.shape[1]), dtype=np.int64)
    steps[:, 0] = constant
    steps[:, 1:] = exact  # a whole number is what is rounded towards 0
    return steps


class AnchorFeatures(FeatureMap):
    """The kernel at anchors of the public pool, turned by a power of their kernel matrix.

    `points` are the anchors, embedded: float16 (features, width).
    """

    def __init__(self, settings: FeatureSettings, embedding: Embedding, points: NDArray[np.float16]) -> None:
        self.settings, self.embedding, self.points = settings, embedding, points
        self._root = WholeMatrix.of(_root(points, settings.power))

    @property
    def dimension(self) -> int:
        """Features of one input."""
        return 1 + len(self.points)

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """The embedding's."""
        return self.embedding.image_shape

    @property
    def root(self) -> Exact:
        """What the kernel at the anchors is turned by, float64 (anchors, anchors)."""
        return self._root.entries * 2.0**-self._root.places

    @property
    def digest(self) -> str:
        """SHA-256 hex over settings, embedding and points."""
        state = hashlib.sha256(json.dumps(to_plain(self.settings), sort_keys=True).encode())
        for name, array in sorted(self._arrays().items()):
            little = array.dtype.newbyteorder("<")
            state.update(f"{name} {array.shape} {little}".encode())
            state.update(np.ascontiguousarray(array, dtype=little).tobytes())
        return state.hexdigest()

    def to_bytes(self, *, settings: FeatureSettings | None = None, **arrays: NDArray[Any]) -> bytes:
        """A safetensors file: settings, embedding and points; of a map that has more parts, these too."""
        from safetensors.numpy import save

        text = json.dumps(to_plain(settings or self.settings)).encode()
        arrays |= self._arrays() | {"settings": np.frombuffer(text, dtype=np.uint8)}
        return save({name: np.ascontiguousarray(array) for name, array in arrays.items()})

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return self.embedding.to_arrays() | {"points": self.points}

    def steps(self, inputs: NDArray[Any]) -> Ints:
        """Inputs that the embedding takes, to int64 (n, dimension)."""
        near = row_kernel(self.embedding.encode(inputs), self.points)
        found = row_product(near, self._root, most=1.0)
        return rounded_down(np.maximum(found, 0, out=found), self.settings.lattice)


_ROOTS: dict[tuple[bytes, tuple[int, ...], float], Floats] = {}


def _root(points: NDArray[np.float16], power: float) -> Floats:
    """The anchors' kernel matrix to the power of -`power`, float32 (anchors, anchors).

    The last one is kept: in a simulation the coordinator and every hospital have the same map, and taking it
    is a fifth of a study's time.
    """
    key = hashlib.sha256(np.ascontiguousarray(points).tobytes()).digest(), points.shape, power
    if key not in _ROOTS:
        exact = points.astype(np.float64)
        values, vectors = np.linalg.eigh(gaussian_kernel(exact, exact) + JITTER * np.eye(len(exact)))
        root = (vectors * np.maximum(values, JITTER) ** -power) @ vectors.T
        _ROOTS.clear()
        _ROOTS[key] = root.astype(np.float32)
    return _ROOTS[key]
