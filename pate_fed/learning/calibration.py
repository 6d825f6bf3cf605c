"""How sure a student may be, from released labels alone, so that it costs no privacy.

Sources: Guo et al., "On calibration of modern neural networks" (ICML 2017): one number that all logits are
multiplied by, chosen by likelihood. Released labels are partly wrong, so a share of them that falls at random
is found with it; without, a student would be taught to be as unsure as its labels are wrong.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["LOGITS", "SCORES", "calibrate"]

LOGITS, SCORES = (-1.0, 1.0), (0.0, 2.0)  # powers of ten: networks' logits, and scores between 0 and 1
STEPS = 33


def calibrate(
    scores: Tensor, labels: Tensor, *, within: tuple[float, float] = LOGITS, spread: float = math.inf
) -> tuple[float, float]:
    """Sharpness s and noise share b that make `scores` most likely under partly wrong `labels`.

    The model is (1 - b)·p + b/K, where p is the mean over networks of softmax(s·scores): wrong labels fall on
    every class alike. With `spread` s is log-normal beforehand, of that deviation in powers of ten: few and
    very noisy labels hardly tell sharp networks and many wrong labels from the contrary.

    Shapes: float (networks, n, K) and int64 (n,), n ≥ 1.
    """
    best = (-float("inf"), 1.0, 0.0)
    for sharpness in torch.logspace(*within, STEPS).tolist():
        shares = (sharpness * scores).softmax(dim=2).mean(dim=0)
        right = shares.gather(1, labels[:, None]).squeeze(1)
        for random in torch.arange(0.0, 0.9, 0.03).tolist():
            chance = ((1 - random) * right + random / scores.shape[2]).clamp(min=1e-12)
            likely = float(chance.log().sum()) - 0.5 * (math.log10(sharpness) / spread) ** 2
            best = max(best, (likely, sharpness, random))
    return best[1], best[2]
