"""Glyph, the embedded data set: characters in many fonts, bent, blurred and noisy, some with a wrong label.

After the Glyph task of Papernot et al. 2018 ("Scalable private learning with PATE", section 5): 28×28 grey
images of up to 150 Unicode symbols, imbalanced classes and partly wrong labels, which nobody cleaned up.

The images depend on the settings, on `VERSION` and on the font files in matplotlib (`fonts_digest`), and on
nothing else: randomness is NumPy's raw Philox stream, which it promises to keep; all that follows is integers
and single IEEE float32 operations element by element, which every processor and library version rounds alike.
Each block of images has a stream of its own, so that a part may be drawn in any order.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from fractions import Fraction
from hashlib import sha256
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pate_fed.data.glyph_raster import GRID, INNER, SYMBOLS, Masters, fonts_digest, make_masters
from pate_fed.data.settings import GlyphSettings
from pate_fed.data.source import DatasetSource

__all__ = ["BLOCK", "SIDE", "VERSION", "Labels", "draw_block", "glyph_source", "make_labels"]

VERSION = 1  # raise it whenever an image changes
SIDE = 28
BLOCK = 256  # images drawn at once

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """The symbols of one part: `true (n,)`, and `given (n,)` as the hospitals know them."""

    true: NDArray[np.int64]
    given: NDArray[np.int64]


def glyph_source(
    settings: GlyphSettings, on_progress: Callable[[int, int], None] | None = None
) -> DatasetSource:
    """The source of Glyph with these settings; `on_progress` is called with (images drawn, images in all)."""
    basis = {"version": VERSION, "fonts": fonts_digest(), **asdict(settings)}
    return DatasetSource(
        name="glyph",
        key=sha256(json.dumps(basis, sort_keys=True).encode()).hexdigest()[:32],
        class_names=tuple(SYMBOLS[: settings.classes]),
        save=lambda folder: _draw(settings, folder, on_progress or (lambda done, total: None)),
        details=(
            f"seed {settings.seed}  ·  imbalance {settings.imbalance:g} : 1  ·  "
            f"{100 * settings.wrong_labels:.3g} % of the private labels wrong  ·  "
            f"distortion {settings.distortion:g}  ·  noise {settings.noise:g}"
        ),
    )


def _draw(settings: GlyphSettings, folder: Path, on_progress: Callable[[int, int], None]) -> None:
    done, total = 0, settings.private + settings.public
    on_progress(done, total)
    masters = make_masters(SYMBOLS[: settings.classes])
    for part, count in (("private", settings.private), ("public", settings.public)):
        labels = make_labels(settings, part)
        np.save(folder / f"{part}_labels.npy", labels.given)
        images = np.lib.format.open_memmap(
            folder / f"{part}_images.npy", mode="w+", dtype=np.uint8, shape=(count, SIDE, SIDE, 1)
        )
        for start in range(0, count, BLOCK):
            block = draw_block(settings, masters, part, start // BLOCK, labels.true[start : start + BLOCK])
            images[start : start + BLOCK] = block[..., None]
            done += len(block)
            on_progress(done, total)
        images.flush()


def make_labels(settings: GlyphSettings, part: str) -> Labels:
    """The symbols of a part in random order, with exactly the class sizes and wrong labels that were set.

    Class c of k has a weight that falls evenly from `imbalance` to 1; a wrong label is any other class with
    equal chance. Only the private part has wrong labels.
    """
    count = settings.private if part == "private" else settings.public
    dice = _Dice(settings, f"{part}/labels", count)
    sizes = _class_sizes(settings.classes, count, Fraction(settings.imbalance))
    true = np.repeat(np.arange(settings.classes), sizes)[dice.shuffled()]
    wrong = round(Fraction(settings.wrong_labels) * count) if part == "private" else 0
    given = true.copy()
    chosen = dice.shuffled()[:wrong]
    other = (dice.raw()[:wrong] % np.uint64(settings.classes - 1)).astype(np.int64)
    given[chosen] = (true[chosen] + 1 + other) % settings.classes
    return Labels(true=true, given=given)


def _class_sizes(classes: int, count: int, imbalance: Fraction) -> list[int]:
    weights = [1 + (imbalance - 1) * Fraction(classes - 1 - c, classes - 1) for c in range(classes)]
    sums = list(accumulate(weights, initial=Fraction(0)))
    bounds = [round(part / sums[-1] * count) for part in sums]
    return [high - low for low, high in pairwise(bounds)]


class _Dice:
    """One stream of random numbers, `count` at a time; each call takes the next of them."""

    def __init__(self, settings: GlyphSettings, purpose: str, count: int) -> None:
        text = f"glyph/{VERSION}/{settings.seed}/{purpose}"
        self._bits = np.random.Philox(key=int.from_bytes(sha256(text.encode()).digest()[:16], "little"))
        self._count = count

    def raw(self) -> NDArray[np.uint64]:
        return np.asarray(self._bits.random_raw(self._count), dtype=np.uint64)

    def shuffled(self) -> NDArray[np.int64]:
        return np.argsort(self.raw(), kind="stable")

    def unit(self) -> Floats:
        """Uniform in [0, 1), `(count, 1, 1)`: 24 bits are exact in float32."""
        bits = (self.raw() >> np.uint64(40)).astype(np.float32)
        return (bits * np.float32(2.0**-24))[:, None, None]

    def uniform(self, low: float, high: float) -> Floats:
        return np.float32(low) + np.float32(high - low) * self.unit()

    def spread(self, width: float) -> Floats:
        """Bell-shaped about 0 within ±width, a mean of three uniform numbers."""
        total = (self.unit() + self.unit()) + self.unit()
        return (total * np.float32(2 / 3) - np.float32(1)) * np.float32(width)

    def chance(self, probability: float) -> NDArray[np.bool_]:
        return self.unit() < np.float32(probability)

    def pixels(self) -> Floats:
        """Near-normal noise of mean 0 and deviation 1, `(count, SIDE, SIDE)`: each a sum of four bytes."""
        words = self._bits.random_raw(self._count * SIDE * SIDE // 2).astype("<u8")
        total = words.view(np.uint8).reshape(-1, 4).astype(np.float32)
        summed = (total[:, 0] + total[:, 1]) + (total[:, 2] + total[:, 3])
        scaled = (summed - np.float32(510)) * np.float32(1 / 147.8)
        return scaled.reshape(self._count, SIDE, SIDE)


def draw_block(
    settings: GlyphSettings, masters: Masters, part: str, block: int, true: NDArray[np.int64]
) -> NDArray[np.uint8]:
    """Draw the images of one block of at most `BLOCK` symbols, `uint8 (n, SIDE, SIDE)`."""
    dice = _Dice(settings, f"{part}/{block}", BLOCK)
    symbols = np.zeros(BLOCK, dtype=np.int64)
    symbols[: len(true)] = true  # a last block that is not full takes the same numbers
    bend, blot = np.float32(settings.distortion), np.float32(settings.noise)
    across, down, per_pixel = _warp(dice, bend)
    font = _pick(dice, masters, symbols)
    distance = _sample(masters, font, across, down) / per_pixel
    edge = dice.uniform(1.0, 1.0 + 1.3 * settings.noise)
    ink = _ink(_stroke(dice, distance, bend), edge)
    ink = np.maximum(ink, _neighbour(dice, masters, settings, across, down, per_pixel, edge))
    ink = ink * (np.float32(1) - _scratch(dice, settings))
    return _expose(dice, ink, blot)[: len(true)]


def _warp(dice: _Dice, bend: np.float32) -> tuple[Floats, Floats, Floats]:
    """Where each pixel lies in a master, `(BLOCK, SIDE, SIDE)` in cells, and cells a pixel."""
    at = np.arange(SIDE, dtype=np.float32) - np.float32((SIDE - 1) / 2)
    x = at[None, None, :] - dice.spread(3.0) * bend
    y = at[None, :, None] - dice.spread(3.0) * bend
    x, y = (
        x + (dice.spread(0.018) * bend) * (y * y) + (dice.spread(0.014) * bend) * (x * y),
        y + (dice.spread(0.018) * bend) * (x * x) + (dice.spread(0.014) * bend) * (x * y),
    )
    # A rotation by θ from t = tan(θ/2), without a sine that every libm rounds in its own way.
    t = dice.spread(0.16) * bend
    bottom = np.float32(1) + t * t
    cosine, sine = (np.float32(1) - t * t) / bottom, (np.float32(2) * t) / bottom
    x, y = cosine * x - sine * y, sine * x + cosine * y
    x = x + (dice.spread(0.33) * bend) * y
    per_pixel = np.float32(INNER) / dice.uniform(14.0, 22.0)
    wide = np.float32(1) + dice.spread(0.22) * bend
    middle = np.float32((GRID - 1) / 2)
    return middle + x * (per_pixel * wide), middle + y * (per_pixel / wide), per_pixel


def _pick(dice: _Dice, masters: Masters, symbols: NDArray[np.int64]) -> NDArray[np.int64]:
    """A master of each symbol, every font with equal chance."""
    first, fonts = masters.first[symbols], np.diff(masters.first)[symbols]
    return first + (dice.raw() % fonts.astype(np.uint64)).astype(np.int64)


def _sample(masters: Masters, which: NDArray[np.int64], across: Floats, down: Floats) -> Floats:
    """Distance to the outline in cells, bilinear between a master's cells."""
    across = np.clip(across, np.float32(0), np.float32(GRID - 1.001))
    down = np.clip(down, np.float32(0), np.float32(GRID - 1.001))
    column, row = across.astype(np.int64), down.astype(np.int64)
    right, below = across - column.astype(np.float32), down - row.astype(np.float32)
    corner = which[:, None, None] * (GRID * GRID) + row * GRID + column
    flat = masters.distance.reshape(-1)
    upper = flat[corner] + (flat[corner + 1] - flat[corner]) * right
    corner += GRID
    lower = flat[corner] + (flat[corner + 1] - flat[corner]) * right
    mixed: Floats = upper + (lower - upper) * below
    return mixed


