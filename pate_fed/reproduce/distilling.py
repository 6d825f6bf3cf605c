"""Distillation, as a comparison: students of whole probability vectors (Hinton et al., arXiv 1503.02531).

NOT PRIVATE: what teachers say leaves them as it is. No study can do it; `pate-fed reproduce` shows what it
would gain (P17, arXiv 1610.05755, appendix B.1).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from pate_fed.learning.networks.encoder import fit_encoder
from pate_fed.learning.networks.heads import MOST_CENTRES, STRENGTHS, fit_ridge, gaussian_kernel, head_scores
from pate_fed.reproduce.votes import PLAIN_RIDGE

__all__ = ["fit_soft", "shares_of_heads"]

SHARPNESS = 10.0  # turns a regression on classes into logits

Floats = NDArray[np.float32]


def shares_of_heads(
    private: NDArray[np.uint8],
    labels: NDArray[np.int64],
    parts: Sequence[NDArray[np.int64]],
    *,
    public: NDArray[np.uint8],
    num_classes: int,
    temperatures: Sequence[float],
    device: str = "cpu",
) -> list[Floats]:
    """One-hot plurality, then the teachers' mean probabilities at each temperature, of every public image.

    Shapes: images uint8 (n, H, W, C), labels (n,), parts int64 each, to float32 (public, classes) each.
    """
    encoder = fit_encoder(public)
    rows = torch.from_numpy(encoder.transform(private, device)).to(device)
    asked = torch.from_numpy(encoder.transform(public, device)).to(device)
    classes = torch.from_numpy(np.array(labels)).to(device)
    votes = torch.zeros(len(public), num_classes, device=device)
    sums = [torch.zeros_like(votes) for _ in temperatures]
    for part in parts:
        own = torch.from_numpy(part).to(device)
        own_rows = rows[own][None, None]  # one teacher, no moved copies
        scores = head_scores(
            own_rows, classes[own][None], asked, num_classes=num_classes, strength=PLAIN_RIDGE
        )[0]
        votes += torch.nn.functional.one_hot(scores.argmax(dim=1), num_classes)
        for total, temperature in zip(sums, temperatures, strict=True):
            total += (SHARPNESS / temperature * scores).softmax(dim=1)
    plurality = torch.nn.functional.one_hot(votes.argmax(dim=1), num_classes).float()
    return [np.asarray(each.cpu().numpy()) for each in (plurality, *(total / len(parts) for total in sums))]


def fit_soft(
    pool: NDArray[np.uint8], index: NDArray[np.int64], targets: Floats, *, asked: NDArray[np.uint8]
) -> Floats:
    """Scores of `asked` by a kernel regression on targets (m, classes) of some images of the public pool."""
    encoder = fit_encoder(pool)
    features = torch.from_numpy(encoder.transform(pool[index])).double()
    centres = features[:MOST_CENTRES]
    ridge = fit_ridge(
        gaussian_kernel(features, centres), torch.from_numpy(targets).double(), strengths=STRENGTHS
    )
    questions = torch.from_numpy(encoder.transform(asked)).double()
    scores = gaussian_kernel(questions, centres) @ ridge.weights + ridge.bias
    return np.asarray(scores.float().numpy())
