"""A feature map from a table's schema and the public pool, and the one that a coordinator sent."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError, IntegrityError
from pate_fed.learning.features.directions import base_settings, directions_from_arrays, fit_directions
from pate_fed.learning.features.feature_map import (
    BINS,
    DIRECTIONS,
    KERNEL,
    LINEAR,
    Embedding,
    FeatureMap,
    FeatureSettings,
)
from pate_fed.learning.features.kernel import CONSTANT, AnchorFeatures
from pate_fed.structure import from_plain, to_plain

# A table's rows as public numbers: knots of numbers, values of categories, missing as a value of its own.
#
# Knots are declared, or quantiles of the public pool; never of private records.


Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Knots = tuple[tuple[float, ...], ...]

_ALIKE = 4000  # rows that are drawn from sums
QUANTILES = 25  # knots of a number by default
SPREAD = math.sqrt(12)  # gives a number that is spread evenly over its knots a variance of 1


def check_rows(rows: NDArray[Any], columns: tuple[int, ...]) -> None:
    """Hold rows to float64 (n, inputs) of these columns; InputError where they are of another width."""
    if rows.ndim != 2 or rows.shape[1] != sum(columns):
        raise InputError(f"rows {rows.shape}: (n, {sum(columns)}) is meant")


def fit_knots(settings: FeatureSettings, pool: NDArray[np.float64], *, count: int) -> Knots:
    """Knots by column: as declared, else `count` quantiles of the pool (n, inputs); none of a category.

    Raises:
        InputError: a pool of another width.
    """
    check_rows(pool, settings.columns)
    declared = settings.cuts or ((),) * len(settings.columns)
    shares = (np.arange(count) + 0.5) / count
    knots: list[tuple[float, ...]] = []
    at = 0
    for width, own in zip(settings.columns, declared, strict=True):
        known = pool[:, at][np.isfinite(pool[:, at])]
        at += width
        if width == 1 and not own:
            own = tuple(np.unique(np.quantile(known, shares)).tolist()) if len(known) else (0.0,)
        knots.append(own if width == 1 else ())
    return tuple(knots)


def _rank(values: NDArray[np.float64], knots: tuple[float, ...]) -> NDArray[np.float64]:
    """Where values stand among the knots, from 0 to the number of knots less 1; 0 or 1 where there is one."""
    if len(knots) == 1:
        return np.asarray(values >= knots[0], dtype=np.float64)
    return np.interp(values, knots, np.arange(len(knots)))


class TableEmbedding(Embedding):
    """Rows as numbers whose distances are alike for all columns: (n, inputs and one for missing a column)."""

    def __init__(self, columns: tuple[int, ...], knots: Knots, scale: float) -> None:
        self.columns, self.knots, self.scale = columns, knots, scale

    @property
    def width(self) -> int:
        """Numbers that a row becomes."""
        return sum(self.columns) + len(self.columns)

    def encode(self, inputs: NDArray[Any]) -> Floats:
        """Rows float64 (n, inputs) to float32 (n, width); InputError where they are of another width."""
        check_rows(inputs, self.columns)
        found = np.zeros((len(inputs), self.width))
        at = place = 0
        for width, own in zip(self.columns, self.knots, strict=True):
            part = inputs[:, at : at + width]
            if own:
                missing = np.isnan(part[:, 0])
                rank = _rank(np.where(missing, own[0], part[:, 0]), own) / max(1, len(own) - 1)
                found[:, place] = np.where(missing, 0.0, SPREAD * (rank - 0.5))
            else:
                chosen = part > 0
                found[:, place : place + width], missing = chosen, ~chosen.any(axis=1)
            found[:, place + width] = missing
            at, place = at + width, place + width + 1
        return np.asarray(found / self.scale, dtype=np.float32)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Columns, knots and scale, as an array of bytes."""
        text = json.dumps({"columns": self.columns, "knots": self.knots, "scale": self.scale})
        return {"table": np.frombuffer(text.encode(), dtype=np.uint8)}

    @classmethod
    def of_array(cls, data: NDArray[np.uint8]) -> TableEmbedding:
        """Read what `to_arrays` gave; ValueError where knots do not fit the columns, or do not rise."""
        content = json.loads(data.tobytes())
        columns, scale = tuple(int(width) for width in content["columns"]), float(content["scale"])
        if not 0 < scale < math.inf:
            raise ValueError("no scale")
        return cls(columns, _read_knots(columns, content["knots"]), scale)


