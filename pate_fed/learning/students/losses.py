"""Losses of students: the semi-supervised GAN's, virtual adversarial training, and how sure a student may be.

The papers add a K+1-th class "generated"; fixing its logit at 0 gives the same classifier with K logits l,
where p(real | x) = exp(LSE(l)) / (exp(LSE(l)) + 1) and LSE is log-sum-exp (Salimans et al., "Improved
techniques for training GANs", section 5). With LSE and softplus throughout, large logits do not overflow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pate_fed.learning.networks.classifiers import Classifier


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


# Virtual adversarial training: a class should not change with the small step that changes it most.
#
# Miyato et al., "Virtual adversarial training" (arXiv 1704.03976), the student of P18 (arXiv 1802.08908),
# with entropy minimisation. The step is taken in the pixels, in [0, 1], by one power iteration; noise and
# dropout stand still meanwhile, so that two answers differ by the step alone.


# Root mean square a pixel of the step that finds the direction. At the usual 1e-6 two answers in 32 bits
# differ by rounding: the direction had a cosine of 0.29 to the one in 64 bits, here of 0.9999 (measured).
FIRST = 1e-2
LENGTH = 2.0  # of the step itself, Euclidean over an image; of 0.5, 1, 2 and 4 the best on MNIST's pool


def virtual_adversarial_loss(network: Classifier, x: Tensor, *, length: float = LENGTH) -> Tensor:
    """KL(p(x) ‖ p(x + r)) for the worst small r, and the entropy of p(x); mean over the images.

    Shapes: pixels (n, C, H, W) in [0, 1] to a scalar. `length` is that of r, Euclidean over an image.
    """
    was_training = network.training
    network.eval()
    log_p = network(x).log_softmax(dim=1)  # (n, K)
    fixed = log_p.detach()
    start = (_unit(torch.randn_like(x)) * (FIRST * x[0].numel() ** 0.5)).requires_grad_()
    [slope] = torch.autograd.grad(_divergence(fixed, network(x + start)), start)
    divergence = _divergence(fixed, network(x + length * _unit(slope)))
    network.train(was_training)
    loss: Tensor = divergence - (log_p.exp() * log_p).sum(dim=1).mean()
    return loss


def _divergence(log_p: Tensor, logits: Tensor) -> Tensor:
    return F.kl_div(logits.log_softmax(dim=1), log_p, reduction="batchmean", log_target=True)


def _unit(x: Tensor) -> Tensor:
    """Each image at length 1; a flat one stays as it is."""
    flat = x.flatten(1)
    # The squares of tiny numbers would vanish.
    flat = flat / flat.abs().amax(dim=1, keepdim=True).clamp(min=1e-30)
    unit: Tensor = flat / flat.norm(dim=1, keepdim=True).clamp(min=1e-30)
    return unit.view_as(x)


# How sure a student may be, from released labels alone, so that it costs no privacy.
#
# Guo et al., "On calibration of modern neural networks" (ICML 2017): one number makes a classifier surer or
# less sure. Released labels are partly wrong, so a share of them that falls at random is found with it;
# without, a classifier would be taught to be as unsure as its labels are wrong. Networks have learnt some
# of the labels by heart, and others there are none. What tells how sure they may be is a second opinion on
# inputs without a label: that of a head which left-out labels have calibrated.


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
