"""Series of two channels, as an ECG, and a torch network over time, as teachers and as student."""

import numpy as np
from torch import nn

from pate_fed import simulate


def make(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """A network from series float32 (n, channels, times) to logits (n, num_classes)."""
    layers = nn.Conv1d(input_shape[0], 8, 9, padding=4), nn.ReLU(), nn.AdaptiveMaxPool1d(4), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(32, num_classes))


rng = np.random.default_rng(0)
y = rng.integers(0, 2, 3000)
t = np.arange(120)
x = 0.5 * rng.normal(size=(3000, 2, 120)) + np.sin(t / np.where(y, 4, 7)[:, None, None])
data = {
    "private_images": x[:2400].astype(np.float32),
    "private_labels": y[:2400],
    "public_images": x[2400:].astype(np.float32),
    "public_labels": y[2400:],
}
print(simulate({"parties": {"num_clients": 100}}, dataset=data, teacher=make, student=make))
