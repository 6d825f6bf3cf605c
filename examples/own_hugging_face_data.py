"""A data set of Hugging Face's in place of arrays; made up here, load_dataset gives one in the same way."""

import numpy as np
from datasets import Dataset

from pate_fed import simulate

rng = np.random.default_rng(0)
label = rng.integers(0, 2, 3000)
rows = rng.normal(size=(3000, 8)) + label[:, None]
held = Dataset.from_dict({"features": rows.tolist(), "label": label.tolist()})
private, public = held[:2400], held[2400:]
data = {
    "private_images": np.asarray(private["features"]),
    "private_labels": np.asarray(private["label"]),
    "public_images": np.asarray(public["features"]),
    "public_labels": np.asarray(public["label"]),
}
print(simulate({"parties": {"num_clients": 50}}, dataset=data))
