"""Methods that release labels, and what is learnt from labels: also without privacy.

All learn the same way: logistic regression (ridge regression of a number) on public features, those of images
an embedding that is fitted to the pool.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.bench.protocol import (
    BALANCED,
    LABEL,
    Given,
    Ledger,
    NotApplicableError,
    Spent,
    Task,
    least_noise,
)

Floats = NDArray[np.float64]
_NEIGHBOURS, _SHARE, _QUERIES = 300, 0.15, 735  # private kNN on MNIST: neighbours, Poisson share, queries
_TEACHERS, _LABELS = 5, 200  # FedKT: a hospital's teachers, and public inputs that it labels
_MOST_ALONE = 20  # hospitals whose own models are measured


class Features:
    """Public features of a task's inputs, float64 (n, d): standardised by the pool, 0 where missing."""

    def __init__(self, task: Task) -> None:
        """Fit to the pool alone."""
        self._encode: Any = None
        pool = task.pool
        if pool.ndim == 4:
            from pate_fed.learning.features.images import fit_image_embedding

            self._encode = fit_image_embedding(np.ascontiguousarray(pool)).encode
            pool = self._encode(pool)
        rows = np.asarray(pool, dtype=np.float64)
        self._middle, spread = np.nanmean(rows, axis=0), np.nanstd(rows, axis=0)
        self._spread = np.where(spread > 0, spread, 1.0)

    def __call__(self, inputs: NDArray[Any]) -> Floats:
        """Of these inputs."""
        rows = inputs if self._encode is None else self._encode(np.ascontiguousarray(inputs))
        scaled = (np.asarray(rows, dtype=np.float64) - self._middle) / self._spread
        return np.asarray(np.nan_to_num(scaled), dtype=np.float64)


def learn(task: Task, rows: Floats, labels: NDArray[Any], tested: Floats) -> Floats:
    """Scores (n, classes), or numbers (n,), of tested rows by a model of the labelled ones."""
    from sklearn.linear_model import LogisticRegression, Ridge

    if task.target_range is not None:
        found: Floats = np.clip(Ridge(1.0).fit(rows, labels).predict(tested), *task.target_range)
        return found
    scores, there = np.zeros((len(tested), task.num_classes)), np.unique(labels)
    weight = "balanced" if task.measure == BALANCED else None  # as they are measured
    model = LogisticRegression(max_iter=300, class_weight=weight)
    scores[:, there] = model.fit(rows, labels).predict_proba(tested) if len(there) > 1 else 1
    return scores


def _taught(task: Task, labels: NDArray[Any], own: Any = slice(None)) -> Floats:
    features = Features(task)
    return learn(task, features(task.inputs[own]), labels[own], features(task.test))


def _need_classes(task: Task, what: str) -> None:
    if task.target_range is not None:
        raise NotApplicableError(f"{what} classes, and this task has a number")


def run_central(task: Task, epsilon: float, seed: int) -> Given:
    """All records in one place, without privacy."""
    return _taught(task, task.labels), Ledger(epsilon=None, delta=0)


def run_alone(task: Task, epsilon: float, seed: int) -> Given:
    """One hospital's records, without privacy towards its users: which hospital, the seed draws."""
    own = np.random.default_rng(seed).integers(task.parties)
    return _taught(task, task.labels, task.owners == own), Ledger(epsilon=None, delta=0)


def run_randomised(task: Task, epsilon: float, seed: int) -> Given:
    """Each hospital randomises each label (RandRes of Tang et al. 2022): only labels are private."""
    _need_classes(task, "randomised response is of")
    labels = randomised(task.labels, epsilon, task.num_classes, np.random.default_rng(seed))
    return _taught(task, labels), Ledger(epsilon=epsilon, delta=0, unit=LABEL, rows=(Spent(pure=epsilon),))


def randomised(
    labels: NDArray[np.int64], epsilon: float, classes: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Each label kept with chance e^ε/(e^ε + K - 1), else one of the others."""
    kept = rng.random(len(labels)) < math.exp(epsilon) / (math.exp(epsilon) + classes - 1)
    return np.where(kept, labels, (labels + rng.integers(1, classes, len(labels))) % classes)


def right_responses(task: Task, truth: NDArray[np.int64], seed: int) -> float:
    """The share of labels that are right at ε 1."""
    found = randomised(task.labels, 1.0, task.num_classes, np.random.default_rng(seed))
    return float((found == task.labels).mean())


def run_neighbours(task: Task, epsilon: float, seed: int) -> Given:
    """Private kNN (Zhu et al., CVPR 2020): noisy votes of a Poisson sample's nearest records, for each query.

    All records are in one place. Another record changes a query's votes by at most √2 in L2 (one neighbour
    goes, another comes); which of them are in a query's sample is drawn anew.
    """
    _need_classes(task, "neighbours vote for")
    rng, features = np.random.default_rng(seed), Features(task)
    rows, pool = features(task.inputs), features(task.pool)
    asked = rng.permutation(len(pool))[:_QUERIES]
    near = min(_NEIGHBOURS, max(1, round(_SHARE * len(rows) / (4 * task.num_classes))))
    row = least_noise(epsilon, task.delta, sampling=_SHARE, count=len(asked))
    sigma, released = row.noise * math.sqrt(2), np.empty(len(asked), dtype=np.int64)
    squares = (rows**2).sum(axis=1)
    for place, query in enumerate(asked):
        taken = np.flatnonzero(rng.random(len(rows)) < _SHARE)
        far = squares[taken] - 2 * rows[taken] @ pool[query]
        nearest = taken[np.argpartition(far, min(near, len(taken) - 1))[:near]]
        votes = np.bincount(task.labels[nearest], minlength=task.num_classes)
        released[place] = np.argmax(votes + rng.normal(0, sigma, task.num_classes))
    found = learn(task, pool[asked], released, features(task.test))
    return found, Ledger(epsilon=epsilon, delta=task.delta, rows=(row,))


def run_fedkt(task: Task, epsilon: float, seed: int) -> Given:
    """FedKT-L2 (Li, He, Song, IJCAI 2021): a noisy vote of each hospital's teachers, then hospitals vote.

    Untuned: one partition, teachers and queries that its paper does not prescribe; at ε 1 noise drowns them.
    A hospital's records are split among teachers, which label public inputs by a noisy vote of their own;
    another record changes one teacher. Hospitals' students then vote without noise: each record is in one.
    """
    _need_classes(task, "teachers vote for")
    rng, features = np.random.default_rng(seed), Features(task)
    rows, pool, test = features(task.inputs), features(task.pool), features(task.test)
    asked = rng.permutation(len(pool))[:_LABELS]
    row = least_noise(epsilon, task.delta, count=len(asked))
    sigma, totals = row.noise / math.sqrt(2), np.zeros((len(pool), task.num_classes))  # a vote moved: √2
    for own in range(task.parties):
        votes = np.zeros((len(asked), task.num_classes))
        for part in np.array_split(rng.permutation(np.flatnonzero(task.owners == own)), _TEACHERS):
            told = learn(task, rows[part], task.labels[part], pool[asked]).argmax(axis=1)
            votes[np.arange(len(asked)), told] += 1
        labels = (votes + rng.normal(0, sigma, votes.shape)).argmax(axis=1)
        student = learn(task, pool[asked], labels, pool).argmax(axis=1)
        totals[np.arange(len(pool)), student] += 1
    found = learn(task, pool, totals.argmax(axis=1), test)
    return found, Ledger(epsilon=epsilon, delta=task.delta, rows=(row,))
