"""Rows of a table, some values missing, which are filled in beforehand, and a torch network on them."""

import numpy as np
from torch import nn

from pate_fed import simulate


def make(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """A network from rows float32 (n, features) to logits (n, num_classes)."""
    return nn.Sequential(nn.Linear(input_shape[0], 32), nn.ReLU(), nn.Linear(32, num_classes))


rng = np.random.default_rng(0)
y = rng.integers(0, 3, 4000)
x = rng.normal(size=(4000, 10)) + np.eye(3, 10)[y] * 2
x[rng.random(x.shape) < 0.05] = np.nan
x = np.nan_to_num(x, nan=0.0)  # by a number that is known beforehand: a mean would tell of the records
data = {
    "private_images": x[:3000],
    "private_labels": y[:3000],
    "public_images": x[3000:],
    "public_labels": y[3000:],
}
print(simulate({"parties": {"num_clients": 100}}, dataset=data, teacher=make, student=make))
