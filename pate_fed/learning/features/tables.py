"""Features of a table's rows: knots of numbers, values of categories, and missing as a value of its own.

A number between two knots counts for both, by the roots of its shares, so that a column's features have
length 1. Knots are declared, or quantiles of the public pool; never of private records.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError, IntegrityError
from pate_fed.learning.features.feature_map import FeatureMap
from pate_fed.learning.features.settings import FeatureSettings
from pate_fed.structure import from_plain, to_plain

__all__ = ["TableFeatures", "fit_table_features"]

Ints = NDArray[np.int64]


class TableFeatures(FeatureMap):
    """The map of a table: `knots` by column, none for a category."""

    def __init__(self, settings: FeatureSettings, knots: tuple[tuple[float, ...], ...]) -> None:
        self.settings, self.knots = settings, knots
        widths = [len(own) or width for own, width in zip(knots, settings.columns, strict=True)]
        self._places = np.cumsum([1, *(width + 1 for width in widths)])  # a constant, then column by column

    @property
    def dimension(self) -> int:
        """Features of one row."""
        return int(self._places[-1])

    @property
    def squared_norm(self) -> int:
        """Every column, and the constant, is at most `lattice` steps long."""
        return (len(self.knots) + 1) * self.settings.lattice**2

    @property
    def constant(self) -> int:
        """As long as a column."""
        return self.settings.lattice

    @property
    def digest(self) -> str:
        """SHA-256 hex over settings and knots."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def to_bytes(self) -> bytes:
        """Settings and knots as JSON."""
        content = {"settings": to_plain(self.settings), "knots": [list(own) for own in self.knots]}
        return json.dumps(content, sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> TableFeatures:
        """Read what `to_bytes` gave.

        Raises:
            IntegrityError: damaged, or no such map.
        """
        try:
            content = json.loads(data)
            settings = from_plain(FeatureSettings, content["settings"], where="features")
            knots = tuple(tuple(float(each) for each in own) for own in content["knots"])
            if any(list(own) != sorted(set(own)) for own in knots):
                raise ValueError("knots rise")
            return cls(settings, knots)
        except (ValueError, KeyError, TypeError, InputError) as error:
            raise IntegrityError("the message: not a table's features, or damaged") from error

    def steps(self, inputs: NDArray[Any]) -> Ints:
        """Whole numbers of rows float64 (n, inputs), int64 (n, dimension)."""
        if inputs.ndim != 2 or inputs.shape[1] != sum(self.settings.columns):
            raise InputError(f"rows {inputs.shape}: (n, {sum(self.settings.columns)}) is meant")
        found = np.zeros((len(inputs), self.dimension), dtype=np.int64)
        found[:, 0] = self.settings.lattice
        at = 0
        for own, width, place in zip(self.knots, self.settings.columns, self._places, strict=False):
            part = inputs[:, at : at + width]
            at += width
            if own:
                self._number(part[:, 0], np.array(own), found[:, place:])
            else:
                chosen = np.nan_to_num(part) > 0
                found[:, place : place + width] = self.settings.lattice * chosen
                found[:, place + width] = self.settings.lattice * ~chosen.any(axis=1)
        return found

    def _number(self, values: NDArray[Any], knots: NDArray[np.float64], out: Ints) -> None:
        """Shares of the two knots around each value; `out` (n, knots + 1 and more), the last for missing."""
        missing = np.isnan(values)
        near = np.clip(np.where(missing, knots[0], values), knots[0], knots[-1])
        right = np.clip(np.searchsorted(knots, near, side="right"), 1, max(1, len(knots) - 1))
        rows = np.arange(len(values))
        if len(knots) == 1:
            share = np.zeros(len(values))
            right = np.zeros(len(values), dtype=np.int64)
            left = right
        else:
            left = right - 1
            share = (near - knots[left]) / (knots[right] - knots[left])
        lattice = self.settings.lattice
        out[rows, right] = np.floor(lattice * np.sqrt(share)).astype(np.int64) * ~missing
        out[rows, left] = np.floor(lattice * np.sqrt(1 - share)).astype(np.int64) * ~missing
        out[rows, len(knots)] = lattice * missing


def fit_table_features(settings: FeatureSettings, pool: NDArray[np.float64]) -> TableFeatures:
    """The map with knots as declared, or at the quantiles of the public `pool` float64 (n, inputs).

    Raises:
        InputError: a pool of another width.
    """
    if pool.ndim != 2 or pool.shape[1] != sum(settings.columns):
        raise InputError(f"rows {pool.shape}: (n, {sum(settings.columns)}) is meant")
    declared = settings.cuts or ((),) * len(settings.columns)
    knots, at = [], 0
    for width, own in zip(settings.columns, declared, strict=True):
        known = pool[:, at]
        known = known[np.isfinite(known)]
        at += width
        if width > 1:
            knots.append(())
        elif own:
            knots.append(tuple(sorted(set(own))))
        else:
            shares = (np.arange(settings.bins) + 0.5) / settings.bins
            knots.append(tuple(np.unique(np.quantile(known, shares)).tolist()) if len(known) else (0.0,))
    return TableFeatures(settings, tuple(knots))
