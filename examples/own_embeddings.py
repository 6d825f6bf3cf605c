"""Four hospitals with embeddings of their records, by an encoder that was trained on public data alone.

An encoder is public if nothing of any hospital's records went into it: neither its weights, nor the choice
of it. What it gives for a record follows from that record alone.
"""

import numpy as np

from pate_fed import simulate

rng = np.random.default_rng(0)
centres = rng.normal(size=(3, 64))
y = rng.integers(0, 3, 5000)
x = (0.3 * centres[y] + rng.normal(size=(5000, 64))).astype(np.float32)  # as embeddings.npy holds them
data = {
    "private_images": x[:4000],
    "private_labels": y[:4000],
    "public_images": x[4000:],
    "public_labels": y[4000:],
}
study = {
    "parties": {"num_clients": 4, "records": 1000},
    "aggregation": {"aggregator": "class-sums"},
    "secrecy": {"secure_sum": True, "noise_at": "hospitals"},
}
print(simulate(study, dataset=data))
