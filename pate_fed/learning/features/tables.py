"""A table's rows as public numbers: knots of numbers, values of categories, missing as a value of its own.

Knots are declared, or quantiles of the public pool; never of private records.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError, IntegrityError
from pate_fed.learning.features.feature_map import Embedding, FeatureMap
from pate_fed.learning.features.settings import FeatureSettings
from pate_fed.structure import from_plain, to_plain

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Knots = tuple[tuple[float, ...], ...]

QUANTILES = 25  # knots of a number by default
SPREAD = math.sqrt(12)  # gives a number that is spread evenly over its knots a variance of 1


def check_rows(rows: NDArray[Any], columns: tuple[int, ...]) -> None:
    """Hold rows to float64 (n, inputs) of these columns.

    Raises:
        InputError: they are of another width.
    """
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
        """Rows float64 (n, inputs) to float32 (n, width).

        Raises:
            InputError: rows of another width.
        """
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
                chosen = np.nan_to_num(part) > 0
                found[:, place : place + width], missing = chosen, ~chosen.any(axis=1)
            found[:, place + width] = missing
            at, place = at + width, place + width + 1
        return np.asarray(found / self.scale, dtype=np.float32)

    def to_plain(self) -> dict[str, Any]:
        """Columns, knots and scale."""
        return {
            "columns": list(self.columns),
            "knots": [list(own) for own in self.knots],
            "scale": self.scale,
        }

    @classmethod
    def from_plain(cls, content: dict[str, Any]) -> TableEmbedding:
        """Read what `to_plain` gave.

        Raises:
            ValueError: knots that do not fit the columns, or do not rise.
        """
        columns = tuple(int(width) for width in content["columns"])
        knots = tuple(tuple(float(each) for each in own) for own in content["knots"])
        scale = float(content["scale"])
        _check_knots(columns, knots)
        if not 0 < scale < math.inf:
            raise ValueError("no scale")
        return cls(columns, knots, scale)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """The same as an array of bytes."""
        return {"table": np.frombuffer(json.dumps(self.to_plain()).encode(), dtype=np.uint8)}


def _check_knots(columns: tuple[int, ...], knots: Knots) -> None:
    for width, own in zip(columns, knots, strict=True):
        if (width == 1) != bool(own) or list(own) != sorted(set(own)) or not all(map(math.isfinite, own)):
            raise ValueError("knots of a number rise, and a category has none")


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
        content = {"settings": to_plain(self.settings), "knots": [list(own) for own in self.knots]}
        return json.dumps(content, sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> BinFeatures:
        """Read what `to_bytes` gave.

        Raises:
            IntegrityError: damaged, or no such map.
        """
        try:
            content = json.loads(data)
            settings = from_plain(FeatureSettings, content["settings"], where="features")
            knots = tuple(tuple(float(each) for each in own) for own in content["knots"])
            _check_knots(settings.columns, knots)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, InputError) as error:
            raise IntegrityError("the message: not a feature map that pate_fed wrote, or damaged") from error
        return cls(settings, knots)

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
