"""Which labelled samples teach which discriminator: the small-loss exchange and its schedule (PATE++, III).

Everything works with masks of a fixed size, so that nothing on a GPU waits for a count.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["exchange", "keep_rate", "select_small_losses"]


def keep_rate(epoch: int, *, noise_rate: float, ramp_epochs: int = 15) -> float:
    """R(e) = 1 - β·min(e / ramp, 1): the share of small-loss samples used in epoch e, counted from 1.

    Han et al., "Co-teaching" (2018), with the ramp of PATE++, section IV-A.
    """
    return 1.0 - noise_rate * min(epoch / ramp_epochs, 1.0)


def select_small_losses(losses: Tensor, candidates: Tensor, *, rate: float) -> Tensor:
    """The ⌈rate · candidates⌉ candidates with the smallest losses (Algorithm 1, line 9); ties by position.

    Shapes: losses (n,), candidates bool (n,), result bool (n,), empty where there are no candidates.
    """
    order = torch.where(candidates, losses, torch.inf).argsort(stable=True)  # positions, smallest loss first
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    # In double precision and a hair less, so that 0.8 · 100 is 80 and not 81.
    wanted = torch.ceil(candidates.sum().double() * rate - 1e-9)
    return candidates & (rank < wanted)


def exchange(losses: list[Tensor], candidates: Tensor, *, rate: float) -> list[Tensor]:
    """The samples each discriminator learns from: those of small loss to the *other* one (lines 11 and 12).

    One discriminator alone has no peer and learns from all candidates. Shapes: (n,) each to bool (n,) each.
    """
    if len(losses) == 1:
        return [candidates]
    first, second = (select_small_losses(each.detach(), candidates, rate=rate) for each in losses)
    return [second, first]
