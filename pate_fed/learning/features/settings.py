"""Settings of a feature map: frozen, plain, part of a study's terms. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from pate_fed.errors import InputError
from pate_fed.structure import check, setting

__all__ = ["BINS", "FEATURE_MAPS", "KERNEL", "FeatureSettings"]

BINS, KERNEL = "bins", "kernel"
FEATURE_MAPS: tuple[str, ...] = (BINS, KERNEL)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureSettings:
    """Which public map turns an input into non-negative whole numbers, and how fine it is.

    "bins" is for tables: `columns` are the numbers that a row has for each column (1 for a number, else one
    for each value of a category), `bins` the knots of a number, `cuts` declared ones by column (none: the
    public pool's quantiles). "kernel" is for images: `dimension` anchors of the public pool on its encoder.
    A record's contribution is at most `lattice` steps long: for tables each column's.

    Raises:
        InputError: a value out of range, or one of the other map.
    """

    name: str = setting(KERNEL, choices=FEATURE_MAPS)
    lattice: int = setting(1024, help="steps of the lattice in a length of 1", low=4, high=2**20)
    dimension: int = setting(1000, help="anchors of the public pool, for images", low=1, high=100_000)
    bins: int = setting(4, help="knots of a number in a table", low=2, high=1000)
    columns: tuple[int, ...] = setting((), low=1, high=10**6)
    cuts: tuple[tuple[float, ...], ...] = setting(())

    def __post_init__(self) -> None:
        check(self)
        if (self.name == BINS) != bool(self.columns):
            raise InputError("columns: meant for a table's features, one number for each column")
        if self.cuts and len(self.cuts) != len(self.columns):
            raise InputError(f"cuts: {len(self.cuts)} for {len(self.columns)} columns")
