"""A torch network of one's own on volumes of floats, as teachers and as student, with 100 parties."""

import numpy as np
from torch import nn

from pate_fed import simulate


def make(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """A network from volumes float32 (n, 1, depth, height, width) to logits (n, num_classes)."""
    channels, *_ = input_shape
    layers = nn.Conv3d(channels, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool3d(2), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(32, num_classes))


rng = np.random.default_rng(0)
y = rng.integers(0, 2, 4000)
x = rng.normal(size=(4000, 1, 6, 8, 8)).astype(np.float32)
x[y == 1, :, :3] += 0.5  # the upper half of a volume tells its class
data = {
    "private_images": x[:3000],
    "private_labels": y[:3000],
    "public_images": x[3000:],
    "public_labels": y[3000:],
}
print(simulate({"parties": {"num_clients": 100}}, dataset=data, teacher=make, student=make))
