"""One study at several ε, side by side; each run spends its own."""

import numpy as np

from pate_fed import simulate

rng = np.random.default_rng(0)
y = rng.integers(0, 2, 3000)
x = rng.normal(size=(3000, 6)) + y[:, None]
data = {
    "private_images": x[:2000],
    "private_labels": y[:2000],
    "public_images": x[2000:],
    "public_labels": y[2000:],
}
for epsilon in (0.5, 2.0):
    study = {
        "parties": {"num_clients": 6},
        "aggregation": {"aggregator": "class-sums"},
        "secrecy": {"secure_sum": True, "noise_at": "hospitals"},
        "privacy": {"epsilon": epsilon},
    }
    run = simulate(study, dataset=data, quiet=True)
    print(f"{run.epsilon:.2f} {run.metrics['accuracy']['student']:.3f} {run.path}")
