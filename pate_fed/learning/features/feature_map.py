"""Feature maps to non-negative whole numbers of bounded length, and what a hospital adds up of them.

INTERFACE for a federation:
    FeatureSettings                        frozen, plain (pate_fed.structure), part of a study's terms
    build_feature_map(settings, public)    the coordinator's, from the public pool alone
    FeatureMap.to_bytes(), feature_map_from_bytes(data, digest=)    to hospitals
    .dimension .squared_norm .digest .largest_entry(records)
    .contributions(inputs, labels, num_classes=, groups=, most_units=, pull=, steps=, several=)
                                                                   -> int64 (dimension, classes)

A record's features are rounded down to the lattice before anything is summed, and clipped in whole numbers,
so a contribution's squared length is at most `squared_norm` whatever the inputs hold.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError
from pate_fed.structure import PART_NAME, check, setting

# Settings of a feature map: frozen, plain, part of a study's terms. No torch here.


KERNEL, LINEAR, BINS, DIRECTIONS = "kernel", "linear-and-kernel", "bins", "directions"
FEATURE_MAPS: tuple[str, ...] = (KERNEL, LINEAR, BINS, DIRECTIONS)
# Measured beside each other on inputs that no table reports (docs/class-sums.md).
IMAGE_DIMENSION, TABLE_DIMENSION = 2000, 300
IMAGE_WHITENING, TABLE_WHITENING = 0.6, 0.75
DIRECTIONS_COUNT, DIRECTIONS_WHITENING = 100, 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureSettings:
    """Which public map turns an input into non-negative whole numbers, and how fine it is.

    "kernel" is a Gaussian kernel at `dimension` anchors of the public pool, at most half of it, turned by
    their kernel matrix to the power of -`whitening`; None takes 2,000 and 0.6 for images, 300 and 0.75 for
    tables. "linear-and-kernel", a study's default for tables, has a row's own numbers beside it. "bins" has
    knots of each number of a table. "directions" are the default map's in the pool, as many as `dimension`,
    for the sum of a whole hospital (`directions`).

    `columns` are what a row has for each column of a table: 1 for a number, else one for each value of a
    category; none for images. `cuts` are declared knots by column; where a number has none, they are
    quantiles of the public pool, `bins` for the map of that name. A record's contribution is at most
    `lattice` steps long, with "bins" each column's.

    Raises:
        InputError: a value out of range, or one of another map.
    """

    name: str = setting(
        KERNEL, choices=FEATURE_MAPS, part=True, help="the public map of an input to features"
    )
    lattice: int = setting(1024, help="steps of the lattice in a length of 1", low=16, high=2**16)
    dimension: int | None = setting(None, help="anchors of the public pool", low=1, high=100_000)
    whitening: float | None = setting(None, help="power of the anchors' kernel matrix", low=0, high=2)
    bins: int = setting(8, help="knots of a number in a table", low=2, high=1000)
    columns: tuple[int, ...] = setting((), low=1, high=10**6)
    cuts: tuple[tuple[float, ...], ...] = setting(())
    seed: int = setting(0, help="of random features; public", low=0, high=2**63 - 1)

    def __post_init__(self) -> None:
        check(self)
        if self.name in (BINS, LINEAR) and not self.columns:
            raise InputError(f"columns: {self.name} is for tables; one number for each column is meant")
        if self.name == LINEAR and self.lattice < 32:
            raise InputError(f"lattice={self.lattice}: at least 32 is meant, a part of which is the kernel's")
        if self.cuts and len(self.cuts) != len(self.columns):
            raise InputError(f"cuts: {len(self.cuts)} for {len(self.columns)} columns")
        for own in self.cuts:
            if list(own) != sorted(set(own)):
                raise InputError(f"cuts: {own} do not rise")

    @property
    def own(self) -> bool:
        """Whether the map is code of the user's own."""
        return PART_NAME.fullmatch(self.name) is not None

    @property
    def most_anchors(self) -> int:
        """Anchors where the pool has enough."""
        if self.dimension is not None:
            return self.dimension
        if self.name == DIRECTIONS:
            return DIRECTIONS_COUNT
        return TABLE_DIMENSION if self.columns else IMAGE_DIMENSION

    @property
    def power(self) -> float:
        """The power of the anchors' kernel matrix, without its sign."""
        if self.whitening is not None:
            return self.whitening
        if self.name == DIRECTIONS:
            return DIRECTIONS_WHITENING
        return TABLE_WHITENING if self.columns else IMAGE_WHITENING


Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_CHUNK = 1000  # records whose features are in memory at once
_BLOCK = 500  # of them that are computed at once, near the processor
_ENTRIES = 2**18  # of patients' own sums that are, too


