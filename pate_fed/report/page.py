"""Pages of one file in the report's look: its style sheet, its cards for figures, its messages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from pate_fed.report.plots import Figure

_TEXT = 60  # letters of a caption in one line of a card
_LINE = 20.0  # a line's height, in units of the pictures
_CARD = 90.0  # title, legend and margins


def render_page(template: str, values: Mapping[str, Any]) -> str:
    """A template of this room, filled in; `style` is the report's style sheet."""
    return str(_environment().get_template(template).render(style=asset("report.css"), **values))


def in_columns(figures: Sequence[Figure | None]) -> list[list[Figure]]:
    """Figures in two columns of about the same height, in one where there is but one; Nones are left out.

    Cards of unlike height side by side leave large empty ones.
    """
    shown = [figure for figure in figures if figure]
    if len(shown) < 2:
        return [shown] if shown else []
    columns: tuple[list[Figure], list[Figure]] = ([], [])
    heights = [0.0, 0.0]
    for figure in shown:
        place = heights.index(min(heights))
        columns[place].append(figure)
        heights[place] += _CARD + _height(figure.picture) + _LINE * (len(figure.caption) // _TEXT)
    return [*columns]


def _height(picture: str) -> float:
    found = re.search(r'viewBox="0 0 [0-9.]+ ([0-9.]+)"', picture)
    return float(found[1]) if found else _CARD


def asset(name: str) -> str:
    """The text of a file of this room."""
    return files("pate_fed.report").joinpath(name).read_text(encoding="utf-8")


@cache
def _environment() -> Any:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    return Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(asset),
    )
