"""Which public inputs to ask about next, from what a student of the labels so far says (P17, appendix B.2).

P17 is Papernot et al., arXiv 1610.05755. Nothing here sees a vote: a choice is a function of released labels
and public inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError
from pate_fed.structure.faults import telling

STRATEGIES: tuple[str, ...] = ("random", "least-confident", "class-balanced")


def choose_order(
    strategy: str, scores: NDArray[np.float32], *, released: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """All inputs, those first that are worth most; equal ones in their own order.

    "random" keeps their order. "least-confident" takes the least of the largest probabilities first.
    "class-balanced" takes next an input of the class with fewest labels, by what is most probable of it;
    each that is taken counts as a label of that class. The labels so far are `released`.

    Shapes: float (pool, classes), a student's probabilities, and int64 (classes,) to int64 (pool,).
    """
    if strategy == "random":
        return np.arange(len(scores), dtype=np.int64)
    if strategy == "least-confident":
        return np.argsort(scores.max(axis=1), kind="stable").astype(np.int64)
    own = scores.argmax(axis=1)
    counts = np.zeros(scores.shape[1], dtype=np.int64) if released is None else released
    return np.argsort(counts[own] + _places(own), kind="stable").astype(np.int64)


def _places(classes: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many earlier ones have the same class; int64 (n,)."""
    by_class = np.argsort(classes, kind="stable")
    starts = np.searchsorted(classes[by_class], classes)
    places = np.empty(len(classes), dtype=np.int64)
    places[by_class] = np.arange(len(classes))
    return places - starts


# Query strategies of the user's own: which public inputs are asked about next.
#
# A part is a function `strategy(seen: PublicView) -> places`, or a class that gives one without arguments.
# It gets public inputs and released labels, and no vote: a choice by these costs no privacy beyond the
# queries that it asks. The first round has no labels. In each later one the labels, and a student of them,
# are those that were released when the round began, as the ledger's rows say.


Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PublicView:
    """What a strategy sees, all of it public; arrays are not to be written to.

    Shapes: `inputs` images uint8 (n, H, W, C) or rows float64 (n, features), all that may be asked about;
    `left` int64 (k,), the places of those that were not asked yet; `index` and `labels` int64 (m,), places of
    answered inputs and their released classes; `probabilities` float32 (n, classes) of a student of these,
    None in the first round. `wanted` places are asked next. `seed` is for what is drawn, and the same only
    for the same question.
    """

    inputs: NDArray[Any]
    left: Ints
    index: Ints
    labels: Ints
    probabilities: NDArray[np.float32] | None
    num_classes: int
    wanted: int
    seed: int


def choose_by_own(part: Any, seen: PublicView, *, name: str) -> Ints:
    """The places to ask about next, at most `seen.wanted`, in the part's order; int64 (k,), k ≥ 1.

    `name` is what errors call it.

    Raises:
        InputError: the part fails, or gives places that are none, not left, or twice.
    """
    what = f"query strategy {name!r}"
    if not callable(part):
        raise InputError(f"{what}: is a {type(part).__name__}; a function of a PublicView is meant")
    for array in (seen.inputs, seen.left, seen.index, seen.labels, seen.probabilities):
        if array is not None:
            array.flags.writeable = False
    with telling(f"{what}: fails"):
        found = np.asarray((part() if isinstance(part, type) else part)(seen))
    if found.ndim != 1 or not len(found) or found.dtype.kind not in "iu":
        raise InputError(
            f"{what}: gives {found.dtype} {found.shape}; places of one input or more, whole numbers "
            "(k,), are meant"
        )
    if not 0 <= found.min() <= found.max() < len(seen.inputs):
        raise InputError(
            f"{what}: gives the places {found.min()} to {found.max()}; 0 to {len(seen.inputs) - 1} are meant"
        )
    places = found.astype(np.int64)
    if len(np.unique(places)) < len(places):
        raise InputError(f"{what}: gives a place twice; every input is asked about once")
    if not np.isin(places, seen.left).all():
        asked = int(places[~np.isin(places, seen.left)][0])
        raise InputError(f"{what}: gives the place {asked}, which is not left to ask about (seen.left)")
    return places[: seen.wanted]


def try_own_strategy(part: Any, inputs: NDArray[Any], *, name: str, num_classes: int, seed: int) -> None:
    """Ask a part once as in a first round and once as in a later one, with made-up labels, before any vote.

    Raises:
        InputError: it cannot choose.
    """
    every, half = np.arange(len(inputs), dtype=np.int64), len(inputs) // 2
    made_up = np.full((len(inputs), num_classes), 1 / num_classes, dtype=np.float32)
    for start, probabilities in ((0, None), (half, made_up)):
        seen = PublicView(
            inputs=inputs.view(),
            left=every[start:].copy(),
            index=every[:start].copy(),
            labels=every[:start] % num_classes,
            probabilities=probabilities,
            num_classes=num_classes,
            wanted=1,
            seed=seed,
        )
        choose_by_own(part, seen, name=name)
