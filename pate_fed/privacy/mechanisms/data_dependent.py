"""Data-dependent RDP and ε of a mechanism's releases, for those who may see votes; and ε sanitised, for all.

The ε is never printed without "do not publish", never decides when a run stops, and stands in no ledger. What
may be published is the data-independent ε or the sanitised one: under the Gaussian noise with smooth
sensitivity of P18 (GNSS; arXiv 1802.08908, appendix B), which pays for the release of the sum of all queries'
RDP bounds at one order. The bounds are Theorem 6, so the statement is about the actual votes (one-sided).
Only the argmax is data-dependent there: the exact worst case of the threshold bit is as good as its
data-dependent value, and needs no noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.errors import InputError
from pate_fed.privacy.bounds.conversion import ConvertedEpsilon, confident_rho, overhead, round_up, to_epsilon
from pate_fed.privacy.bounds.cost import Cost, epsilon_of
from pate_fed.privacy.bounds.gnmax import (
    exact_bit_rdp,
    exact_bit_worst_case,
    gnmax_rdp_total,
    lnmax_log_q,
    lnmax_rdp_from_log_q,
)
from pate_fed.privacy.bounds.smooth import (
    VoteMoves,
    gnmax_sensitivity,
    gnss_rdp,
    smooth_sensitivity,
    summed_curve,
)
from pate_fed.privacy.checks import (
    DEFAULT_ORDERS,
    Floats,
    check_delta,
    check_histograms,
    check_orders,
    is_number,
)
from pate_fed.privacy.mechanisms.events import Mechanism
from pate_fed.privacy.mechanisms.noise import NoiseSource
from pate_fed.privacy.mechanisms.noisy_max import ConfidentGNMax, GNMax, InteractiveGNMax, LNMax
from pate_fed.privacy.protection import RECORD, Protection

# The noise is drawn in steps of 2^-24 standard units and the sum rounded up to a grid that is far wider, so
# that it tells no step. What the steps cost against smooth noise is below the slack that is charged for it.
_STEPS = 2**24
_DIGITS = 3
_SLACK = 1e-3

# The best order of a large spend is below 2.
_ORDERS: Floats = np.concatenate((np.arange(1.05, 2.0, 0.05), DEFAULT_ORDERS))


def data_dependent_rdp(
    mechanism: Mechanism,
    totals: ArrayLike,
    answered: ArrayLike,
    *,
    orders: ArrayLike = DEFAULT_ORDERS,
    checked: ArrayLike | None = None,
    protection: Protection = RECORD,
) -> Floats:
    """Data-dependent RDP of what the mechanism released, with the tails of the integer noise that ran.

    Each answered query pays Theorem 6 (P18) with ties as losses, or for LNMax the moments accountant's
    Theorem 3 (P17): the forward direction, from the actual votes. With a threshold each asked query pays the
    exact divergence of its answered bit too (both directions). `checked` is what the check compared with the
    threshold, the largest total where it is None; Interactive-GNMax needs it (largest total less the
    student's expected votes).

    Shapes: `totals` (asked, classes), `answered` bool (asked,), `checked` int (asked,) to (orders,).

    Raises:
        InputError: shapes that differ, totals that are no counts, parameters out of range, or a mechanism
            whose exact totals nobody has.
    """
    votes, grid = check_histograms(totals), check_orders(orders)
    voted = votes[check_answered(answered, len(votes))]
    if isinstance(mechanism, LNMax):
        log_q = lnmax_log_q(voted, mechanism.scale, discrete=True)
        laplace: Floats = lnmax_rdp_from_log_q(log_q, protection.l1 / mechanism.scale, grid).sum(axis=0)
        return laplace
    if isinstance(mechanism, GNMax):
        return gnmax_rdp_total(voted, mechanism.sigma, grid, discrete=True, protection=protection)
    if not isinstance(mechanism, ConfidentGNMax):
        raise InputError(f"{mechanism.name}: no exact totals, so no data-dependent ε is known")
    if isinstance(mechanism, InteractiveGNMax) and checked is None:
        raise InputError("interactive-gnmax: `checked`, what its check looked at, is needed")
    top = votes.max(axis=1) if checked is None else np.asarray(checked)
    if top.shape != (len(votes),):
        raise InputError(f"checked has the shape {top.shape}: one number for each query is meant")
    curve = gnmax_rdp_total(voted, mechanism.sigma2, grid, discrete=True, protection=protection)
    bits = exact_bit_rdp(
        top, mechanism.threshold, mechanism.sigma1, grid, discrete=True, protection=protection
    )
    # queries compose: their RDP adds up at each order (Mironov 2017, Proposition 1)
    curve += bits.sum(axis=0)
    return curve


def data_dependent_epsilon_do_not_publish(
    mechanism: Mechanism,
    totals: ArrayLike,
    answered: ArrayLike,
    *,
    delta: float,
    checked: ArrayLike | None = None,
    protection: Protection = RECORD,
) -> ConvertedEpsilon:
    """ε at δ from `data_dependent_rdp`, never above the data-independent one.

    It reveals something about the votes: do not publish it.

    Shapes: `totals` (asked, classes), `answered` bool (asked,), `checked` int (asked,).
    """
    curve = data_dependent_rdp(
        mechanism, totals, answered, orders=_ORDERS, checked=checked, protection=protection
    )
    found = to_epsilon(_ORDERS, curve, delta)
    mask = np.asarray(answered)
    # Each query's curve is capped at its own worst case, but all at one order; the ledger's best is another.
    spent = mechanism.cost(len(mask), int(mask.sum()), protection)
    return replace(found, epsilon=min(found.epsilon, epsilon_of(spent, delta)))


def check_answered(answered: ArrayLike, asked: int) -> NDArray[np.bool_]:
    """The answered bits as bool (asked,); InputError: another type or shape."""
    mask = np.asarray(answered)
    if mask.dtype != np.bool_ or mask.shape != (asked,):
        raise InputError(f"answered is {mask.dtype} {mask.shape}: one truth value for each query is meant")
    return mask


@dataclass(frozen=True, slots=True, kw_only=True)
class SanitiseSettings:
    """Parameters of the sanitised release: public, and to be fixed before the first vote is seen.

    `order` is the one Rényi order, `beta` the smoothness, `sigma_ss` the noise in units of the smooth
    sensitivity.

    Raises:
        InputError: a combination that `gnss_rdp` does not know.
    """

    order: float
    beta: float
    sigma_ss: float

    def __post_init__(self) -> None:
        gnss_rdp(self.order, beta=self.beta, sigma_ss=self.sigma_ss)

    def cost(self) -> Cost:
        """Cost of the one release: its RDP at `order`, which also bounds every order below."""
        rdp = gnss_rdp(self.order, beta=self.beta, sigma_ss=self.sigma_ss) + _SLACK
        return Cost(flat=Fraction(round_up(rdp)), most_order=Fraction(self.order))

    @classmethod
    def at_order(cls, order: float) -> SanitiseSettings:
        """β = 0.25/order, and σ_ss such that the difference of the means costs 0.35 nats."""
        if not is_number(order) or not 1 < order < math.inf:
            raise InputError(f"order={order!r}: must be finite and above 1")
        beta = 0.25 / order
        u = math.exp(-2 * beta)  # the worst ratio of the two variances
        v = 1 + order * math.expm1(-2 * beta)
        return cls(order=order, beta=beta, sigma_ss=math.sqrt(order * u / (2 * 0.35 * v)))

    @classmethod
    def for_study(
        cls,
        *,
        asked: int,
        answered: int,
        sigma1: float | None,
        sigma2: float,
        num_classes: int,
        delta: float,
        order: float | None = None,
    ) -> SanitiseSettings:
        """Settings from a study's terms alone: `asked` and `answered` are its caps, not what happened.

        `order` is the budget's, where there is one; without it the best one if votes agree well enough to
        halve the cost, lowered until conditions C5 and C6 hold.

        Raises:
            InputError: terms out of range, or no order at which the conditions hold.
        """
        if order is not None:
            return cls.at_order(order)
        rho = confident_rho(asked, answered, sigma1=sigma1, sigma2=sigma2)
        curve = DEFAULT_ORDERS * rho / 2 + overhead(DEFAULT_ORDERS, check_delta(delta))
        order = float(DEFAULT_ORDERS[int(np.argmin(curve))])
        while not all(gnmax_sensitivity(float(sigma2), num_classes, order).conditions()):
            order = round(0.9 * order, 2)
            if order < 1.5:
                raise InputError(
                    f"sigma2={sigma2:g} with {num_classes} classes: conditions C5 and C6 hold at no order, "
                    "so no data-dependent ε may be published; report the data-independent one"
                )
        return cls.at_order(order)


@dataclass(frozen=True, slots=True, kw_only=True)
class SanitisedEpsilon:
    """A data-dependent ε that may be published with all fields but the last two.

    `epsilon` is drawn around `mean_do_not_publish`, below it as often as above: a reading, and no bound.
    `cost` is the RDP that the release itself added at `order`. `mean_do_not_publish` is ε without the noise
    and `deviation_do_not_publish` the noise's standard deviation; both are functions of the votes.
    """

    epsilon: float
    delta: float
    order: float
    beta: float
    sigma_ss: float
    cost: float
    mean_do_not_publish: float = field(repr=False)
    deviation_do_not_publish: float = field(repr=False)


def check_sanitisable(
    settings: SanitiseSettings, *, sigma2: float, num_classes: int, protection: Protection = RECORD
) -> None:
    """Refuse what cannot be sanitised; to be asked when a study is configured.

    Raises:
        InputError: conditions C5 or C6 fail, σ2 is below 2, or a unit moves more than one vote.
    """
    if protection.votes_moved != 1 or protection.votes_vanish:
        raise InputError("smooth sensitivity is derived for one moved vote only: nothing can be sanitised")
    if not sigma2 >= 2:
        raise InputError(f"sigma2={sigma2!r}: below 2 votes the tails of integer noise are not bounded here")
    c5, c6 = gnmax_sensitivity(float(sigma2), num_classes, float(settings.order)).conditions()
    if not (c5 and c6):
        failed = " and ".join(name for name, holds in (("C5", c5), ("C6", c6)) if not holds)
        raise InputError(
            f"sigma2={sigma2:g}, {num_classes} classes, order {settings.order:g}: condition {failed} of P18, "
            "appendix B fails, so no data-dependent ε may be published; more noise (sigma2), or with a "
            "budget a larger one or none, lets them hold"
        )


def sanitised_epsilon(
    mechanism: GNMax | ConfidentGNMax,
    totals: ArrayLike,
    answered: ArrayLike,
    *,
    settings: SanitiseSettings,
    delta: float,
    noise: NoiseSource,
    protection: Protection = RECORD,
) -> SanitisedEpsilon:
    """Release a data-dependent ε of a GNMax or Confident-GNMax run, once.

    f(D) is the sum over answered queries of min(Theorem 6, α/σ2²) with the tails of integer noise, ties as
    losses. Every call draws fresh noise and spends again, so call it once in a run.

    Shapes: `totals` (asked, classes), `answered` bool (asked,).

    Raises:
        InputError: as `check_sanitisable`, or shapes and parameters that do not fit.
    """
    votes = check_histograms(totals)
    mask = check_answered(answered, len(votes))
    num_teachers = mechanism.num_teachers
    if votes.size and votes.max() > num_teachers:
        raise InputError(f"a class has more votes than the {num_teachers} teachers")
    delta = check_delta(delta)
    sigma2 = mechanism.sigma if isinstance(mechanism, GNMax) else mechanism.sigma2
    check_sanitisable(settings, sigma2=sigma2, num_classes=votes.shape[1], protection=protection)
    public = public_part(mechanism, len(votes), settings=settings, delta=delta)
    private, smooth = _private_part(votes[mask], settings, sigma2, num_teachers)
    drawn = int(noise.discrete_gaussian((1,), sigma=settings.sigma_ss * _STEPS)[0]) / _STEPS
    # Rounded to a coarse grid: the last digits of a float could tell the votes.
    released = math.ceil((private + smooth * drawn) * 10**_DIGITS) / 10**_DIGITS
    return SanitisedEpsilon(
        epsilon=round_up(max(released, 0.0) + public),
        delta=delta,
        order=settings.order,
        beta=settings.beta,
        sigma_ss=settings.sigma_ss,
        cost=float(settings.cost().flat),
        mean_do_not_publish=max(private + public, 0.0),
        deviation_do_not_publish=smooth * settings.sigma_ss,
    )


def public_part(
    mechanism: GNMax | ConfidentGNMax, asked: int, *, settings: SanitiseSettings, delta: float
) -> float:
    """The part of a sanitised ε that no vote moves, below which none is ever released.

    What the release itself costs, the checks of `asked` queries, and the conversion from the one order.
    """
    public = float(settings.cost().flat)
    if isinstance(mechanism, ConfidentGNMax):
        teachers, check = mechanism.num_teachers, (mechanism.threshold, mechanism.sigma1)
        bit = exact_bit_worst_case(teachers, *check, [settings.order], lowest=-teachers)
        # A worst case over all votes, so it tells nothing and takes no noise.
        public += asked * float(bit[0])
    return public + float(overhead(np.array([settings.order]), delta)[0])


def _private_part(
    votes: NDArray[np.int64], settings: SanitiseSettings, sigma2: float, num_teachers: int
) -> tuple[float, float]:
    """Σ b(q) over the answered queries, and its smooth sensitivity."""
    if not len(votes):
        return 0.0, 0.0
    pieces = gnmax_sensitivity(float(sigma2), votes.shape[1], float(settings.order))
    moves = VoteMoves(votes, sigma=sigma2, margin=1)
    log_q = moves.log_q(np.zeros(len(votes), dtype=np.int64), moves.every)
    local = summed_curve(moves, pieces, np.ones(len(votes)), num_teachers)
    return float(pieces.bound(log_q).sum()), smooth_sensitivity(local, settings.beta)
