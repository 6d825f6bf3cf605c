"""A feature map of one's own for class sums: nearness to prototypes of public inputs. ε rests on its word."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import MiniBatchKMeans

from pate_fed import simulate


def prototypes(public: NDArray[Any]) -> Any:
    """A map from inputs (n, ...) to features (n, 40), none below 0, none longer than 1; of public inputs."""
    rows = public.reshape(len(public), -1) / 255
    centres = MiniBatchKMeans(40, random_state=0, n_init=1).fit(rows).cluster_centers_
    wide = ((rows[:, None] - centres[:1]) ** 2).sum(axis=2).mean()

    def encode(inputs: NDArray[Any]) -> NDArray[Any]:
        flat = inputs.reshape(len(inputs), -1) / 255
        near = np.exp(-8 * ((flat[:, None] - centres) ** 2).sum(axis=2) / wide)
        return np.asarray(near / (1e-9 + np.sqrt((near**2).sum(axis=1, keepdims=True))))

    return encode


if __name__ == "__main__":
    sums, secrecy = {"aggregator": "class-sums"}, {"secure_sum": True, "noise_at": "hospitals"}
    study = {"parties": {"num_clients": 6}, "aggregation": sums, "secrecy": secrecy}
    print(simulate(study, feature_map=prototypes))