class Embedding(ABC):
    """Inputs as public numbers whose distances mean something; its mean squared distance in the pool is 2."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Numbers that an input becomes."""

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """Height, width and channels of the images that it takes; None for rows of a table."""
        return None

    @abstractmethod
    def encode(self, inputs: NDArray[Any]) -> NDArray[np.float32]:
        """Inputs to float32 (n, width)."""

    @abstractmethod
    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """All that it was made of, as arrays for a file."""


class Pull(Protocol):
    """By how much a record's features count for each class, in whole numbers.

    Calling it gives int64 (n, classes) of features int64 (n, dimension) and labels int64 (n,): of each row by
    that row alone, with a sum of squares of at most `length`². Where the whole sum is cut to so many lengths
    these may be doubles, and no row is bounded.
    """

    @property
    def length(self) -> int:
        """The most that it may be long."""

    def __call__(self, features: Ints, labels: Ints) -> Ints | Floats:
        """Int64 or float64 (n, classes)."""


class FeatureMap(ABC):
    """A public map of inputs to non-negative whole numbers, at most √`squared_norm` steps long."""

    settings: FeatureSettings

    @property
    @abstractmethod
    def dimension(self) -> int:
        """Features of one input."""

    @property
    def squared_norm(self) -> int:
        """The most that a record's features, squared and added up, can be: the steps in a length of 1."""
        return self.settings.lattice**2

    @property
    def further(self) -> int:
        """The last so many features may be of less use than the others: the sums tell how much they weigh."""
        return 0

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """Height, width and channels of the images that it takes; None for rows of a table."""
        return None

    @property
    def digest(self) -> str:
        """SHA-256 hex over the settings and all that was taken from the public pool."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @abstractmethod
    def to_bytes(self) -> bytes:
        """A safetensors file: plain arrays, no code is in it and none is run on reading."""

    @abstractmethod
    def steps(self, inputs: NDArray[Any]) -> Ints:
        """Non-negative whole numbers near the map, before they are clipped; int64 (n, dimension)."""

    def features(self, inputs: NDArray[Any]) -> Ints:
        """The features of inputs in steps of the lattice, int64 (n, dimension).

        Raises:
            InputError: inputs that do not fit the map.
        """
        found = np.empty((len(inputs), self.dimension), dtype=np.int64)
        for start in range(0, len(inputs), _BLOCK):
            part = self.steps(inputs[start : start + _BLOCK])
            found[start : start + _BLOCK] = clip_rows(part, self.squared_norm)
        return found

    def scaled(self, inputs: NDArray[Any]) -> NDArray[np.float32]:
        """The same in units of the greatest length, float32 (n, dimension)."""
        found = np.empty((len(inputs), self.dimension), dtype=np.float32)
        for start in range(0, len(inputs), _CHUNK):
            part = self.features(inputs[start : start + _CHUNK])
            found[start : start + _CHUNK] = part / math.sqrt(self.squared_norm)
        return found

    @property
    def largest(self) -> int:
        """Bound on one feature, in steps."""
        return math.isqrt(self.squared_norm)

    def largest_entry(self, records: int) -> int:
        """Bound on an entry of a sum over so many records, or patients, in steps."""
        return records * math.isqrt(self.squared_norm)

    def contributions(
        self,
        inputs: NDArray[Any],
        labels: NDArray[np.int64],
        *,
        num_classes: int,
        groups: NDArray[np.int64] | None = None,
        most_units: int | None = None,
        pull: Pull | None = None,
        kept: NDArray[Any] | None = None,
        steps: int | None = None,
        several: int | None = None,
    ) -> Ints:
        """A hospital's clipped sum Σ φ(x) onehot(y)ᵀ, int64 (dimension, num_classes).

        With `steps` labels are places from 0 to so many between two ends, which share φ(x): the second has
        its label's part of each feature, rounded to a whole number, and the first what is left. With
        `several` labels are bits of so many yes/no labels, two columns each: φ(x) counts in one of each two,
        and what a record adds is √`several` times as long.

        Records with the same number in `groups` int64 (n,) are one patient's: their own sum is clipped to the
        length of one record's. With `most_units` the whole sum is clipped to so many such lengths, which is
        what protects a hospital. With a `pull` it is Σ φ(x) pull(x, y)ᵀ, and that length is `pull.length`
        times as long. `kept` are the inputs' features, whole numbers (n, dimension), where they are at hand.

        Raises:
            InputError: inputs, labels or groups that do not fit together.
        """
        known = num_classes if steps is None else steps + 1
        _check_labels(labels, len(inputs), known if several is None else 2**several)
        if steps is not None and (num_classes != 2 or pull is not None):
            raise InputError("steps: two ends are meant, and nothing that pulls")
        if several is not None and (num_classes != 2 * several or (steps, pull) != (None, None)):
            raise InputError("several: two columns a label are meant, and nothing that pulls")
        if groups is not None and groups.shape != labels.shape:
            raise InputError(f"groups {groups.shape} for labels {labels.shape}: one for each record is meant")
        squared_norm = self.squared_norm * (several or 1) * (1 if pull is None else pull.length**2)
        total = np.zeros((self.dimension, num_classes), dtype=np.int64)
        before = self.asked_alone(inputs)

        def pulled(rows: Ints) -> tuple[Ints, Ints | Floats | None]:
            features = self.features(inputs[rows]) if kept is None else kept[rows]
            if pull is None:  # what pulls takes them as doubles
                features = features.astype(np.int64, copy=False)
            if several is not None:
                return features, _marks(labels[rows], several)
            return features, None if pull is None else pull(features, labels[rows])

        alone, together = _by_patient(labels, groups)
        for start in range(0, len(alone), _CHUNK):
            rows = alone[start : start + _CHUNK]
            if steps is not None:
                total += _shared(pulled(rows)[0], labels[rows], steps).sum(axis=0)
            else:
                _add(total, *pulled(rows), labels[rows])
        most = max(1, _ENTRIES // total.size)  # patients at once
        for patients in together:
            step = max(1, min(most, _CHUNK // patients.shape[1]))
            for start in range(0, len(patients), step):
                rows = patients[start : start + step]
                own = np.zeros((len(rows), *total.shape), dtype=np.int64)
                for at in range(0, rows.shape[1], _CHUNK):
                    part = rows[:, at : at + _CHUNK]
                    features, pulls = pulled(part.ravel())
                    if steps is not None:
                        shared = _shared(features, labels[part.ravel()], steps)
                        own += shared.reshape(*part.shape, *total.shape).sum(axis=1)
                        continue
                    if pulls is None:
                        pulls = np.eye(num_classes)[labels[part.ravel()]]
                    own += _products(features.reshape(*part.shape, -1), pulls.reshape(*part.shape, -1))
                total += _clipped_each(own, squared_norm).sum(axis=0)
        self.require_alike(inputs, before)
        return total if most_units is None else clipped(total, squared_norm * most_units**2)

    def asked_alone(self, inputs: NDArray[Any]) -> Floats | None:
        """What is held against `require_alike` after a hospital's sum; of maps of ours nothing."""
        return None

    def require_alike(self, inputs: NDArray[Any], before: Floats | None) -> None:
        """Hold that the map says the same as before it had seen the records."""