def _stroke(dice: _Dice, distance: Floats, bend: np.float32) -> Floats:
    """Thicker or thinner strokes, and one symbol in seven hollow; distances in pixels."""
    thicker = dice.uniform(-0.3, 0.5) * bend
    rim = dice.uniform(0.5, 0.9)
    hollow = np.abs(distance) - rim
    return np.where(dice.chance(1 / 7), hollow, distance - thicker)


def _ink(distance: Floats, edge: Floats) -> Floats:
    """0 to 1: how much of a pixel is inside; a wide `edge` (pixels) is a blurred one."""
    ramp = np.clip(np.float32(0.5) - distance / edge, np.float32(0), np.float32(1))
    smooth: Floats = ramp * ramp * (np.float32(3) - np.float32(2) * ramp)
    return smooth


def _neighbour(
    dice: _Dice,
    masters: Masters,
    settings: GlyphSettings,
    across: Floats,
    down: Floats,
    per_pixel: Floats,
    edge: Floats,
) -> Floats:
    """A piece of the character that stood beside it, as a careless crop leaves one."""
    symbols = (dice.raw() % np.uint64(settings.classes)).astype(np.int64)
    left = np.where(dice.chance(0.5), np.float32(1), np.float32(-1))
    aside = dice.uniform(17.0, 23.0) * per_pixel * left
    distance = _sample(masters, _pick(dice, masters, symbols), across + aside, down)
    shown = dice.chance(0.32 * settings.noise)
    return np.where(shown, _ink(distance / per_pixel, edge), np.float32(0))


