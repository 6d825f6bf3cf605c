"""`pate-fed reproduce NAME`: a paper's figures, ours beside the published ones."""

from __future__ import annotations

from collections.abc import Callable

from pate_fed.errors import InputError
from pate_fed.reproduce.tables import Reproduction, proposition2_epsilon, proposition2_sigma, reproduce_tables

__all__ = ["REPRODUCTIONS", "Reproduction", "proposition2_epsilon", "proposition2_sigma", "reproduce"]

REPRODUCTIONS: tuple[str, ...] = ("pate++-fashion-mnist",)


def reproduce(
    name: str, plan: Reproduction, *, on_progress: Callable[[str], None] | None = None
) -> list[str]:
    """Make the figures of `name`, write them as text, CSV and picture, and give the text's lines.

    Raises:
        InputError: no such reproduction, or the data or the folder is not there.
    """
    if name not in REPRODUCTIONS:
        raise InputError(f"reproduce is {name!r}: one of {', '.join(REPRODUCTIONS)} is meant")
    plan.out_dir.mkdir(parents=True, exist_ok=True)
    return reproduce_tables(plan, on_progress or (lambda line: None))