def _read_knots(columns: tuple[int, ...], told: list[list[float]]) -> Knots:
    knots = tuple(tuple(float(each) for each in own) for own in told)
    for width, own in zip(columns, knots, strict=True):
        if (width == 1) != bool(own) or list(own) != sorted(set(own)) or not all(map(math.isfinite, own)):
            raise ValueError("knots of a number rise, and a category has none")
    return knots


def fit_table_embedding(settings: FeatureSettings, pool: NDArray[np.float64]) -> TableEmbedding:
    """Knots from the pool float64 (n, inputs) or the settings; the pool's mean squared distance becomes 2.

    Raises:
        InputError: a pool of another width.
    """
    knots = fit_knots(settings, pool, count=QUANTILES)
    spread = float(
        TableEmbedding(settings.columns, knots, 1.0).encode(pool).astype(np.float64).var(axis=0).sum()
    )
    return TableEmbedding(settings.columns, knots, math.sqrt(spread) if spread > 0 else 1.0)


class BinFeatures(FeatureMap):
    """A constant, and for each column of a table the knots around a number, or the value of a category.

    A number between two knots counts for both, by the roots of its shares: a column's features have length 1.
    """

    def __init__(self, settings: FeatureSettings, knots: Knots) -> None:
        self.settings, self.knots = settings, knots
        widths = [len(own) or width for own, width in zip(knots, settings.columns, strict=True)]
        self._places = np.cumsum([1, *(width + 1 for width in widths)])

    @property
    def dimension(self) -> int:
        """Features of one row."""
        return int(self._places[-1])

    @property
    def squared_norm(self) -> int:
        """Every column, and the constant, is at most `lattice` steps long."""
        return (len(self.knots) + 1) * self.settings.lattice**2

    def to_bytes(self) -> bytes:
        """Settings and knots as JSON."""
        content = {"settings": to_plain(self.settings), "knots": self.knots}
        return json.dumps(content, sort_keys=True).encode()

    def steps(self, inputs: NDArray[Any]) -> Ints:
        """Rows float64 (n, inputs) to int64 (n, dimension)."""
        check_rows(inputs, self.settings.columns)
        lattice = self.settings.lattice
        found = np.zeros((len(inputs), self.dimension), dtype=np.int64)
        found[:, 0] = lattice
        rows = np.arange(len(inputs))
        at = 0
        for own, width, place in zip(self.knots, self.settings.columns, self._places, strict=False):
            part = inputs[:, at : at + width]
            at += width
            if not own:
                chosen = np.nan_to_num(part) > 0
                found[:, place : place + width] = lattice * chosen
                found[:, place + width] = lattice * ~chosen.any(axis=1)
                continue
            missing = np.isnan(part[:, 0])
            near = np.clip(np.where(missing, own[0], part[:, 0]), own[0], own[-1])
            rank = np.interp(near, own, np.arange(len(own)))
            left = np.minimum(rank.astype(np.int64), max(0, len(own) - 2))
            for knot, share in ((left, 1 - (rank - left)), (left + 1, rank - left)):
                steps = np.floor(lattice * np.sqrt(share)).astype(np.int64)
                known = ~missing & (steps > 0)
                found[rows[known], place + knot[known]] = steps[known]
            found[:, place + len(own)] = lattice * missing
        return found


