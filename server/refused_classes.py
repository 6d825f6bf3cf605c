"""What released figures tell about classes that the threshold keeps away: no vote and no true label is used.

A threshold answers where teachers agree, and they agree least on a class of which they have few records. So
its inputs stay without labels, more than the others'. What was asked and answered is public, and so is what
the student says of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pate_fed.format import counted, wilson_interval

ENOUGH = 20  # inputs of a class that were asked about, or labels a class, before anything is said
MUCH = 0.75  # of the others' share of answers; below it a class counts as refused
MOST_NAMES = 3


def refusal_warnings(
    *,
    answered: NDArray[np.bool_],
    label: NDArray[np.int64],
    said: NDArray[np.int64],
    class_names: Sequence[str],
) -> tuple[str, ...]:
    """A sentence on classes whose inputs are seldom answered, and one on classes without any label.

    `said` is what the student says of each input that was asked about, `label` its released label where
    `answered`; all (asked,). A class is told of where its share of answers is below three quarters of the
    others', by the upper end of its 95 % interval (Wilson).
    """
    found = []
    refused = [each for each in range(len(class_names)) if _is_refused(answered, said == each)]
    if refused:
        share, others = (float(answered[kind].mean()) for kind in _kinds(np.isin(said, refused)))
        found.append(
            f"The threshold refuses {_names(refused, class_names)}: of the inputs that the student takes for "
            f"{_it(refused)} {share:.0%} were answered, of the others {others:.0%}. A lower --threshold, or "
            "--query-strategy class-balanced, gives more labels there."
        )
    counts = np.bincount(label[answered], minlength=len(class_names))
    missing = np.flatnonzero(counts == 0).tolist()
    if missing and counts.sum() >= ENOUGH * len(class_names):
        labels = counted(int(counts.sum()), "label")
        found.append(
            f"None of {labels} is {_names(missing, class_names)}: the student cannot tell {_it(missing)}."
        )
    return tuple(found)


def _kinds(own: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    return own, ~own


def _is_refused(answered: NDArray[np.bool_], own: NDArray[np.bool_]) -> bool:
    if min(own.sum(), (~own).sum()) < ENOUGH:
        return False
    share, others = (float(answered[kind].mean()) for kind in _kinds(own))
    return wilson_interval(share, int(own.sum()))[1] < MUCH * others


def _it(classes: Sequence[int]) -> str:
    return "it" if len(classes) == 1 else "them"


def _names(classes: Sequence[int], class_names: Sequence[str]) -> str:
    names = [class_names[each] for each in classes[:MOST_NAMES]]
    more = len(classes) - len(names)
    noun = "class" if len(classes) == 1 else "classes"
    return f"{noun} {', '.join(names)}" + (f" and {more} more" if more else "")
