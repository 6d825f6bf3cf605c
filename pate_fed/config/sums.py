"""The section of a study that says what is summed where the aggregator is "class-sums"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pate_fed.data import Schema
from pate_fed.learning.features.settings import FeatureSettings
from pate_fed.structure import check, refusal, same_as, setting

SUMS_EPSILON = 1.0
"""What class sums cost where a study says nothing: more buys them little, and less would be a gift."""


def _cuts(value: Any) -> Any:
    """Columns with their knots as pairs, where they are a table too."""
    return list(value.items()) if isinstance(value, Mapping) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """What is summed where the aggregator is "class-sums": the public feature map. None: its own defaults.

    `cuts` are declared knots of a table's numbers, by column; those of the others are the public pool's
    quantiles. With `balanced` the ridge student counts each class alike, however many records have it. With
    the unit hospital `most_records` is to how many records' length a hospital's sum is cut.
    """

    features: str | None = same_as(FeatureSettings, "name", None)
    lattice: int | None = same_as(FeatureSettings, "lattice", None)
    dimension: int | None = same_as(FeatureSettings, "dimension", None)
    whitening: float | None = same_as(FeatureSettings, "whitening", None)
    bins: int | None = same_as(FeatureSettings, "bins", None)
    cuts: tuple[tuple[str, tuple[float, ...]], ...] = setting(
        (), read=_cuts, allowed="a table of columns with rising numbers"
    )
    balanced: bool = setting(False, help="each class counts alike for the ridge student, however rare it is")
    most_records: int | None = setting(
        None,
        help="with unit = hospital: cut a hospital's sums to the length of so many records",
        unit="records",
        low=1,
        high=10**6,
    )

    def __post_init__(self) -> None:
        check(self)
        if any(list(knots) != sorted(set(knots)) for _, knots in self.cuts):
            raise refusal(self, "cuts", "rising numbers for each column")

    def of_inputs(self, schema: Schema | None) -> FeatureSettings:
        """The feature map's settings, of a table with this schema or of images.

        Raises:
            InputError: settings of the other kind, or knots of a column that has no numbers.
        """
        given = {name: getattr(self, name) for name in ("lattice", "dimension", "whitening", "bins")}
        found = {name: value for name, value in given.items() if value is not None}
        found |= {} if self.features is None else {"name": self.features}
        if schema is None:
            if self.cuts:
                raise refusal(self, "cuts", "none: knots are meant for a table, and these are images")
            return FeatureSettings(**found)
        cuts, numbers = dict(self.cuts), [name for name, values in schema.columns if not values]
        if strange := sorted(set(cuts) - set(numbers)):
            raise refusal(self, "cuts", f"{strange[0]!r} is no column of numbers in the table's schema")
        return FeatureSettings(
            columns=tuple(max(1, len(values)) for _, values in schema.columns),
            cuts=tuple(cuts.get(name, ()) for name, _ in schema.columns) if cuts else (),
            **found,
        )