def drawn_alike(features: FeatureMap, noisy: Ints) -> NDArray[np.float64]:
    """Rows float64 (n, inputs) like the records, by their released class sums alone (dimension, classes).

    A class is drawn by its share, then each column by that class's own: the distribution nearest to the noisy
    counts at its knots or values. So columns go together as far as classes make them.

    Raises:
        InputError: a map without bins.
    """
    if not isinstance(features, BinFeatures):
        raise InputError(f"features {features.settings.name!r}: rows are drawn from sums of {BINS!r} alone")
    rng = np.random.default_rng(0)
    classes = rng.choice(
        noisy.shape[1], size=_ALIKE, p=_nearest(noisy[0] / max(1, np.maximum(noisy[0], 0).sum()))
    )
    found = np.zeros((_ALIKE, sum(features.settings.columns)))
    at = 0
    for own, width, place in zip(features.knots, features.settings.columns, features._places, strict=False):
        values = len(own) or width
        for label in range(noisy.shape[1]):
            rows = np.flatnonzero(classes == label)
            shares = noisy[place : place + values + 1, label] / max(1, noisy[0, label])
            chosen = rng.choice(values + 1, size=len(rows), p=_nearest(shares))
            known, drawn = rows[chosen < values], chosen[chosen < values]
            if own:
                # One that stands between two knots adds √(1 - t) + √t, in the mean 4/3, and one at a knot 1.
                between = rng.uniform(size=len(known)) < 3 * (shares.sum() - 1)
                far = rng.uniform(-0.5, 0.5, len(known)) * between
                found[rows, at] = np.nan
                found[known, at] = np.interp(drawn + far, np.arange(values), own)
            else:
                found[known, at + drawn] = 1
        at += width
    return found


def _nearest(shares: NDArray[Any]) -> NDArray[np.float64]:
    """The distribution nearest to noisy shares (n,): less a number that all have in common, cut at 0."""
    falling = np.sort(shares.astype(np.float64))[::-1]
    over = (np.cumsum(falling) - 1) / np.arange(1, len(falling) + 1)
    found = np.maximum(shares - over[np.flatnonzero(falling > over)[-1]], 0)
    return np.asarray(found / found.sum())


FARTHEST = 3.0  # deviations at which a number is cut
FINE = 2**16  # steps of a deviation: whole numbers, so that a row's length follows from that row alone
_LARGEST = 1e100  # of a pool's numbers, so that their squares are floats
_KERNEL_SHARE = 4  # of the squared length, a part: the kernel's


class LinearAndKernel(FeatureMap):
    """A table's columns themselves, and a kernel, which has a quarter of the squared length.

    A number is how far it stands above the pool's mean and how far below, in the pool's deviations; a
    category has each of its values, and every column that it is missing. A row longer than half of the pool's
    is shortened to their length. What is nearly linear, as risks mostly are, then stands in a few features,
    above the noise.
    """

    def __init__(
        self, settings: FeatureSettings, spread: NDArray[np.float64], kernel: AnchorFeatures
    ) -> None:
        self.settings, self.spread, self.kernel = settings, spread, kernel

    @property
    def dimension(self) -> int:
        """Features of one row."""
        return self._linear + self.kernel.dimension

    @property
    def further(self) -> int:
        """The kernel's."""
        return self.kernel.dimension

    @property
    def _linear(self) -> int:
        return 1 + sum(3 if width == 1 else width + 1 for width in self.settings.columns)

    @property
    def digest(self) -> str:
        """SHA-256 hex over settings, means, deviations, length and the kernel's digest."""
        text = json.dumps(to_plain(self.settings), sort_keys=True) + self.kernel.digest
        return hashlib.sha256(text.encode() + self.spread.astype("<f8").tobytes()).hexdigest()

    def to_bytes(self) -> bytes:
        """A safetensors file: the kernel's parts, and means, deviations and length."""
        return self.kernel.to_bytes(settings=self.settings, spread=self.spread)

    def steps(self, inputs: NDArray[Any]) -> Ints:
        """Rows float64 (n, inputs) to int64 (n, dimension)."""
        lattice = self.settings.lattice
        whole = math.isqrt(lattice**2 - self.kernel.squared_norm)
        constant = whole // CONSTANT
        found = linear_parts(inputs, self.settings.columns, self.spread)
        length = np.sqrt((found * found).sum(axis=1, keepdims=True))
        scale = math.sqrt(whole**2 - constant**2) / np.maximum(length, self.spread[-1, 0])
        linear = np.floor(found * scale).astype(np.int64)
        first = np.full((len(inputs), 1), constant, dtype=np.int64)
        return np.hstack([first, linear, self.kernel.features(inputs)])


