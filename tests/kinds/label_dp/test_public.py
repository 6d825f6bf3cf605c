"""Public inputs: what a clusterer is held to."""

from __future__ import annotations

import numpy as np
import pytest

from pate_fed.errors import InputError
from pate_fed.kinds.label_dp.clusters import encoder_clusters
from pate_fed.kinds.label_dp.methods import find_clusterer
from pate_fed.kinds.label_dp.public import PublicInputs


def test_a_users_clusterer_is_held_to_its_word(public: PublicInputs) -> None:
    def mine(inputs: PublicInputs, num_clusters: int, *, seed: int) -> np.ndarray:
        return np.arange(len(inputs.images)) % num_clusters

    assert public.clusters(mine, 5).max() == 4
    for wrong, message in (
        (lambda inputs, k, *, seed: np.zeros(3, dtype=int), "gave int64"),
        (lambda inputs, k, *, seed: np.full(len(inputs), k), "outside 0 to"),
        (lambda inputs, k, *, seed: np.zeros(len(inputs)), "gave float64"),
    ):
        with pytest.raises(InputError, match=message):
            public.clusters(wrong, 5)
    assert find_clusterer("pate_fed.kinds.label_dp.clusters:encoder_clusters") is encoder_clusters
    with pytest.raises(InputError, match="MODULE:FUNCTION"):
        find_clusterer("nosuch:thing")
    with pytest.raises(InputError, match="--clusters 3"):
        public.clusters(encoder_clusters, 3)
    with pytest.raises(InputError, match="more than the 600"):
        public.clusters(encoder_clusters, 601)


def test_two_clusterers_of_one_name_are_two(public: PublicInputs) -> None:
    first = public.clusters(lambda inputs, k, *, seed: np.arange(len(inputs)) % k, 7)
    second = public.clusters(lambda inputs, k, *, seed: np.arange(len(inputs)) // 3 % k, 7)
    assert first[:8].tolist() == [0, 1, 2, 3, 4, 5, 6, 0] and second[:4].tolist() == [0, 0, 0, 1]
