"""What the Glyph data set is made of, as one frozen value that checks itself."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pate_fed.errors import InputError

__all__ = ["GlyphSettings"]

_RANGES: dict[str, tuple[float, float, str]] = {
    "classes": (2, 150, "a whole number from 2 to 150"),
    "private": (1, 10_000_000, "a whole number from 1 to 10,000,000"),
    "public": (2, 10_000_000, "a whole number from 2 to 10,000,000"),
    "seed": (0, 2**63 - 1, "a whole number from 0 to 2^63 - 1"),
    "imbalance": (1.0, 100.0, "a number from 1 (balanced) to 100"),
    "wrong_labels": (0.0, 0.9, "a share from 0 to 0.9"),
    "distortion": (0.0, 2.0, "a number from 0 (upright) to 2"),
    "noise": (0.0, 2.0, "a number from 0 (clean) to 2"),
}
_WHOLE = ("classes", "private", "public", "seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class GlyphSettings:
    """Settings of the embedded Glyph data set; equal settings give equal images.

    Attributes:
        classes: number of symbols, 2 to 150; the first so many of a fixed list.
        private: images whose labels the hospitals hold.
        public: images whose labels nobody needs; nine tenths of them, at most 9,000, may be asked about.
        seed: of all that is random in the images and labels.
        imbalance: how many times as many images the most frequent class has as the rarest; those in between
            fall evenly.
        wrong_labels: share of private labels that are another class's; public labels are always true.
        distortion: strength of rotation, shear, stretching, shifts and stroke width; 0 none, 1 as tuned.
        noise: strength of blur, pixel noise, fading and clutter; 0 none, 1 as tuned.

    Raises:
        InputError: a value is out of its range; the error names key, value and range.
    """

    classes: int = 10
    private: int = 60_000
    public: int = 10_000
    seed: int = 0
    imbalance: float = 2.0
    wrong_labels: float = 0.1
    distortion: float = 1.0
    noise: float = 1.0

    def __post_init__(self) -> None:
        for key, (least, most, allowed) in _RANGES.items():
            value = getattr(self, key)
            kinds = (int,) if key in _WHOLE else (int, float)
            fits = isinstance(value, kinds) and not isinstance(value, bool)
            if not (fits and math.isfinite(value) and least <= value <= most):
                raise InputError(f"glyph {key} is {value!r}: {allowed} is allowed")