def _by_patient(labels: Ints, groups: Ints | None) -> tuple[Ints, list[Ints]]:
    """Rows of patients with one record, (n,), and of those with as many each, (patients, records) in turn."""
    if groups is None:
        return np.arange(len(labels)), []
    _, place, count = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.lexsort((place, count[place]))
    times, first = np.unique(count[place][order], return_index=True)
    parts = np.split(order, first[1:])
    found = {int(each): part.reshape(-1, each) for each, part in zip(times, parts, strict=len(order) > 0)}
    alone = found.pop(1, np.zeros((0, 1), dtype=np.int64))
    return np.sort(alone[:, 0]), list(found.values())


def _shared(features: Ints, labels: Ints, steps: int) -> Ints:
    """Each record's features shared by two ends, int64 (n, dimension, 2): none is negative."""
    second = (2 * features * labels[:, None] + steps) // (2 * steps)
    return np.stack([features - second, second], axis=2)


def _marks(labels: Ints, several: int) -> Ints:
    """In which columns records count, 1 or 0, int64 (n, 2·several): of each label's no and yes, in one."""
    yes = labels[:, None] >> np.arange(several) & 1
    return np.stack([1 - yes, yes], axis=2).reshape(len(labels), -1)


def _products(features: Ints, pulls: Ints | Floats) -> Ints:
    """Σ φ(x) pull(x)ᵀ of each patient: (patients, records, …) to int64 (patients, dimension, classes)."""
    exact = features.astype(np.float64).transpose(0, 2, 1)  # in doubles, which hold whole numbers below 2^53
    return np.asarray((exact @ pulls.astype(np.float64)).astype(np.int64))


