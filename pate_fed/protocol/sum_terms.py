"""What hospitals sum once instead of voting: features of their records by class, with noise on the sums."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pate_fed.learning.features.settings import FeatureSettings
from pate_fed.structure import check, refusal, setting
from pate_fed.structure.parts import PartIdentity

_SHA256: dict[str, Any] = {"pattern": re.compile(r"[0-9a-f]{64}"), "allowed": "a SHA-256 in hexadecimal"}
_MOST_FEATURES = 1_000_000
_MOST_NORM = 10**12  # squared, in steps: beyond, no sum would fit into 32 bits
_MOST_SIGMA = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class SumTerms:
    """A public feature map, and the noise on the sums of its features by class.

    `features` is the SHA-256 of the map's file, `dimension` its number of features. All is counted in the
    map's integer steps: `squared_norm` bounds the squared length of what one record adds (one patient, where
    these are named), `sigma` is the noise where the coordinator adds it, None where hospitals do. With the
    unit hospital `most_units` is to how many records' length a hospital's whole sum is cut, else None. `part`
    is the code of a map that is none of ours.

    Raises:
        InputError: a value of the wrong type or out of range.
    """

    settings: FeatureSettings
    features: str = setting(**_SHA256)
    dimension: int = setting(low=1, high=_MOST_FEATURES)
    squared_norm: int = setting(low=1, high=_MOST_NORM)
    sigma: float | None = setting(unit="steps", low=1e-6, high=_MOST_SIGMA)
    most_units: int | None = setting(unit="records", low=1, high=10**9)
    part: PartIdentity | None = None

    def __post_init__(self) -> None:
        check(self)
        own = self.settings.name if self.settings.own else None
        if own != (None if self.part is None else self.part.name):
            raise refusal(
                self, "part", "the code of the very feature map, where it is none of ours, is meant"
            )
