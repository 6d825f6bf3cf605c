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
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cache, lru_cache
from hashlib import file_digest, sha256
from importlib.util import find_spec
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.data.source import DatasetSource, GlyphSettings
from pate_fed.errors import InputError, require_libraries

# From the outlines of matplotlib's fonts to signed distance maps, without a font rasteriser.
#
# FreeType's pixels differ from build to build. So the outlines are read unhinted, in font units (by
# fontTools, which matplotlib brings), and rasterised here with integers and single IEEE operations only:
# the same font files give the same bits on every machine.


# The task's 150 symbols, in the order in which `classes` takes them. Left out is what a person would mix up
# at 28×28: 0 with O, 1 with l and I, small letters that are only smaller (c, o, s, ...), and what differs
# from another symbol only by being hollow (□ and ■, △ and Δ), as every seventh symbol is drawn.
SYMBOLS = (
    "ABCDEFGHIJ"
    "KLMNOPQRSTUVWXYZ"
    "23456789"
    "abdefghijmnrt"
    "ΓΔΘΛΞΠΣΦΨΩ"
    "βγδεζλμξσω"
    "БДЖИЦЧШЭЮЯЫ"
    "&@#$%?!*+={}[]()<>"
    "§¶†‡£¥€¢©÷±"
    "∞√∫∂∩⊃∀∃≠≈∴≤≥"
    "←↑→↓↔↕↖↗↘↙⇐⇒⇔"
    "♠♣♥♦♀♂♪♫♮"
    "■▼⊕⊗⊥⌂☺☀"
)

_UNICODE_FONTS = (
    *(f"DejaVuSans{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}" for style in ("", "Italic", "Bol", "BolIta")),
)
_LATIN_FONTS = (
    "cmr10",
    "cmb10",
    "cmss10",
    "cmtt10",
)  # in TeX's encoding only letters and digits are in place
_LATIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")

GRID = 64  # side of a distance map
INNER = 40  # longer side of the symbol in it; the rest is margin
_FINE = 2  # samples a side and cell
_STEPS = 8  # pieces of a curve

Points = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class DistanceMaps:
    """Signed distance maps of every symbol in every font that has it.

    Attributes:
        distance: `float32 (maps, GRID, GRID)`, signed distance to the outline in cells, negative inside.
        first: `int64 (classes + 1,)`; the maps of class c are `first[c]` to `first[c + 1]` - 1.
    """

    distance: NDArray[np.float32]
    first: NDArray[np.int64]


def font_path(name: str) -> Path:
    """The file of one font, found without importing matplotlib; InputError: it is not there."""
    path = _font_folder() / f"{name}.ttf"
    if not path.is_file():
        raise InputError(
            f"{path}: the font is missing; Glyph needs the fonts that matplotlib brings, install it again"
        )
    return path


@cache
def _font_folder() -> Path:
    require_libraries("matplotlib", what="Glyph")
    spec = find_spec("matplotlib")
    assert spec is not None and spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0]) / "mpl-data/fonts/ttf"
    if not folder.is_dir():  # some distributions keep the data elsewhere
        import matplotlib

        folder = Path(matplotlib.get_data_path()) / "fonts/ttf"
    return folder


@cache
def fonts_digest() -> str:
    """SHA-256 over all fonts that are used, in hexadecimal."""
    total = sha256()
    for name in (*_UNICODE_FONTS, *_LATIN_FONTS):
        with font_path(name).open("rb") as handle:
            total.update(file_digest(handle, "sha256").digest())
    return total.hexdigest()


@lru_cache(maxsize=4)  # a sweep draws many data sets of few kinds, and opening the fonts takes half a second
def make_distance_maps(symbols: str) -> DistanceMaps:
    """Distance maps of these symbols, class by class, fonts in a fixed order; not to be written to."""
    maps: list[list[NDArray[np.float32]]] = [[] for _ in symbols]
    for name in (*_UNICODE_FONTS, *_LATIN_FONTS):
        with _quiet_fonttools():
            outlines = _outlines(font_path(name), symbols if name in _UNICODE_FONTS else _only_latin(symbols))
            for at, segments in outlines:
                maps[at].append(_signed_distance(_fill(_fit(segments))))
    first = np.cumsum([0, *(len(of_symbol) for of_symbol in maps)])
    distance = np.stack([one for of_symbol in maps for one in of_symbol])
    for shared in (distance, first):
        shared.setflags(write=False)
    return DistanceMaps(distance=distance, first=first)


def _only_latin(symbols: str) -> str:
    return "".join(symbol if symbol in _LATIN else "\0" for symbol in symbols)


