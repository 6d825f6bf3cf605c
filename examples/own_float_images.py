"""Images of floats with five channels, as of a microscope, and a torch network on them as they are."""

import numpy as np
from torch import nn

from pate_fed import simulate


def make(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """A network from float32 (n, channels, height, width) to logits (n, num_classes)."""
    layers = nn.Conv2d(input_shape[0], 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(32, num_classes))


rng = np.random.default_rng(0)
y = rng.integers(0, 2, 3000)
x = rng.normal(size=(3000, 5, 12, 12)).astype(np.float32)
x[y == 1, 2] += 0.5  # the third channel tells the class
private = {"private_images": x[:2400], "private_labels": y[:2400]}
public = {"public_images": x[2400:], "public_labels": y[2400:]}  # these labels only measure
print(simulate({"parties": {"num_clients": 100}}, dataset=private | public, teacher=make, student=make))
