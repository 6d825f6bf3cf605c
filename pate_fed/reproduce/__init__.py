"""`pate-fed reproduce NAME`: a paper's figures, ours beside the published ones.

Begin below, where the names are listed. Each module measures one table's rows; `driver.py` repeats them over
seeds, goes on after an interruption, and writes the file for docs/results/.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pate_fed.errors import InputError, naming_refusal
from pate_fed.reproduce.census import reproduce_adult, reproduce_diabetes
from pate_fed.reproduce.driver import Log, Reproduction
from pate_fed.reproduce.glyph_scale import reproduce_glyph
from pate_fed.reproduce.interactive import reproduce_interactive
from pate_fed.reproduce.label_dp import reproduce_label_dp
from pate_fed.reproduce.mnist import reproduce_mnist
from pate_fed.reproduce.mnist2017 import reproduce_mnist_2017
from pate_fed.reproduce.questions import reproduce_questions
from pate_fed.reproduce.tables import reproduce_tables
from pate_fed.runtime.workers import cores

__all__ = ["REPRODUCTIONS", "Reproduction", "reproduce", "usual_workers"]

Maker = Callable[[Reproduction, Log], list[str]]
# How each is made, and what it takes of the options that not all of them take.
_MAKERS: dict[str, tuple[Maker, list[str]]] = {
    "pate++-fashion-mnist": (reproduce_tables, "--paper --seeds --tables --totals --workers".split()),
    "pate++-mnist-votes": (reproduce_mnist, "--seeds --totals --workers".split()),
    "interactive-gnmax": (reproduce_interactive, "--seeds --totals".split()),
    "scalable-glyph": (reproduce_glyph, []),
    "pate-2017-mnist": (reproduce_mnist_2017, "--paper --seeds --workers".split()),
    "pate-2017-questions": (reproduce_questions, "--seeds --totals".split()),
    "pate-2017-adult": (reproduce_adult, ["--seeds"]),
    "pate-2017-diabetes": (reproduce_diabetes, ["--seeds"]),
    "label-dp-fashion-mnist": (reproduce_label_dp, "--paper --seeds".split()),
}
REPRODUCTIONS: tuple[str, ...] = tuple(_MAKERS)


def usual_workers(name: str, device: str) -> int:
    """The processes that `name` takes where nobody says how many: one a core, on a GPU one."""
    from pate_fed.learning.tensors import resolve_device

    takes_workers = name in _MAKERS and "--workers" in _MAKERS[name][1]
    return cores() if takes_workers and resolve_device(device) == "cpu" else 1


def reproduce(name: str, plan: Reproduction, *, on_progress: Log | None = None) -> list[str]:
    """Make the figures of `name`, write them as text, CSV and picture, and give the text's lines.

    Raises:
        InputError: no such reproduction, an option that it does not take, the data or the folder is not
            there, or what the folder holds was made from something else.
    """
    if name not in _MAKERS:
        raise InputError(f"reproduce is {name!r}: one of {', '.join(REPRODUCTIONS)} is meant")
    make, options = _MAKERS[name]
    for option in plan.chosen():
        if option not in options:
            takers = ", ".join(each for each, (_, taken) in _MAKERS.items() if option in taken)
            raise InputError(f"{name} takes no {option}; these do: {takers}")
    with naming_refusal(f"--run-dir {plan.out_dir}: cannot be made"):
        plan.out_dir.mkdir(parents=True, exist_ok=True)
    return make(replace(plan, name=name), on_progress or (lambda line: None))