@contextmanager
def _quiet_fonttools() -> Iterator[None]:
    # It warns of the time stamps in Computer Modern's files, which nobody here can mend.
    logger = logging.getLogger("fontTools")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _outlines(path: Path, symbols: str) -> Iterator[tuple[int, Points]]:
    """(place in `symbols`, `(segments, 4)` x0 y0 x1 y1 in font units) of every symbol that the font has."""
    from fontTools.pens.basePen import BasePen
    from fontTools.ttLib import TTFont

    class Segments(BasePen):  # type: ignore[misc]
        """Collects closed contours as straight pieces."""

        def __init__(self, glyphs: Any) -> None:
            super().__init__(glyphs)
            self.pieces: list[tuple[float, float, float, float]] = []

        def _moveTo(self, point: tuple[float, float]) -> None:
            self.start = point

        def _lineTo(self, point: tuple[float, float]) -> None:
            self.pieces.append((*self._getCurrentPoint(), *point))

        def _qCurveToOne(self, control: tuple[float, float], end: tuple[float, float]) -> None:
            begin = last = self._getCurrentPoint()
            for step in range(1, _STEPS + 1):
                t = step / _STEPS
                x, y = (
                    (1 - t) * (1 - t) * p + 2 * t * (1 - t) * q + t * t * r
                    for p, q, r in zip(begin, control, end, strict=True)
                )
                self.pieces.append((*last, x, y))
                last = (x, y)

        def _closePath(self) -> None:
            if self._getCurrentPoint() != self.start:
                self._lineTo(self.start)

    with TTFont(path, lazy=True) as font:
        font.setGlyphOrder([str(number) for number in range(font["maxp"].numGlyphs)])  # spares parsing names
        names, glyphs = font.getBestCmap(), font.getGlyphSet()
        for at, symbol in enumerate(symbols):
            if ord(symbol) in names:
                pen = Segments(glyphs)
                glyphs[names[ord(symbol)]].draw(pen)
                if pen.pieces:
                    yield at, np.array(pen.pieces, dtype=np.float64)


def _fit(segments: Points) -> Points:
    """Centre the symbol in the fine grid, its longer side `INNER` cells, y downwards."""
    x, y = segments[:, 0::2], segments[:, 1::2]
    left, right, low, high = x.min(), x.max(), y.min(), y.max()
    scale = INNER * _FINE / max(right - left, high - low)
    middle = GRID * _FINE / 2
    fitted = np.empty_like(segments)
    fitted[:, 0::2] = middle + (x - (left + right) / 2) * scale
    fitted[:, 1::2] = middle - (y - (low + high) / 2) * scale
    return fitted


def _fill(segments: Points) -> NDArray[np.bool_]:
    """Non-zero winding rule at the centres of the fine grid's cells."""
    side = GRID * _FINE
    x0, y0, x1, y1 = (column[:, None] for column in segments.T)
    rows = np.arange(side) + 0.5
    down, up = (y0 <= rows) & (rows < y1), (y1 <= rows) & (rows < y0)
    which, row = np.nonzero(down | up)
    x0, y0, x1, y1 = (column[which, 0] for column in (x0, y0, x1, y1))
    crossing = x0 + (rows[row] - y0) * (x1 - x0) / (y1 - y0)
    column = np.clip(np.ceil(crossing - 0.5), 0, side).astype(np.int64)
    turns = np.zeros((side, side + 1), dtype=np.int64)
    np.add.at(turns, (row, column), np.where(down[which, row], 1, -1))
    return np.asarray(np.cumsum(turns, axis=1)[:, :side] != 0)


