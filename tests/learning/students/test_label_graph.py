"""The graph of public inputs against slow versions."""

from __future__ import annotations

import numpy as np
import pytest

from pate_fed.learning.students.label_graph import Graph, held_out_scores


def test_a_graph_joins_neighbours_both_ways_and_is_normalised() -> None:
    features = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    normed = Graph(features, neighbours=4)._normed.toarray()
    slow = np.zeros((40, 40))
    for one in range(40):
        gaps = ((features[one] - features) ** 2).sum(axis=1)
        near = np.argsort(gaps)[1:5]
        slow[one, near] = np.exp(-gaps[near] / gaps[near].max())
    slow = slow + slow.T
    degree = slow.sum(axis=1)
    assert np.allclose(normed, slow / np.sqrt(np.outer(degree, degree)), atol=1e-5)


def test_a_graph_measures_to_the_nearest_copy() -> None:
    rng = np.random.default_rng(3)
    features, copy = rng.normal(size=(2, 40, 3)).astype(np.float32)
    normed = Graph(features, neighbours=4, copies=[copy])._normed.toarray()
    slow = np.zeros((40, 40))
    for one in range(40):
        gaps = np.minimum(((features[one] - features) ** 2).sum(1), ((features[one] - copy) ** 2).sum(1))
        gaps[one] = np.inf
        near = np.argsort(gaps)[:4]
        slow[one, near] = np.exp(-gaps[near] / gaps[near].max())
    slow = slow + slow.T
    degree = slow.sum(axis=1)
    assert np.allclose(normed, slow / np.sqrt(np.outer(degree, degree)), atol=1e-5)


def test_labels_spread_as_the_closed_form_says() -> None:
    features = np.random.default_rng(1).normal(size=(30, 2)).astype(np.float32)
    graph = Graph(features, neighbours=5)
    index, labels = np.array([0, 7, 9]), np.array([1, 0, 1])
    found = graph.spread(index, labels, classes=2, alpha=0.5)
    start = np.zeros((30, 2))
    start[[0, 9], 1], start[7, 0] = 0.5, 1.0
    closed = 0.5 * np.linalg.solve(np.eye(30) - 0.5 * graph._normed.toarray(), start)
    assert np.allclose(found, closed, atol=1e-9)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_graph_of_few_inputs_works(count: int) -> None:
    graph = Graph(np.zeros((count, 3), dtype=np.float32))
    found = graph.spread(np.array([0]), np.array([1]), classes=2, alpha=0.9)
    assert found.shape == (count, 2) and np.isfinite(found).all() and found[0, 1] > 0


def test_held_out_scores_do_not_see_their_own_label() -> None:
    rng = np.random.default_rng(2)
    features = rng.normal(size=(60, 2)).astype(np.float32)
    graph, index, labels = Graph(features), np.arange(20), rng.integers(0, 3, 20)
    found = held_out_scores(graph, index, labels, classes=3, alpha=0.9, seed=4)
    fold = np.random.default_rng(4).permutation(20) % 5
    turned = labels.copy()
    turned[fold == 2] = (turned[fold == 2] + 1) % 3
    again = held_out_scores(graph, index, turned, classes=3, alpha=0.9, seed=4)
    assert np.allclose(found[fold == 2], again[fold == 2])
