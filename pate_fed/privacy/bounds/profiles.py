"""ε of a whole study by privacy loss distributions (PLD), composed by Google's dp-accounting.

A kind of outcome is stood for by the pair of laws that its noise gives where one unit's votes change: its
hockey-stick divergences are at least those of every outcome, at every ε, so it dominates, and dominating
pairs compose, also adaptively (Zhu, Dong and Wang 2022, arXiv 2106.08567, Theorem 10). `docs/proofs/
profiles.md` has the argument. One query loses nothing by it; a composition of labels gives 2/π away, which
`pate_fed.privacy.bounds.control` keeps. Figures are floats of a library, a second opinion beside what is
stated, and not certified in their last digits.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from pate_fed.errors import InputError
from pate_fed.privacy.bounds.cost import Cost, OutcomeCost
from pate_fed.privacy.bounds.noise_law import GAUSSIAN, NoiseLaw, log_mass_gaussian_difference
from pate_fed.privacy.checks import Floats, check_delta

_FINEST, _COARSEST = 2e-6, 1e-3  # nats of a cell of the losses' grid
_CELLS = 20  # of it in an outcome's own deviation
_WIDEST = 20_000.0  # votes of noise beyond which a table takes long
_LONGEST = 2_000_000  # cells
_REACH = {GAUSSIAN: 9.0, "laplace": 40.0}  # scales that hold all but 1e-17 of the noise


@lru_cache(maxsize=256)
def pld_epsilon(cost: Cost, delta: float) -> float:
    """ε at δ of at most `cost`, each outcome as often as it says at most, with the integer noise that runs.

    In any order, each chosen from all earlier outcomes. It holds for those who see labels, and where no check
    is in `cost` for those who see noisy totals.

    Raises:
        InputError: δ out of range, noise too wide for a table, parts that are no outcomes, or several votes
            of one unit, which may move from and to several classes.
    """
    delta = check_delta(delta)
    if cost != Cost(outcomes=cost.outcomes):
        raise InputError("only outcomes have a privacy loss distribution here; the rest is known by its RDP")
    cell = _cell([outcome.variance for outcome, _ in cost.outcomes])
    # Chances within e^(±2τ) of the stated noise's own, on both sides.
    near = float(sum((2 * times * outcome.distance for outcome, times in cost.outcomes), start=0))
    composed = _composed([(_outcome_pmf(outcome, cell), times) for outcome, times in cost.outcomes])
    return 0.0 if composed is None else _epsilon(composed, delta * math.exp(-near)) + 2 * near


@lru_cache(maxsize=256)
def totals_pld_epsilon(cost: Cost, delta: float) -> float:
    """ε at δ of the noisy totals behind the outcomes of `cost`, were their noise continuous Gaussian.

    Raises:
        InputError: δ out of range, or other noise.
    """
    delta = check_delta(delta)
    if any(outcome.kind != GAUSSIAN for outcome, _ in cost.outcomes) or cost.as_totals != Cost(
        rho=cost.as_totals.rho
    ):
        raise InputError("only totals with Gaussian noise have this privacy loss distribution")
    library = _library()[1]
    cell = _cell([outcome.variance for outcome, _ in cost.outcomes])
    parts = [
        (library.from_gaussian_mechanism(outcome.variance**-0.5, value_discretization_interval=cell), times)
        for outcome, times in cost.outcomes
    ]
    composed = _composed(parts)
    return 0.0 if composed is None else _epsilon(composed, delta)


def _cell(variances: list[float]) -> float:
    """Cells of the grid, in nats: some in the deviation of the finest outcome's loss."""
    least = min(variances, default=1.0)
    return min(max(math.sqrt(least) / _CELLS, _FINEST), _COARSEST)


def _composed(parts: list[tuple[Any, int]]) -> Any:
    composed = None
    for one, times in parts:
        if times:
            several = one.self_compose(times)
            composed = several if composed is None else composed.compose(several)
    return composed


