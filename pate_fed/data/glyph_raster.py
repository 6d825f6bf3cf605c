"""From the outlines of matplotlib's fonts to signed distance maps, without a font rasteriser.

FreeType's pixels differ from build to build. So the outlines are read unhinted, in font units (by fontTools,
which matplotlib brings), and rasterised here with integers and single IEEE operations only: the same font
files give the same bits on every machine.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from hashlib import file_digest, sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError, require_libraries

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
    """The file of one font, found without importing matplotlib.

    Raises:
        InputError: it is not there.
    """
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