def _scratch(dice: _Dice, settings: GlyphSettings) -> Floats:
    """0 to 1: a straight scratch that takes ink away."""
    at = np.arange(SIDE, dtype=np.float32) - np.float32((SIDE - 1) / 2)
    x, y = at[None, None, :], at[None, :, None]
    slope, flat = dice.uniform(-1.0, 1.0), dice.chance(0.5)
    along = np.where(flat, y - slope * x, x - slope * y)
    distance = np.abs(along - dice.spread(12.0)) / np.sqrt(np.float32(1) + slope * slope)
    cut = _ink(distance - dice.uniform(0.5, 1.5), np.full_like(slope, 1.0))
    return np.where(dice.chance(0.4 * settings.noise), cut, np.float32(0))


def _expose(dice: _Dice, ink: Floats, blot: np.float32) -> NDArray[np.uint8]:
    """Grey values of paper and ink, uneven light, and noise in every pixel."""
    at = np.arange(SIDE, dtype=np.float32) * np.float32(2 / SIDE) - np.float32(1)
    light = at[None, None, :] * dice.spread(32.0) + at[None, :, None] * dice.spread(32.0)
    paper = dice.uniform(0.0, 48.0) * blot
    contrast = np.float32(195) - dice.uniform(0.0, 60.0) * blot
    grain = dice.pixels() * (dice.uniform(3.0, 27.0) * blot)
    grey = paper + ink * contrast + light * blot + grain
    bounded = np.clip(grey + np.float32(0.5), np.float32(0), np.float32(255))
    return bounded.astype(np.uint8)
