"""Votes to plan with, before any are cast: assumed or past, and how often noise lets the right class win."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.disk import load_arrays
from pate_fed.errors import InputError
from pate_fed.privacy.bounds.noise_law import ndtr
from pate_fed.privacy.checks import Floats, check_count, check_histograms, is_number

# Queries looked at when planning: the spread of a predicted share is then below 2 %.
_SAMPLE = 1000
_STEP = 0.25  # of a sum over one total's noise, in deviations
_NODES: Floats = _STEP * np.arange(-18.0, 19.0)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class VoteModel:
    """Totals as shares of all teachers, and which class is right.

    `shares` (queries, classes) sum to at most 1, `right` (queries,). `origin` says where they come from.
    """

    shares: Floats
    right: NDArray[np.int64]
    origin: str

    def answered(
        self, threshold: float, sigma1: float, num_teachers: int, *, consensus: float = 1.0
    ) -> Floats:
        """The chance of each query to pass the check, (queries,); arguments in votes.

        With a `consensus` below 1 every winner holds that part of its votes only.
        """
        top = consensus * num_teachers * self.shares.max(axis=1)
        chance: Floats = ndtr((top - threshold) / sigma1)
        return chance

    def passing(self, threshold: float, sigma: float, num_teachers: int, *, consensus: float = 1.0) -> Floats:
        """The chance of each query that a noisy total reaches the threshold, (queries,).

        For noise that the hospitals add, where the check looks at the noisy totals: 1 - Π Φ((T - n_j)/σ).
        """
        votes = consensus * num_teachers * self.shares
        # noises of different classes are independent
        passed: Floats = 1 - ndtr((threshold - votes) / sigma).prod(axis=1)
        return passed

    def reached(
        self, thresholds: Sequence[float], sigma: float, num_teachers: int
    ) -> list[tuple[Floats, Floats]]:
        """`passing` of each threshold, and the chance that the right class wins so. Shapes: (queries,) both.

        The latter is the integral of the right class's noise over what reaches T.
        """
        own = num_teachers * np.take_along_axis(self.shares, self.right[:, None], axis=1)[:, 0]
        density = _STEP * np.exp(-_NODES * _NODES / 2) / math.sqrt(2 * math.pi)
        wins = density[:, None] * self._wins(sigma, num_teachers, _NODES)
        totals = own + sigma * _NODES[:, None]
        found = []
        for threshold in thresholds:
            passed = self.passing(threshold, sigma, num_teachers)
            found.append((passed, np.minimum((wins * (totals >= threshold)).sum(axis=0), passed)))
        return found

    def right_chance(self, sigma2: float, num_teachers: int) -> Floats:
        """The chance of each query that the right class has the largest noisy total, (queries,).

        E over its own noise z of Π Φ(z + gap/σ2), by Gauss-Hermite quadrature; continuous noise.
        """
        nodes, weights = _quadrature()
        chance: Floats = (weights[:, None] * self._wins(sigma2, num_teachers, nodes)).sum(axis=0)
        return chance / math.sqrt(2 * math.pi)

    def _wins(self, sigma: float, num_teachers: int, nodes: Floats) -> Floats:
        """The chance that the right class wins by its own noise z, in deviations: (nodes, queries)."""
        leads, places = _leads(self)
        chances = ndtr(leads * (num_teachers / sigma) + nodes[:, None])
        return np.stack([chance[places].prod(axis=0) for chance in chances])


def mean_right(right: NDArray[Any], labels: NDArray[np.int64], *, alike: bool) -> float:
    """The mean of how far inputs (n,) are told right; with `alike` of its means over each class's."""
    return float(np.mean([right[labels == each].mean() for each in np.unique(labels)] if alike else right))


