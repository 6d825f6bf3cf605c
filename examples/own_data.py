"""A data set of one's own, from arrays: rows of features, as of a table or a text, and forests on them."""

from typing import Any

import numpy as np

from pate_fed import simulate


def load() -> dict[str, Any]:
    """Private and public rows (n, features) of classes 0 and 1; those of public rows only test."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 4000)
    rows = rng.normal(size=(4000, 8)) + labels[:, None]
    return {
        "private_images": rows[:3000],
        "private_labels": labels[:3000],
        "public_images": rows[3000:],
        "public_labels": labels[3000:],
        "class_names": ["well", "ill"],
    }


if __name__ == "__main__":
    run = simulate({"parties": {"num_clients": 50}}, dataset=load)
    print(run)
