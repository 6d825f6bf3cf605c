"""What the Glyph data set is made of, as one frozen value that checks itself."""

from __future__ import annotations

from dataclasses import dataclass

from pate_fed.structure import check, setting


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

    classes: int = setting(10, low=2, high=150, help="characters")
    private: int = setting(60_000, low=1, high=10_000_000, help="images that are dealt out")
    public: int = setting(10_000, low=2, high=10_000_000, help="images of the pool")
    seed: int = setting(0, low=0, high=2**63 - 1, help="of what is drawn")
    imbalance: float = setting(
        2.0,
        low=1,
        high=100,
        allowed="a number from 1 (balanced) to 100",
        help="how many times as frequent the most frequent class is as the rarest",
    )
    wrong_labels: float = setting(0.1, low=0, high=0.9, help="share of private labels that are wrong")
    distortion: float = setting(
        1.0, low=0, high=2, allowed="a number from 0 (upright) to 2", help="rotation, shear, shifts"
    )
    noise: float = setting(
        1.0, low=0, high=2, allowed="a number from 0 (clean) to 2", help="blur, noise and clutter"
    )

    def __post_init__(self) -> None:
        check(self)