@lru_cache(maxsize=16)
def _leads(model: VoteModel) -> tuple[Floats, NDArray[np.int64]]:
    """The shares by which right classes lead, each once, and their places: (leads,), (classes - 1, queries).

    Totals are whole numbers of few teachers, so there are few leads.
    """
    leads = np.take_along_axis(model.shares, model.right[:, None], axis=1) - model.shares
    others = leads[np.arange(leads.shape[1]) != model.right[:, None]].reshape(len(leads), -1).T
    found, places = np.unique(others, return_inverse=True)
    return found, places.reshape(others.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The public inputs of a plan: at most `max_queries` are asked about, and how teachers vote on them.

    `votes` is an assumed agreement (see `assumed_votes`) or the votes of a past study (`past_votes`).
    """

    votes: float | VoteModel = 0.85
    max_queries: int = 10_000

    def __post_init__(self) -> None:
        check_count("max_queries", self.max_queries, least=1)

    def model(self, *, num_classes: int, num_teachers: int) -> VoteModel:
        """The votes that are planned for.

        Raises:
            InputError: an agreement out of range, or votes with another number of classes.
        """
        votes = self.votes
        model = votes if isinstance(votes, VoteModel) else assumed_votes(votes, num_classes, num_teachers)
        if model.shares.shape[1] != num_classes:
            raise InputError(f"the votes have {model.shares.shape[1]} classes, the study has {num_classes}")
        return model


@cache
def _quadrature() -> tuple[Floats, Floats]:
    """Nodes and weights of Gauss-Hermite quadrature under e^(-x²/2)."""
    return np.polynomial.hermite_e.hermegauss(32)


@lru_cache(maxsize=16)
def assumed_votes(agreement: float, num_classes: int, num_teachers: int) -> VoteModel:
    """Votes of teachers of whom a share of `agreement` votes for the right class, on average over queries.

    Per query the share that is right is Beta(a, 1 - a) with mean a: most queries are easy, some are lost. The
    wrong votes crowd on few classes (Dirichlet, 0.2). On Fashion-MNIST (a = 0.753) this predicts a plurality
    that is right 84 % of the time, where 82 % were measured. The sample is fixed, so plans repeat.

    Raises:
        InputError: an agreement not between 1/classes and 1.
    """
    check_count("num_classes", num_classes, least=2)
    check_count("num_teachers", num_teachers, least=1)
    if not is_number(agreement) or not 1 / num_classes < agreement < 1:
        raise InputError(
            f"agreement={agreement!r}: the average share of teachers that vote for the right class, above "
            f"1/{num_classes} and below 1, such as 0.85"
        )
    rng = np.random.default_rng(20180219)
    correct = rng.beta(agreement, 1 - agreement, size=(_SAMPLE, 1))  # mean a; near 0 and 1 most
    wrong = (1 - correct) * rng.dirichlet([0.2] * (num_classes - 1), size=_SAMPLE)
    chances = np.concatenate((correct, wrong), axis=1)
    votes = rng.multinomial(num_teachers, chances / chances.sum(axis=1, keepdims=True))
    origin = f"an assumed agreement of {agreement:g}, the share of teachers that are right on average"
    return VoteModel(votes / num_teachers, np.zeros(_SAMPLE, dtype=np.int64), origin)


def past_votes(totals: ArrayLike, labels: ArrayLike | None = None) -> VoteModel:
    """Votes of another, past study; never of the one that is planned, whose votes are private.

    Shapes: `totals` (queries, classes); `labels` (queries,) with the right classes, the plurality where none
    are given. The shares carry over to another number of teachers.

    Raises:
        InputError: totals that are no counts, a query without votes, or labels that do not fit.
    """
    votes = check_histograms(totals)
    if not len(votes) or not votes.any(axis=1).all():
        raise InputError("past totals must hold at least one query, and votes for each")
    right, truth = votes.argmax(axis=1), "right means equal to the plurality of the teachers"
    if labels is not None:
        given = np.asarray(labels)
        if given.dtype.kind not in "iu" or given.shape != right.shape:
            raise InputError(f"labels are {given.dtype} {given.shape}: one class for each query is meant")
        if not 0 <= given.min() <= given.max() < votes.shape[1]:
            raise InputError(f"labels must be classes from 0 to {votes.shape[1] - 1}")
        right, truth = given.astype(np.int64), "right means equal to the given label"
    step = max(1, len(votes) // _SAMPLE)
    shares = votes / votes.sum(axis=1).max()
    origin = (
        f"past totals of {len(votes)} queries ({truth}; were they the planned study's own, the plan would "
        "reveal something about its private votes)"
    )
    return VoteModel(shares[::step], right[::step], origin)


def past_votes_from_file(path: Path) -> VoteModel:
    """`past_votes` from a .npy file of totals, or a .npz file with `totals` and perhaps `labels`.

    Raises:
        InputError: no such file, another format, or totals that are no counts.
    """
    if not path.is_file():
        raise InputError(f"{path}: there is no file of past totals (.npy, or .npz with totals and labels)")
    try:
        loaded = load_arrays(path)
        return past_votes(loaded["" if "" in loaded else "totals"], loaded.get("labels"))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except (KeyError, ValueError, OSError) as error:
        raise InputError(f"{path}: not a .npy of totals, nor a .npz with an array named totals") from error
