"""PATE++'s search for wrong labels: who is suspected, how suspicion decays, who loses the label.

PATE++ (arXiv 2211.01628), section III-C and Algorithm 3. It uses released labels and public inputs only, so
it costs no privacy.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["decayed", "most_suspected", "suspects"]


def suspects(first: Tensor, second: Tensor, labels: Tensor) -> Tensor:
    """Criteria 1 and 2: the discriminators predict different classes, and neither predicts the label.

    Shapes: int64 (n,) each, to bool (n,).
    """
    return (first != second) & (first != labels) & (second != labels)


def decayed(table: Tensor, suspected: Tensor, *, decay: float) -> Tensor:
    """The count table after one more epoch: T ← α·T + c, with c 1 for one suspected in the epoch, else 0.

    This is the text's rule, which damps the early epochs. Line 16 of the pseudocode multiplies the new count
    instead, so that its table never forgets. Shapes: float (m,) and (m,) to (m,).
    """
    return decay * table + suspected.to(table.dtype)


def most_suspected(table: Tensor, *, share: float) -> Tensor:
    """The ⌊share · m⌋ samples with the largest counts, ties by position: bool (m,).

    Fewer where fewer have any count: a sample never suspected keeps its label, which the paper leaves open.
    """
    wanted = int(share * len(table) + 1e-9)
    order = table.argsort(descending=True, stable=True)
    chosen = torch.zeros(len(table), dtype=torch.bool, device=table.device)
    chosen[order[:wanted]] = True
    return chosen & (table > 0)
