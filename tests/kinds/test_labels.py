"""Terms of private labels are held to types and sizes wherever they are read, and answers to their form."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import make_label_terms, vary

from pate_fed.errors import InputError, IntegrityError
from pate_fed.kinds.guarantee import worst_epsilon
from pate_fed.kinds.labels import LabelTerms, clusters_digest
from pate_fed.kinds.make import PublicClusters, PublicPool, label_terms
from pate_fed.kinds.terms import Terms
from pate_fed.privacy.label_dp import RandomisedResponse

POOL = PublicPool(size=60, digest="ab" * 32, num_classes=3, shape=(8, 8, 1))
CLUSTER = np.arange(60) % 6


def _terms(*, counts: bool) -> Terms:
    clusters = PublicClusters(place=CLUSTER, count=6, delta=1e-5) if counts else None
    return label_terms(POOL, num_clients=6, quorum=0.8, epsilon=1.0, seed=None, clusters=clusters)


def test_terms_state_their_row_on_the_ledger() -> None:
    responded, counted = _terms(counts=False), _terms(counts=True)
    rows = [each.ledger_terms(noise="n", private=True).mechanisms for each in (responded, counted)]
    assert rows[0] == (RandomisedResponse(num_classes=3, epsilon=1.0),)
    assert rows[1][0].parameters()["sigma_party"] == counted.sigma_party
    assert worst_epsilon(responded) == (1.0, 1.0) and responded.delta == 0
    spent = LabelTerms.of(counted).spent(counted)
    assert worst_epsilon(counted) == (spent, spent) and 0.99 < spent <= 1.0 and counted.delta == 1e-5
    assert LabelTerms.of(counted).clusters == clusters_digest(CLUSTER)
    assert Terms.from_json(counted.to_json()) == counted


def test_a_response_is_the_same_under_terms_that_draw_it_alike() -> None:
    terms, counts = _terms(counts=False), _terms(counts=True)
    alike = replace(terms, study="another", least_clients=2, classes=("a", "b", "c"))
    assert alike.digest != terms.digest and alike.answer_digest == terms.answer_digest
    for change in ({"epsilon": 1.1}, {"num_classes": 4}, {"pool_digest": "cd" * 32}, {"seed": 1}):
        assert vary(terms, **change).answer_digest != terms.answer_digest
    assert replace(counts, study="another").answer_digest != counts.answer_digest


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
        {"privacy.epsilon": "x"},
        {"privacy.epsilon": 10**400},
        {"privacy.epsilon": float("nan")},
        {"privacy.epsilon": -1.0},
        {"privacy.epsilon": None},
        {"privacy.epsilon": 0.0},
        {"privacy.delta": 7},
        {"privacy.delta": "small"},
        {"privacy.unit": "record"},
        {"privacy.adjacency": "add-or-remove-one"},
        {"privacy.sanitise": True},
        {"asks.num_clusters": 10**9},
        {"asks.num_clusters": 2},
        {"asks.clusters": "short"},
        {"asks.method": "votes"},
        {"asks.method": ["randres"]},
        {"asks.kind": "votes"},
        {"sigma_party": "x"},
        {"sigma_party": 10**400},
        {"sigma_party": 1.0},
        {"secrecy.colluders": -1},
        {"secrecy.colluders": 6},
        {"seed": "x"},
        {"seed": 2**70},
        {"study": "s" * 101},
        {"study": 5},
        {"classes": [1, 2]},
        {"classes": 5},
        {"more": 1},
    ],
    ids=str,
)
def test_terms_that_none_could_mean_are_refused(counts: bool, change: dict[str, Any]) -> None:
    values = json.loads(_terms(counts=counts).to_json())
    for name, value in change.items():
        *section, key = name.split(".")
        (values[section[0]] if section else values)[key] = value
    with pytest.raises(IntegrityError):
        Terms.from_json(json.dumps(values))


def test_masks_and_noise_go_with_counts_alone() -> None:
    terms, counts = _terms(counts=False), _terms(counts=True)
    for wrong in (
        {"asks": counts.asks},
        {"privacy": counts.privacy},
        {"secrecy": counts.secrecy, "sigma_party": counts.sigma_party},
    ):
        with pytest.raises(InputError):
            replace(terms, **wrong)
    with pytest.raises(InputError, match="sigma_party"):
        replace(counts, sigma_party=0.99 * (counts.sigma_party or 0))


RESPONSE = np.zeros((50, 2), dtype=np.int64)
RESPONSE[10:20, 0], RESPONSE[10:20, 1] = 1, 2


def _set(row: int, column: int, value: int) -> np.ndarray:
    wrong = RESPONSE.copy()
    wrong[row, column] = value
    return wrong


@pytest.mark.parametrize(
    "wrong",
    [
        RESPONSE[:-1],
        RESPONSE[:, :1],
        RESPONSE.astype(np.int32),
        np.zeros_like(RESPONSE),
        _set(0, 1, 1),
        _set(10, 0, 2),
        _set(0, 0, -1),
        _set(10, 1, 3),
        _set(10, 1, -1),
    ],
)
def test_a_response_marks_its_own_inputs_and_tells_classes(wrong: np.ndarray) -> None:
    bounds = make_label_terms().bounds
    bounds.check(RESPONSE, rows=50)
    with pytest.raises(IntegrityError) as caught:
        bounds.check(wrong, rows=50)
    assert "the answer" in str(caught.value)
