"""Settings of a feature map: frozen, plain, part of a study's terms. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from pate_fed.errors import InputError
from pate_fed.structure import PART_NAME, check, setting

KERNEL, BINS, HOG, RANDOM = "kernel", "bins", "hog", "random-features"
FEATURE_MAPS: tuple[str, ...] = (KERNEL, BINS, HOG, RANDOM)
# Measured beside each other on inputs that no table reports (docs/class-sums.md).
IMAGE_DIMENSION, TABLE_DIMENSION = 2000, 300
IMAGE_WHITENING, TABLE_WHITENING = 0.6, 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureSettings:
    """Which public map turns an input into non-negative whole numbers, and how fine it is.

    "kernel" is a Gaussian kernel at `dimension` anchors of the public pool, at most half of it, turned by
    their kernel matrix to the power of -`whitening`; None takes 2,000 and 0.6 for images, 300 and 0.75 for
    tables. The others are there to be compared: "bins" has knots of each number of a table, "hog" histograms
    of oriented gradients, "random-features" Choromanski's of the kernel, drawn from `seed`.

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
        if self.name == BINS and not self.columns:
            raise InputError("columns: bins are for tables; one number for each column is meant")
        if self.name in (HOG, RANDOM) and self.columns:
            raise InputError(f"name={self.name!r}: is for images, and columns are a table's")
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
        """Anchors, or random features, where the pool has enough."""
        if self.dimension is not None:
            return self.dimension
        return TABLE_DIMENSION if self.columns else IMAGE_DIMENSION

    @property
    def power(self) -> float:
        """The power of the anchors' kernel matrix, without its sign."""
        if self.whitening is not None:
            return self.whitening
        return TABLE_WHITENING if self.columns else IMAGE_WHITENING