def linear_parts(inputs: NDArray[Any], columns: tuple[int, ...], spread: NDArray[np.float64]) -> Ints:
    """Each column's own numbers in steps of a deviation, never negative; int64 (n, features).

    `spread` float64 (columns, 2) or longer has the mean and the deviation of each column of numbers.
    """
    check_rows(inputs, columns)
    widths = np.array(columns)
    sizes, numbers = np.where(widths == 1, 3, widths + 1), widths == 1
    first, place = np.cumsum(widths) - widths, np.cumsum(sizes) - sizes
    found = np.zeros((len(inputs), int(sizes.sum())), dtype=np.int64)
    mean, deviation = spread[: len(columns)][numbers].T
    part, at = inputs[:, first[numbers]], place[numbers]
    missing = np.isnan(part)
    far = np.clip((np.where(missing, mean, part) - mean) / deviation, -FARTHEST, FARTHEST)
    steps = np.rint(FINE * far)
    found[:, at], found[:, at + 1] = np.maximum(steps, 0), np.maximum(-steps, 0)
    found[:, at + 2] = FINE * missing
    for width, start, at in zip(widths[~numbers], first[~numbers], place[~numbers], strict=True):
        chosen = inputs[:, start : start + width] > 0
        found[:, at : at + width] = FINE * chosen
        found[:, at + width] = FINE * ~chosen.any(axis=1)
    return found