def _epsilon(composed: Any, delta: float) -> float:
    # A little up: the sums are Fourier transforms of a library.
    return float(composed.get_epsilon_for_delta(delta)) * (1 + 1e-9)


def _atoms(outcome: OutcomeCost) -> tuple[Floats, Floats]:
    """The losses of the pair that dominates an outcome, rising, and their chances.

    Raises:
        InputError: see `pld_epsilon`.
    """
    check, k = outcome.of == "check", outcome.votes
    if max(outcome.scale, k) > _WIDEST:
        raise InputError(f"noise of {outcome.scale:g} votes: the table of its losses would be too long")
    if outcome.of == "sums":
        raise InputError("sums of features: noise on many entries is no table of one; its exact ε is stated")
    if k > 1 and not check:
        raise InputError("several votes of one unit may move from and to several classes: RDP bounds these")
    law, reach = NoiseLaw(outcome.kind, outcome.scale), math.ceil(_REACH[outcome.kind] * outcome.scale)
    if outcome.of in ("argmax", "counts"):  # one total loses what the other gains
        if outcome.kind == GAUSSIAN:
            difference = np.arange(-2 * reach - 2, 2 * reach + 1)
            chances = np.exp(log_mass_gaussian_difference(difference, outcome.scale))
            return (difference + 1) / outcome.scale**2, chances
        once = 0.5 * (1 + math.tanh(0.5 / outcome.scale))  # Pr[Z >= 0]
        chances = np.array([(1 - once) ** 2, 2 * once * (1 - once), once * once])
        return np.array([-2.0, 0.0, 2.0]) / outcome.scale, chances
    x = np.arange(-reach - k, reach + 1)
    chances = law.masses(reach + k)[: len(x)]
    if outcome.kind == GAUSSIAN:
        return k * (2 * x + k) / (2 * outcome.scale**2), chances
    return (np.abs(x + k) - np.abs(x)) / outcome.scale, chances


def _outcome_pmf(outcome: OutcomeCost, cell: float) -> Any:
    """The pair's losses on a grid of width `cell`, never below what they are (arXiv 2207.04380).

    A loss between two points is shared out so that the chances under both laws stay: the hockey-stick
    divergences are then the chords between the grid's.
    """
    pmf, library = _library()
    if outcome.of == "sums":  # near to continuous noise that was rounded (docs/proofs/class-sums.md)
        return library.from_gaussian_mechanism(outcome.scale, value_discretization_interval=cell)
    loss, chance = _atoms(outcome)
    if loss.max() > _LONGEST * cell:
        raise InputError(f"noise of {outcome.scale:g} votes: its losses are too large for a table")
    below = np.floor(loss / cell).astype(np.int64)
    rest = loss - below * cell
    # p = low + high and p e^-loss = low e^-(grid) + high e^-(grid + cell)
    # of a loss between two points, the share that goes up
    high = chance * np.clip(-np.expm1(-rest) / -math.expm1(-cell), 0.0, 1.0)
    first = int(below.min())
    grid = np.zeros(int(below.max()) - first + 2)
    np.add.at(grid, below - first, chance - high)
    np.add.at(grid, below - first + 1, high)
    beyond = max(0.0, 1 - float(grid.sum())) + 1e-18  # what no cell holds counts as an infinite loss
    losses = {first + place: float(mass) for place, mass in enumerate(grid) if mass > 0}
    made = pmf.create_pmf(losses, cell, beyond, pessimistic_estimate=True)
    return library.PrivacyLossDistribution(made)


def _library() -> tuple[Any, Any]:
    """Modules of dp-accounting, imported when they are needed.

    Raises:
        InputError: it is not installed.
    """
    try:
        from dp_accounting.pld import pld_pmf, privacy_loss_distribution
    except ImportError as error:
        raise InputError(
            "privacy loss distributions need dp-accounting (pip install dp-accounting)"
        ) from error
    return pld_pmf, privacy_loss_distribution
