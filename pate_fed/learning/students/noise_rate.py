"""β without manual checks and without privacy cost: an estimate from released labels and public inputs alone.

A head on the public encoder learns from all labels; β̂ is the share of them that it contradicts where it has
not learnt from them (leaving one out has a closed form). A wrong label is contradicted unless the teachers
were wrong together, in a way that can be learnt; a right one only where the head errs. The two faults pull in
opposite directions.

Measured on Fashion-MNIST, MNIST and Glyph, 500 to 2,200 labels, 4 to 31 % of them wrong: β̂ - β between -0.06
and +0.04 (`tests/benchmarks/test_learning_benchmark.py` prints it for Fashion-MNIST). With few labels a class
the head errs more, and β̂ is too large.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from pate_fed.learning.inputs import check_images, to_tensor
from pate_fed.learning.networks.encoder import Encoder
from pate_fed.learning.networks.heads import fit_kernel_classifier, one_hot, subsample
from pate_fed.learning.settings import StudentSettings

FEWEST_A_CLASS = 8  # labels a class, on average, for an estimate that is worth having
MOST = 0.6  # beyond it small losses point nowhere
CENTRES = 600


def estimate_noise_rate(
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    *,
    num_classes: int,
    encoder: Encoder,
    device: str = "cpu",
    least: float = 0.0,
) -> float:
    """β̂, the share of released labels that are wrong: those which a head of all others contradicts.

    It is at least `least`, which `least_noise_rate` gives, and at most 0.6. Too few labels give
    the default β.
    Shapes: the labelled images uint8 (m, H, W, C) and their released labels int64 (m,).

    Raises:
        InputError: the images are not the encoder's.
    """
    if len(labels) < FEWEST_A_CLASS * num_classes:
        return min(max(StudentSettings.DEFAULT_NOISE_RATE, least), MOST)
    check_images(images, encoder.image_shape)
    preprocess = encoder.preprocessing().to(device)
    own, targets = preprocess.in_parts(to_tensor(images, device)), one_hot(labels, num_classes, device)
    centres = subsample(own, CENTRES, torch.Generator().manual_seed(0))
    _, left_out = fit_kernel_classifier(preprocess, own, targets, centres=centres)
    contradicted = (left_out.argmax(dim=1) != targets.argmax(dim=1)).double().mean()
    return min(max(float(contradicted), least), MOST)


def least_noise_rate(*, sigma2: float, num_teachers: int, num_classes: int) -> float:
    """The share of labels that noise alone turns when all teachers agree and are right: the least there is.

    1 - ∫ φ(z) Φ(z + n/σ2)^(K-1) dz: the winner's noise is z·σ2, each rival stays below it by itself.
    """
    z = np.linspace(-9.0, 9.0, 4001)
    density = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    below = np.array([0.5 * math.erfc(-(each + num_teachers / sigma2) / math.sqrt(2)) for each in z])
    wins = float(np.sum(density * below ** (num_classes - 1)) * (z[1] - z[0]))
    return min(max(1.0 - wins, 0.0), 1.0)
