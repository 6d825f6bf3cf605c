"""`pate-fed reproduce NAME`: a paper's figures, ours beside the published ones."""

from __future__ import annotations

from collections.abc import Callable

from pate_fed.errors import InputError
from pate_fed.learning.device import resolve_device
from pate_fed.reproduce.census import reproduce_adult, reproduce_diabetes
from pate_fed.reproduce.frontier import reproduce_frontier
from pate_fed.reproduce.glyph_scale import reproduce_glyph
from pate_fed.reproduce.interactive import reproduce_interactive
from pate_fed.reproduce.label_dp import reproduce_label_dp
from pate_fed.reproduce.mnist import reproduce_mnist
from pate_fed.reproduce.mnist2017 import reproduce_mnist_2017
from pate_fed.reproduce.plan import Reproduction
from pate_fed.reproduce.questions import reproduce_questions
from pate_fed.reproduce.tables import proposition2_epsilon, proposition2_sigma, reproduce_tables
from pate_fed.reproduce.threshold import reproduce_threshold
from pate_fed.reproduce.workers import cores

__all__ = [
    "REPRODUCTIONS",
    "Reproduction",
    "proposition2_epsilon",
    "proposition2_sigma",
    "reproduce",
    "usual_workers",
]

# What each takes of the options that not all of them take.
_OPTIONS: dict[str, frozenset[str]] = {
    "pate++-fashion-mnist": frozenset({"--paper", "--seeds", "--tables", "--totals", "--workers"}),
    "pate++-mnist-votes": frozenset({"--seeds", "--totals", "--workers"}),
    "fashion-mnist-frontier": frozenset({"--seeds", "--workers"}),
    "fashion-mnist-threshold": frozenset({"--seeds", "--totals"}),
    "interactive-gnmax": frozenset({"--seeds", "--totals"}),
    "scalable-glyph": frozenset(),
    "pate-2017-mnist": frozenset({"--paper", "--seeds", "--workers"}),
    "pate-2017-questions": frozenset({"--seeds", "--totals"}),
    "pate-2017-adult": frozenset({"--seeds"}),
    "pate-2017-diabetes": frozenset({"--seeds"}),
    "label-dp-fashion-mnist": frozenset({"--paper", "--seeds"}),
}
_MAKERS: dict[str, Callable[[Reproduction, Callable[[str], None]], list[str]]] = {
    "pate++-fashion-mnist": reproduce_tables,
    "pate++-mnist-votes": reproduce_mnist,
    "fashion-mnist-frontier": reproduce_frontier,
    "fashion-mnist-threshold": reproduce_threshold,
    "interactive-gnmax": reproduce_interactive,
    "scalable-glyph": reproduce_glyph,
    "pate-2017-mnist": reproduce_mnist_2017,
    "pate-2017-questions": reproduce_questions,
    "pate-2017-adult": reproduce_adult,
    "pate-2017-diabetes": reproduce_diabetes,
    "label-dp-fashion-mnist": reproduce_label_dp,
}
REPRODUCTIONS: tuple[str, ...] = tuple(_MAKERS)


def usual_workers(name: str, device: str) -> int:
    """The processes that `name` takes where nobody says how many: one a core, on a GPU one."""
    if "--workers" not in _OPTIONS.get(name, ()) or resolve_device(device) != "cpu":
        return 1
    return cores()


def reproduce(
    name: str, plan: Reproduction, *, on_progress: Callable[[str], None] | None = None
) -> list[str]:
    """Make the figures of `name`, write them as text, CSV and picture, and give the text's lines.

    Raises:
        InputError: no such reproduction, an option that it does not take, the data or the folder is not
            there, or what the folder holds was made from something else.
    """
    if name not in _MAKERS:
        raise InputError(f"reproduce is {name!r}: one of {', '.join(REPRODUCTIONS)} is meant")
    for option in plan.chosen():
        if option not in _OPTIONS[name]:
            takers = ", ".join(each for each in REPRODUCTIONS if option in _OPTIONS[each])
            raise InputError(f"{name} takes no {option}; these do: {takers}")
    try:
        plan.out_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {plan.out_dir}: cannot be made ({error.strerror})") from error
    return _MAKERS[name](plan, on_progress or (lambda line: None))
