"""ε and δ of whole studies by optimal control, from noise and caps: what `capped_epsilon` is tried on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial

from pate_fed.privacy.bounds.control import (
    _SHARES,
    _STARTS,
    CappedOutcome,
    _coarsest_first,
    _variance,
    capped_epsilon,
)
from pate_fed.privacy.bounds.conversion import gaussian_delta
from pate_fed.privacy.bounds.hockey_stick import argmax_rdp, bit_rdp
from pate_fed.privacy.checks import check_count, check_epsilon, check_sigma


def capped_delta(outcomes: Sequence[CappedOutcome], epsilon: float) -> float:
    """δ at ε of the same sequences as `capped_epsilon`; at most 1.

    Raises:
        InputError: ε out of range.
    """
    epsilon, parts = check_epsilon(epsilon), _coarsest_first(outcomes)
    if not parts:
        return 0.0
    # About what comes out, by the limit of many outcomes; any positive slack is valid.
    about = gaussian_delta(
        math.sqrt(2 / math.pi * sum(each.times * each.variance for each in parts)), epsilon
    )
    found = [1.0]
    for first in _STARTS:
        for share in _SHARES:
            slack = max(share * about, 1e-300)
            variance, _ = _variance(parts, first=first, slack=slack)
            if math.isfinite(variance):
                found.append(gaussian_delta(math.sqrt(variance), epsilon) + slack)
    return min(found)


def _study(sigma1: float | None, sigma2: float, max_queries: int, max_labels: int) -> list[CappedOutcome]:
    """The bits and the winners of a study, one vote moved.

    Raises:
        InputError: noise or caps out of range.
    """
    sigma2, queries = check_sigma("sigma2", sigma2), check_count("max_queries", max_queries)
    labels = min(queries, check_count("max_labels", max_labels))
    winner = CappedOutcome(rdp=_argmax(sigma2), variance=2 / (sigma2 * sigma2), times=labels)
    if sigma1 is None:
        return [winner]
    sigma1 = check_sigma("sigma1", sigma1)
    return [winner, CappedOutcome(rdp=_bit(sigma1), variance=1 / (sigma1 * sigma1), times=queries)]


@lru_cache(maxsize=256)
def _argmax(sigma: float) -> Callable[[float], float]:
    return partial(argmax_rdp, sigma)


@lru_cache(maxsize=256)
def _bit(sigma: float) -> Callable[[float], float]:
    return partial(bit_rdp, sigma)


@lru_cache(maxsize=1024)
def control_epsilon(
    *, sigma1: float | None, sigma2: float, max_queries: int, max_labels: int, delta: float
) -> float:
    """ε at δ of any adaptive sequence of threshold checks and noisy argmaxes under two caps; rounded up.

    At most `max_queries` checks with noise `sigma1` (None: no check, every query is answered) and at most
    `max_labels` answers with noise `sigma2`. Noise is discrete Gaussian, ties are broken uniformly; any
    number of classes. One vote of every query may move (replace-one). It is for those who see outcomes, not
    for those who see noisy totals. The first call for a σ2 takes seconds.

    Raises:
        InputError: noise, caps or δ out of range.
    """
    return capped_epsilon(_study(sigma1, sigma2, max_queries, max_labels), delta)


def control_delta(
    *, sigma1: float | None, sigma2: float, max_queries: int, max_labels: int, epsilon: float
) -> float:
    """δ at ε of the same sequences as `control_epsilon`; at most 1.

    Raises:
        InputError: noise, caps or ε out of range.
    """
    return capped_delta(_study(sigma1, sigma2, max_queries, max_labels), epsilon)
