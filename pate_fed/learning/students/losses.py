"""Losses of the semi-supervised GAN in the K-logit form.

The papers add a K+1-th class "generated"; fixing its logit at 0 gives the same classifier with K logits l,
where p(real | x) = exp(LSE(l)) / (exp(LSE(l)) + 1) and LSE is log-sum-exp (Salimans et al., "Improved
techniques for training GANs", section 5). With LSE and softplus throughout, large logits do not overflow.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def supervised_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """-log p(y | x, y ≤ K) of each sample: -l_y + LSE(l); its mean under probabilities of y.

    Shapes: logits (n, K), labels int64 (n,) or float (n, K), result (n,).
    """
    return F.cross_entropy(logits, labels, reduction="none")


def response_losses(logits: Tensor, labels: Tensor, *, keep_probability: float) -> Tensor:
    """-log of a randomised label's probability: it is the true one with `keep_probability`, else any other.

    The logits stay those of the true class (forward correction: Patrini et al., "Making deep neural networks
    robust to label noise", CVPR 2017). Shapes: logits (n, K), labels int64 (n,), result (n,).
    """
    other = (1 - keep_probability) / (logits.shape[1] - 1)
    true = logits.softmax(dim=1).gather(1, labels[:, None]).squeeze(1)
    return -torch.log(other + (keep_probability - other) * true)


def unsupervised_loss(real_logits: Tensor, fake_logits: Tensor) -> Tensor:
    """Half of -E log p(real | x) - E log p(generated | G(z)).

    With s = LSE(l): -log p(real) = softplus(s) - s, -log p(generated) = softplus(s).
    Shapes: (n, K) and (m, K) to a scalar.
    """
    real, fake = torch.logsumexp(real_logits, dim=1), torch.logsumexp(fake_logits, dim=1)
    return 0.5 * (F.softplus(real) - real).mean() + 0.5 * F.softplus(fake).mean()


def feature_matching_loss(real: Sequence[Tensor], fake: Sequence[Tensor]) -> Tensor:
    """‖E f(x) - E f(G(z))‖², averaged over the discriminators (PATE++, section III-A).

    As in the improved-GAN recipe the square is averaged over the features, which only scales the step.
    Shapes: one pair of (n, features) tensors a discriminator, to a scalar.
    """
    gaps = [(f.mean(dim=0) - g.mean(dim=0)).square().mean() for f, g in zip(real, fake, strict=True)]
    return torch.stack(gaps).mean()


def masked_mean(losses: Tensor, keep: Tensor) -> Tensor:
    """Mean of `losses` where `keep` is true, 0 (with gradient 0) where nothing is kept.

    Shapes: (n,) and bool (n,) to a scalar.
    """
    return torch.where(keep, losses, 0.0).sum() / keep.sum().clamp(min=1)
