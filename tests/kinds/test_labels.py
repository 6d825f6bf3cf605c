"""Terms of private labels are held to types and sizes wherever they are read."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from pate_fed.errors import InputError, IntegrityError
from pate_fed.kinds.labels import LabelTerms, PublicClusters, PublicPool, label_terms
from pate_fed.privacy.label_dp import RandomisedResponse

POOL = PublicPool(size=60, digest="ab" * 32, num_classes=3)


def _terms(*, counts: bool) -> LabelTerms:
    clusters = PublicClusters(place=np.arange(60) % 6, count=6, delta=1e-5) if counts else None
    return label_terms(POOL, num_clients=6, quorum=0.8, epsilon=1.0, seed=None, clusters=clusters)


def test_terms_state_their_row_on_the_ledger() -> None:
    responded, counted = _terms(counts=False), _terms(counts=True)
    assert responded.on_ledger == RandomisedResponse(num_classes=3, epsilon=1.0)
    assert counted.on_ledger.parameters()["sigma_party"] == counted.sigma_party
    assert responded.spent == 1.0 and 0.99 < counted.spent <= 1.0
    assert LabelTerms.from_json(counted.to_json()) == counted


@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        {"num_classes": "x"},
        {"num_classes": 10**9},
        {"num_classes": 1},
        {"num_classes": 2.5},
        {"pool_size": 10**12},
        {"pool_size": True},
        {"pool_digest": "x"},
        {"pool_digest": None},
        {"num_clients": 10**9},
        {"num_clients": -1},
        {"least_clients": 7},
        {"least_clients": "two"},
        {"epsilon": "x"},
        {"epsilon": 10**400},
        {"epsilon": float("nan")},
        {"epsilon": -1.0},
        {"delta": 7},
        {"delta": "small"},
        {"num_clusters": 10**9},
        {"num_clusters": 2},
        {"epsilon": 0.0},
        {"clusters_digest": "short"},
        {"sigma_party": "x"},
        {"sigma_party": 10**400},
        {"colluders": -1},
        {"colluders": 6},
        {"seed": "x"},
        {"seed": 2**70},
        {"study": "s" * 101},
        {"study": 5},
        {"mechanism": "votes"},
        {"mechanism": ["randres"]},
        {"classes": [1, 2]},
        {"classes": 5},
        {"more": 1},
    ],
    ids=str,
)
def test_terms_that_none_could_mean_are_refused(counts: bool, change: dict[str, Any]) -> None:
    values = {**json.loads(_terms(counts=counts).to_json()), **change}
    with pytest.raises(IntegrityError):
        LabelTerms.from_json(json.dumps(values))
    if set(change) <= set(LabelTerms.__slots__):
        with pytest.raises((InputError, TypeError)):
            LabelTerms(**{**values, "classes": values["classes"]})