def _signed_distance(inside: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Distance to the outline at the centres of the cells, in cells, negative inside.

    A cell's centre is a corner of the fine grid: the mean over the four samples around it.
    """
    from scipy.ndimage import distance_transform_edt

    # Squared distances between samples are integers and the square root is correctly rounded.
    # The outline runs half-way between an inner and an outer sample.
    outer, inner = distance_transform_edt(~inside), distance_transform_edt(inside)
    fine = np.where(inside, 0.5 - inner, outer - 0.5) / _FINE
    low, high = _FINE // 2 - 1, _FINE // 2
    a, b, c, d = (fine[i::_FINE, j::_FINE] for i in (low, high) for j in (low, high))
    return np.asarray(((a + b) + (c + d)) / 4, dtype=np.float32)


VERSION = 1  # raise it whenever an image changes
SIDE = 28
BLOCK = 256  # images drawn at once

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class GlyphLabels:
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
    maps = make_distance_maps(SYMBOLS[: settings.classes])
    for part, count in (("private", settings.private), ("public", settings.public)):
        labels = make_labels(settings, part)
        np.save(folder / f"{part}_labels.npy", labels.given)
        images = np.lib.format.open_memmap(
            folder / f"{part}_images.npy", mode="w+", dtype=np.uint8, shape=(count, SIDE, SIDE, 1)
        )
        for start in range(0, count, BLOCK):
            block = draw_block(settings, maps, part, start // BLOCK, labels.true[start : start + BLOCK])
            images[start : start + BLOCK] = block[..., None]
            done += len(block)
            on_progress(done, total)
        images.flush()


def make_labels(settings: GlyphSettings, part: str) -> GlyphLabels:
    """The symbols of a part in random order, with exactly the class sizes and wrong labels that were set.

    Class c of k has a weight that falls evenly from `imbalance` to 1; a wrong label is any other class with
    equal chance. Only the private part has wrong labels.
    """
    count = settings.private if part == "private" else settings.public
    stream = _RandomStream(settings, f"{part}/labels", count)
    sizes = _class_sizes(settings.classes, count, Fraction(settings.imbalance))
    true = np.repeat(np.arange(settings.classes), sizes)[stream.shuffled()]
    wrong = round(Fraction(settings.wrong_labels) * count) if part == "private" else 0
    given = true.copy()
    chosen = stream.shuffled()[:wrong]
    other = (stream.raw()[:wrong] % np.uint64(settings.classes - 1)).astype(np.int64)
    given[chosen] = (true[chosen] + 1 + other) % settings.classes
    return GlyphLabels(true=true, given=given)


def _class_sizes(classes: int, count: int, imbalance: Fraction) -> list[int]:
    weights = [1 + (imbalance - 1) * Fraction(classes - 1 - c, classes - 1) for c in range(classes)]
    sums = list(accumulate(weights, initial=Fraction(0)))
    bounds = [round(part / sums[-1] * count) for part in sums]
    return [high - low for low, high in pairwise(bounds)]


class _RandomStream:
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
    settings: GlyphSettings, maps: DistanceMaps, part: str, block: int, true: NDArray[np.int64]
) -> NDArray[np.uint8]:
    """Draw the images of one block of at most `BLOCK` symbols, `uint8 (n, SIDE, SIDE)`."""
    stream = _RandomStream(settings, f"{part}/{block}", BLOCK)
    symbols = np.zeros(BLOCK, dtype=np.int64)
    symbols[: len(true)] = true  # a last block that is not full takes the same numbers
    distortion, noise = np.float32(settings.distortion), np.float32(settings.noise)
    across, down, per_pixel = _warp(stream, distortion)
    font = _pick(stream, maps, symbols)
    distance = _sample(maps, font, across, down) / per_pixel
    edge = stream.uniform(1.0, 1.0 + 1.3 * settings.noise)
    ink = _ink(_stroke(stream, distance, distortion), edge)
    ink = np.maximum(ink, _neighbour(stream, maps, settings, across, down, per_pixel, edge))
    ink = ink * (np.float32(1) - _scratch(stream, settings))
    return _expose(stream, ink, noise)[: len(true)]


def _warp(stream: _RandomStream, distortion: np.float32) -> tuple[Floats, Floats, Floats]:
    """Where each pixel lies in a distance map, `(BLOCK, SIDE, SIDE)` in cells, and cells a pixel."""
    at = np.arange(SIDE, dtype=np.float32) - np.float32((SIDE - 1) / 2)
    x = at[None, None, :] - stream.spread(3.0) * distortion
    y = at[None, :, None] - stream.spread(3.0) * distortion
    x, y = (
        x + (stream.spread(0.018) * distortion) * (y * y) + (stream.spread(0.014) * distortion) * (x * y),
        y + (stream.spread(0.018) * distortion) * (x * x) + (stream.spread(0.014) * distortion) * (x * y),
    )
    # A rotation by θ from t = tan(θ/2), without a sine that every libm rounds in its own way.
    t = stream.spread(0.16) * distortion
    bottom = np.float32(1) + t * t
    cosine, sine = (np.float32(1) - t * t) / bottom, (np.float32(2) * t) / bottom
    x, y = cosine * x - sine * y, sine * x + cosine * y
    x = x + (stream.spread(0.33) * distortion) * y
    per_pixel = np.float32(INNER) / stream.uniform(14.0, 22.0)
    wide = np.float32(1) + stream.spread(0.22) * distortion
    middle = np.float32((GRID - 1) / 2)
    return middle + x * (per_pixel * wide), middle + y * (per_pixel / wide), per_pixel


def _pick(stream: _RandomStream, maps: DistanceMaps, symbols: NDArray[np.int64]) -> NDArray[np.int64]:
    """A distance map of each symbol, every font with equal chance."""
    first, fonts = maps.first[symbols], np.diff(maps.first)[symbols]
    return first + (stream.raw() % fonts.astype(np.uint64)).astype(np.int64)


def _sample(maps: DistanceMaps, which: NDArray[np.int64], across: Floats, down: Floats) -> Floats:
    """Distance to the outline in cells, bilinear between a map's cells."""
    across = np.clip(across, np.float32(0), np.float32(GRID - 1.001))
    down = np.clip(down, np.float32(0), np.float32(GRID - 1.001))
    column, row = across.astype(np.int64), down.astype(np.int64)
    right, below = across - column.astype(np.float32), down - row.astype(np.float32)
    corner = which[:, None, None] * (GRID * GRID) + row * GRID + column
    flat = maps.distance.reshape(-1)
    upper = flat[corner] + (flat[corner + 1] - flat[corner]) * right
    corner += GRID
    lower = flat[corner] + (flat[corner + 1] - flat[corner]) * right
    mixed: Floats = upper + (lower - upper) * below
    return mixed


def _stroke(stream: _RandomStream, distance: Floats, distortion: np.float32) -> Floats:
    """Thicker or thinner strokes, and one symbol in seven hollow; distances in pixels."""
    thicker = stream.uniform(-0.3, 0.5) * distortion
    rim = stream.uniform(0.5, 0.9)
    hollow = np.abs(distance) - rim
    return np.where(stream.chance(1 / 7), hollow, distance - thicker)


def _ink(distance: Floats, edge: Floats) -> Floats:
    """0 to 1: how much of a pixel is inside; a wide `edge` (pixels) is a blurred one."""
    ramp = np.clip(np.float32(0.5) - distance / edge, np.float32(0), np.float32(1))
    smooth: Floats = ramp * ramp * (np.float32(3) - np.float32(2) * ramp)
    return smooth


def _neighbour(
    stream: _RandomStream,
    maps: DistanceMaps,
    settings: GlyphSettings,
    across: Floats,
    down: Floats,
    per_pixel: Floats,
    edge: Floats,
) -> Floats:
    """A piece of the character that stood beside it, as a careless crop leaves one."""
    symbols = (stream.raw() % np.uint64(settings.classes)).astype(np.int64)
    left = np.where(stream.chance(0.5), np.float32(1), np.float32(-1))
    aside = stream.uniform(17.0, 23.0) * per_pixel * left
    distance = _sample(maps, _pick(stream, maps, symbols), across + aside, down)
    shown = stream.chance(0.32 * settings.noise)
    return np.where(shown, _ink(distance / per_pixel, edge), np.float32(0))


def _scratch(stream: _RandomStream, settings: GlyphSettings) -> Floats:
    """0 to 1: a straight scratch that takes ink away."""
    at = np.arange(SIDE, dtype=np.float32) - np.float32((SIDE - 1) / 2)
    x, y = at[None, None, :], at[None, :, None]
    slope, flat = stream.uniform(-1.0, 1.0), stream.chance(0.5)
    along = np.where(flat, y - slope * x, x - slope * y)
    distance = np.abs(along - stream.spread(12.0)) / np.sqrt(np.float32(1) + slope * slope)
    cut = _ink(distance - stream.uniform(0.5, 1.5), np.full_like(slope, 1.0))
    return np.where(stream.chance(0.4 * settings.noise), cut, np.float32(0))


def _expose(stream: _RandomStream, ink: Floats, noise: np.float32) -> NDArray[np.uint8]:
    """Grey values of paper and ink, uneven light, and noise in every pixel."""
    at = np.arange(SIDE, dtype=np.float32) * np.float32(2 / SIDE) - np.float32(1)
    light = at[None, None, :] * stream.spread(32.0) + at[None, :, None] * stream.spread(32.0)
    paper = stream.uniform(0.0, 48.0) * noise
    contrast = np.float32(195) - stream.uniform(0.0, 60.0) * noise
    grain = stream.pixels() * (stream.uniform(3.0, 27.0) * noise)
    grey = paper + ink * contrast + light * noise + grain
    bounded = np.clip(grey + np.float32(0.5), np.float32(0), np.float32(255))
    return bounded.astype(np.uint8)
