"""A partition of one's own: every party has records of few classes."""

import numpy as np
from numpy.typing import NDArray

from pate_fed import simulate


def deal(labels: NDArray[np.int64], num_parties: int, seed: int) -> list[NDArray[np.int64]]:
    """One array of places a party: disjoint, together every record, none empty."""
    rng = np.random.default_rng(seed)
    by_class = np.lexsort((rng.random(len(labels)), labels))
    pieces = np.array_split(by_class, 2 * num_parties)  # two a party, of one or two classes each
    order = rng.permutation(2 * num_parties)
    return [np.concatenate([pieces[i], pieces[j]]) for i, j in order.reshape(-1, 2)]


if __name__ == "__main__":
    run = simulate({"parties": {"num_clients": 250}}, partitioner=deal)
    print(run)
