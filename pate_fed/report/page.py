"""Pages of one file in the report's look: its style sheet, its cards for figures, its messages."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

__all__ = ["render_page"]


def render_page(template: str, values: Mapping[str, Any]) -> str:
    """A template of this room, filled in; `style` is the report's style sheet."""
    return str(_environment().get_template(template).render(style=_asset("report.css"), **values))


def _asset(name: str) -> str:
    return files("pate_fed.report").joinpath(name).read_text(encoding="utf-8")


@cache
def _environment() -> Any:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    return Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(_asset),
    )
