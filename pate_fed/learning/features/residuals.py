"""What is summed in rounds: features by class at first, then by what public weights left unexplained.

A record's residual is onehot(y) - softmax(W·φ(x)), cut to a fixed length, in whole numbers. It follows from
that record and the public weights alone, to the bit: what sums over features or classes is computed of whole
numbers that stay below 2^53, where doubles are exact, and all else entry by entry. Its length is held in
whole numbers at the very end, so no weights, however they were chosen, make it longer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import IntegrityError
from pate_fed.learning.features.feature_map import cut_rows

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

FINE = 2**16  # steps in a weight of 1, for features of length 1
MOST_LENGTHS = (
    2**44
)  # of a squared length of features in steps times their number: else doubles are not exact
_WHOLE = 2.0**40  # steps of a probability
_MIXED = 2**20  # values that a feature is mixed by
MOST_CLASSES = 2**12  # whose probabilities in whole numbers sum up exactly
_BYTES = 4
_SURE = 2**30  # steps of a chance that bins end at


def pack_weights(weights: Floats) -> bytes:
    """Weights (dimension, classes) as hospitals get them: 32 bits each, in steps of 1/`FINE`."""
    most = 2**31 - 1
    return np.clip(np.rint(weights * FINE), -most, most).astype("<i4").tobytes()


def packed_size(dimension: int, classes: int) -> int:
    """Bytes that weights (dimension, classes) take."""
    return _BYTES * dimension * classes


def unpack_weights(content: bytes, shape: tuple[int, int]) -> Floats:
    """What `pack_weights` gave, float64 (dimension, classes): every number is finite.

    Raises:
        IntegrityError: weights of another shape.
    """
    if len(content) != packed_size(*shape):
        raise IntegrityError(f"the weights take {len(content)} bytes: {shape} of {_BYTES} bytes are meant")
    return np.frombuffer(content, "<i4").reshape(shape).astype(np.float64) / FINE


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassPull:
    """A record's class, `length` times."""

    num_classes: int
    length: int

    def __call__(self, features: Ints, labels: Ints) -> Ints:
        """Int64 (n, classes)."""
        found = np.zeros((len(labels), self.num_classes), dtype=np.int64)
        found[np.arange(len(labels)), labels] = self.length
        return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResidualPull:
    """A record's residual under public weights, in `unit` steps of 1, at most `length` steps long.

    `weights` float64 (dimension, classes) are those of `unpack_weights`; `squared_norm` is that of the map.
    """

    weights: Floats
    squared_norm: int
    length: int
    unit: int

    def __call__(self, features: Ints, labels: Ints) -> Ints:
        """Int64 (n, classes)."""
        rows = np.arange(len(labels))
        scores, mixed = self._scores(features)
        shares = np.rint(np.exp(scores - scores.max(axis=1, keepdims=True)) * _WHOLE)
        residual = -shares / shares.sum(axis=1, keepdims=True)
        residual[rows, labels] += 1
        residual *= self.unit
        fine = np.rint(residual * _MIXED)
        long = np.sqrt((fine * fine).sum(axis=1, keepdims=True)) / _MIXED  # of 2^26 at most: exact
        residual *= np.minimum(1.0, self.length / np.maximum(long, 1e-9))
        return cut_rows(np.floor(residual + self._dither(mixed)).astype(np.int64), self.length**2)

    def _scores(self, features: Ints) -> tuple[Floats, NDArray[np.uint64]]:
        """Scores (n, classes), and a number (n,) that depends on all features; both of each row alone."""
        mixing = (np.arange(len(self.weights), dtype=np.int64) * 2654435761 + 12345) % 2**32 % _MIXED
        steps = np.rint(self.weights * FINE)
        exact = features.astype(np.float64) @ np.column_stack([steps, mixing.astype(np.float64)])
        return exact[:, :-1] / (FINE * math.sqrt(self.squared_norm)), exact[:, -1].astype(np.uint64)

    def _dither(self, mixed: NDArray[np.uint64]) -> Floats:
        """From 0 to below 1, (n, classes): rounding down after it is right on average over records."""
        classes = np.arange(1, self.weights.shape[1] + 1, dtype=np.uint64)
        turned = (mixed[:, None] + np.uint64(1)) * (classes * np.uint64(0x9E3779B97F4A7C15) | np.uint64(1))
        turned ^= turned >> np.uint64(29)
        turned *= np.uint64(0xBF58476D1CE4E5B9)
        return np.asarray((turned >> np.uint64(32)).astype(np.float64) / 2.0**32)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WholePull:
    """A record's residual under public weights, `unit` times, where what all of a hospital add is cut.

    `weights` float64 (dimension, classes) are for features in lengths of `lattice` steps; `length` is how
    many times the hospital's whole sum may be as long as the terms say.
    """

    weights: Floats
    lattice: int
    length: int
    unit: int

    def __call__(self, features: Ints, labels: Ints) -> Floats:
        """Float64 (n, classes), every number finite."""
        scores = features.astype(np.float64) @ self.weights / self.lattice
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        residual = -shares / shares.sum(axis=1, keepdims=True)
        residual[np.arange(len(labels)), labels] += 1
        return np.asarray(self.unit * residual)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoreRows:
    """The row in which a record is counted: by the class that public weights say, and by how sure they are.

    `weights` float64 (dimension, classes) and `offset` float64 (classes,) give scores, whose softmax is each
    class's chance; `edges` float64 (classes, bins - 1) are of the greatest chance, for each class that may be
    said. `squared_norm` is that of the map. Whatever they are, a record has one row.
    """

    weights: Floats
    offset: Floats
    edges: Floats
    squared_norm: int

    @property
    def bins(self) -> int:
        """Rows of each class."""
        return int(self.edges.shape[1]) + 1

    def __call__(self, features: Ints) -> Ints:
        """Int64 (n,), of each row of features int64 (n, dimension) by that row alone."""
        exact = features.astype(np.float64) @ np.rint(self.weights * FINE)
        scores = exact / (FINE * math.sqrt(self.squared_norm)) + self.offset
        shares = np.rint(np.exp(scores - scores.max(axis=1, keepdims=True)) * _WHOLE)
        said = scores.argmax(axis=1)
        sure = shares.max(axis=1) / shares.sum(axis=1)
        return np.asarray(said * self.bins + (sure[:, None] > self.edges[said]).sum(axis=1), dtype=np.int64)

    def to_bytes(self) -> bytes:
        """As hospitals get it: `pack_weights`, then offset and edges in 32 bits each."""
        sure = np.rint(np.clip(self.edges, 0.0, 1.0) * _SURE).astype("<i4")
        return pack_weights(self.weights) + pack_weights(self.offset) + sure.tobytes()

    @classmethod
    def size(cls, dimension: int, classes: int, bins: int) -> int:
        """Bytes that it takes."""
        return packed_size(dimension, classes) + _BYTES * classes * bins

    @classmethod
    def of_bytes(cls, content: bytes, shape: tuple[int, int], *, bins: int, squared_norm: int) -> ScoreRows:
        """What `to_bytes` gave, of weights of this shape; every number is finite.

        Raises:
            IntegrityError: content of another length.
        """
        if len(content) != cls.size(*shape, bins):
            raise IntegrityError(f"the scores take {len(content)} bytes: {cls.size(*shape, bins)} are meant")
        first = packed_size(*shape)
        second = first + packed_size(1, shape[1])
        edges = np.frombuffer(content[second:], "<i4").reshape(shape[1], bins - 1)
        return cls(
            weights=unpack_weights(content[:first], shape),
            offset=unpack_weights(content[first:second], (1, shape[1]))[0],
            edges=edges.astype(np.float64) / _SURE,
            squared_norm=squared_norm,
        )
