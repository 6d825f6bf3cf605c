"""A torch teacher of one's own on arrays of one's own, in a study with 250 parties."""

import numpy as np
from torch import nn

from pate_fed import simulate


def make(image_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """A network from images (n, channels, height, width) to logits (n, num_classes)."""
    return nn.Sequential(nn.Flatten(), nn.Linear(16 * 16, num_classes))


rng = np.random.default_rng(0)
y = rng.integers(0, 4, 6000)
x = rng.integers(0, 150, (6000, 16, 16, 1)).astype(np.uint8)  # images (n, height, width, channels)
x[np.arange(6000), 4 * y + 1] += 100  # another bright row for each class
private = {"private_images": x[:5000], "private_labels": y[:5000]}
public = {"public_images": x[5000:], "public_labels": y[5000:]}  # these labels only measure
print(simulate({"parties": {"num_clients": 250}}, dataset=private | public, teacher=make))