def _fit_spread(columns: tuple[int, ...], pool: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean and deviation of each column of numbers in the pool, and its rows' median length last.

    The outer hundredths count as what bounds them: one 999 among ages moves nothing.
    """
    check_rows(pool, columns)
    spread = np.zeros((len(columns) + 1, 2))
    for column, at in enumerate(np.cumsum([0, *columns[:-1]])):
        known = np.clip(pool[:, at][np.isfinite(pool[:, at])], -_LARGEST, _LARGEST)
        if columns[column] == 1 and len(known):
            near = np.clip(known, *np.quantile(known, (0.01, 0.99)))
            spread[column] = near.mean(), near.std() or known.std()
    # A column of one value has no deviation, but for what a float makes of it.
    spread[spread[:, 1] <= 1e-12 * np.abs(spread[:, 0]), 1] = 1.0
    parts = linear_parts(pool, columns, spread)
    spread[-1] = max(1.0, float(np.median(np.sqrt((parts * parts).sum(axis=1))))), 1.0
    return spread


def _kernel_part(settings: FeatureSettings) -> FeatureSettings:
    return replace(settings, name=KERNEL, lattice=math.isqrt(settings.lattice**2 // _KERNEL_SHARE))


_DAMAGED = "the message: not a feature map that pate_fed wrote, or damaged"


def build_feature_map(settings: FeatureSettings, public: NDArray[Any]) -> FeatureMap:
    """The map of these settings, fitted to the public pool alone: the same pool gives the same map.

    Shapes: `public` uint8 (n, H, W, C), or float64 (n, inputs) for a table; n ≥ 2.

    Raises:
        InputError: a pool that does not fit the settings.
    """
    if len(public) < 2:
        raise InputError(f"a public pool of {len(public)} inputs: at least 2 are meant")
    if settings.name == DIRECTIONS:
        return fit_directions(settings, build_feature_map(base_settings(settings), public), public)
    if settings.columns:
        rows = np.asarray(public, dtype=np.float64)
        if settings.name == BINS:
            return BinFeatures(settings, fit_knots(settings, rows, count=settings.bins))
        if settings.name == LINEAR:
            kernel = build_feature_map(_kernel_part(settings), rows)
            assert isinstance(kernel, AnchorFeatures)
            return LinearAndKernel(settings, _fit_spread(settings.columns, rows), kernel)
        return _on_embedding(settings, fit_table_embedding(settings, rows), rows)
    from pate_fed.learning.features.images import fit_image_embedding  # late: tables need no torch

    return _on_embedding(settings, fit_image_embedding(public), public)


def anchor_places(settings: FeatureSettings, count: int) -> Ints:
    """Which of `count` public inputs become a map's anchors, int64 ascending; none of bins or own code."""
    if settings.name == DIRECTIONS:
        return anchor_places(base_settings(settings), count)
    none = settings.own or settings.name == BINS
    return np.linspace(0, count - 1, 0 if none else min(count // 2, settings.most_anchors)).astype(np.int64)


def _on_embedding(settings: FeatureSettings, embedding: Embedding, public: NDArray[Any]) -> FeatureMap:
    chosen = public[anchor_places(settings, len(public))]
    return AnchorFeatures(settings, embedding, embedding.encode(chosen).astype(np.float16))


def feature_map_from_bytes(data: bytes, *, digest: str | None) -> FeatureMap:
    """Read what `FeatureMap.to_bytes` gave, and hold it to the `digest` in the terms; None: any.

    Raises:
        InputError: the map is code of the user's own, which no file may name.
        IntegrityError: damaged, no feature map, or not the one with that digest.
    """
    found = _from_json(data) if data[:1] == b"{" else _from_arrays(data)
    if digest is not None and found.digest != digest:
        raise IntegrityError(f"the message: the features' SHA-256 is {found.digest}, not {digest}")
    return found


def _from_json(data: bytes) -> FeatureMap:
    try:
        content = json.loads(data)
        settings = from_plain(FeatureSettings, content["settings"], where="features")
        if settings.columns and not settings.own:
            return BinFeatures(settings, _read_knots(settings.columns, content["knots"]))
    except (ValueError, KeyError, TypeError, RecursionError, InputError) as error:
        raise IntegrityError(_DAMAGED) from error
    if settings.own:
        raise InputError(
            f"feature map {settings.name!r}: is code of the user's own, and a file may not name any; the run "
            "that `simulate` gave has the student itself"
        )
    raise IntegrityError(_DAMAGED)


def _from_arrays(data: bytes, *, nested: bool = False) -> FeatureMap:
    from safetensors.numpy import load

    try:
        arrays = load(data)
        text = arrays["settings"].tobytes()
        settings = from_plain(FeatureSettings, json.loads(text), where="features")
        if settings.name == DIRECTIONS:
            if nested:
                raise IntegrityError(_DAMAGED)
            base = _from_arrays(arrays["base"].tobytes(), nested=True)
            return directions_from_arrays(settings, base, arrays)
        embedding: Embedding
        if settings.columns:
            embedding = TableEmbedding.of_array(arrays["table"])
        else:
            from pate_fed.learning.features.images import ImageEmbedding

            embedding = ImageEmbedding.of_array(arrays["encoder"])
        points = arrays["points"]
    except Exception as error:  # what the readers of the header, JSON and NumPy meet first
        raise IntegrityError(_DAMAGED) from error
    fits = points.dtype == np.float16 and points.ndim == 2 and len(points) > 0
    if not fits or points.shape[1] != embedding.width or not np.isfinite(points).all():
        raise IntegrityError("the message: the features' parts do not fit together")
    if settings.name == LINEAR:
        spread = arrays.get("spread", np.zeros(0))
        fits = spread.shape == (len(settings.columns) + 1, 2) and spread.dtype == np.float64
        if not fits or not (np.isfinite(spread).all() and (spread[:, 1] > 0).all() and spread[-1, 0] >= 1):
            raise IntegrityError("the message: the features' parts do not fit together")
        return LinearAndKernel(settings, spread, AnchorFeatures(_kernel_part(settings), embedding, points))
    return AnchorFeatures(settings, embedding, points)