def _clipped_each(own: Ints, squared_norm: int) -> Ints:
    """`clipped` of each patient's sum, (patients, dimension, classes)."""
    largest = max(int(own.max()), -int(own.min()))
    if largest**2 * own[0].size >= 2**52:  # else squares are whole numbers that doubles hold, too
        return np.stack([clipped(each, squared_norm) for each in own])
    squares = np.einsum("pdc,pdc->p", own, own)
    long = np.flatnonzero(squares > squared_norm)
    root = np.floor(np.sqrt(squares[long] - 1)).astype(np.int64)  # of whole numbers below 2^52: exact
    shrunk = np.abs(own[long]) * math.isqrt(squared_norm) // (root + 1)[:, None, None]
    own[long] = np.where(own[long] < 0, -shrunk, shrunk)
    return own


def _check_labels(labels: NDArray[np.int64], count: int, num_classes: int) -> None:
    if labels.shape != (count,) or labels.dtype.kind not in "iu":
        raise InputError(f"labels are {labels.dtype} {labels.shape}: whole numbers ({count},) are meant")
    if count and not (labels.min() >= 0 and labels.max() < num_classes):
        raise InputError(f"a label is none of the classes 0 to {num_classes - 1}")


def _add(total: Ints, features: Ints, pulls: Ints | Floats | None, labels: NDArray[np.int64]) -> None:
    if pulls is not None:  # in doubles, which hold whole numbers below 2^53
        total += (features.T.astype(np.float64) @ pulls.astype(np.float64)).astype(np.int64)
        return
    for label in np.unique(labels):
        total[:, label] += features[labels == label].sum(axis=0)


def clip_rows(rows: Ints, squared_norm: int) -> Ints:
    """Rows of whole numbers, each with a sum of squares of at most `squared_norm`; int64 (n, d).

    Negative numbers become 0. A row that is too long is scaled down in whole numbers, every entry rounded
    towards 0, so that no rounding can make it longer.
    """
    return cut_rows(np.clip(rows, 0, math.isqrt(squared_norm)), squared_norm)


def cut_rows(rows: Ints, squared_norm: int) -> Ints:
    """The same of small whole numbers with signs, which they keep: their squares must not pass 2^63."""
    found, squares = rows.copy(), np.einsum("ij,ij->i", rows, rows)
    for row in np.flatnonzero(squares > squared_norm):
        divisor = math.isqrt(int(squares[row]) - 1) + 1
        found[row] = np.sign(rows[row]) * (np.abs(rows[row]) * math.isqrt(squared_norm) // divisor)
    return found


def clipped(total: Ints, squared_norm: int) -> Ints:
    """Whole numbers of any shape with a sum of squares of at most `squared_norm`, scaled down if need be.

    Every entry is rounded towards 0, so that no rounding can make them longer.
    """
    largest = max(int(total.max(initial=0)), -int(total.min(initial=0)))
    # Squares are summed exactly: one that wrapped around would let the sum pass uncut.
    exact = total.astype(object) if largest**2 * max(1, total.size) >= 2**63 else total
    squares = int((exact * exact).sum())
    if squares <= squared_norm:
        return total
    shrunk = np.abs(exact) * math.isqrt(squared_norm) // (math.isqrt(squares - 1) + 1)
    return np.asarray(np.where(exact < 0, -shrunk, shrunk), dtype=np.int64)
