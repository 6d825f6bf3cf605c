"""How sure a student may be, from released labels alone, so that it costs no privacy.

Guo et al., "On calibration of modern neural networks" (ICML 2017): one number makes a classifier surer or
less sure. Released labels are partly wrong, so a share of them that falls at random is found with it;
without, a classifier would be taught to be as unsure as its labels are wrong. Networks have learnt some of
the labels by heart, and others there are none. What tells how sure they may be is a second opinion on inputs
without a label: that of a head which left-out labels have calibrated.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

SCORES = (0.0, 2.0)  # powers of ten: scores between 0 and 1
STEPS = 33
EXPONENTS = (-1.0, 1.0)  # powers of ten
HALVINGS = 20


def calibrate(scores: Tensor, labels: Tensor) -> tuple[float, float]:
    """Sharpness s and noise share b that make `scores` most likely under partly wrong `labels`.

    The model is (1 - b)·p + b/K with p = softmax(s·scores): wrong labels fall on every class alike. Labels
    that are probabilities tell of their doubt themselves, so b is 0 then.

    Shapes: float (n, K), about 0 to 1, and int64 (n,) or float (n, K), n ≥ 1.
    """
    best = (-float("inf"), 1.0, 0.0)
    noise = torch.arange(0.0, 0.9, 0.03).tolist()  # all shares of it at once, a row each
    form: dict[str, Any] = {"dtype": scores.dtype, "device": scores.device}
    kept = torch.tensor([1 - share for share in noise], **form)[:, None]
    spread = torch.tensor([share / scores.shape[1] for share in noise], **form)[:, None]
    for sharpness in torch.logspace(*SCORES, STEPS).tolist():
        if labels.ndim == 2:
            likely = float((labels * (sharpness * scores).log_softmax(dim=1)).sum())
            best = max(best, (likely, sharpness, 0.0))
            continue
        right = (sharpness * scores).softmax(dim=1).gather(1, labels[:, None]).squeeze(1)
        chances = (kept * right).add_(spread).clamp_(min=1e-12)  # (shares, n)
        totals = chances.log_().sum(dim=1).tolist()
        best = max(best, *((total, sharpness, share) for total, share in zip(totals, noise, strict=True)))
    return best[1], best[2]


def sharpened(shares: Tensor, sharpness: float) -> Tensor:
    """Powers of probabilities (n, K), scaled to sum to 1 again: the order of the classes stays."""
    return shares if sharpness == 1 else (sharpness * shares.log()).softmax(dim=1)


def sharpness_for(shares: Tensor, *, confidence: float) -> float:
    """The exponent, between 1/10 and 10, that brings the mean of the largest probability to `confidence`.

    Shapes: float (n, K), n ≥ 1.
    """
    low, high = EXPONENTS
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        sure = float(sharpened(shares, 10**middle).amax(dim=1).mean())
        low, high = (middle, high) if sure < confidence else (low, middle)
    return float(10 ** ((low + high) / 2))
