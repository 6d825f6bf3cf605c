"""What a mechanism of the user's own says of itself: its code, its parameters, and RDP of one query."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pate_fed.config.assumptions import MECHANISM, Assumption
from pate_fed.config.parts import PartIdentity
from pate_fed.errors import InputError
from pate_fed.structure import check, setting

Plain = bool | int | float | str
Parameters = tuple[tuple[str, Plain], ...]

LEAST_ORDERS = 30  # to an order of 1.3: fewer would be worth nothing
_NEAR = 1e-9
_STEPS = 10.24  # orders for each factor e of α - 1: every second one at which a total is evaluated

CLAIMED_ORDERS: tuple[float, ...] = tuple(1.0 + math.exp(step / _STEPS) for step in range(-40, 94))
"""Orders from 1.02 to 8,800 at which a mechanism says its RDP."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Claim:
    """A mechanism of the user's own, as terms and ledgers state it: its code, parameters and curve.

    `rdp` is RDP of one query in nats at the first of `CLAIMED_ORDERS`, for neighbours of which one `unit`
    sways `votes_moved` votes (`pate_fed.privacy.protection`).

    Raises:
        InputError: a curve with numbers that are not finite, not above 0, or that fall.
    """

    part: PartIdentity
    parameters: Parameters = setting((), most=200)  # noqa: RUF009
    unit: str = setting(most=20)
    adjacency: str = setting(most=30)
    votes_moved: int = setting(low=1, high=10**9)
    rdp: tuple[float, ...]

    def __post_init__(self) -> None:
        check(self)
        check_curve(self.rdp, f"aggregator {self.part.name!r}")

    def __repr__(self) -> str:
        """Name and parameters: the curve is long."""
        own = "".join(f", {name}={value!r}" for name, value in self.parameters)
        return f"Claim({self.part.name}{own}, RDP at {len(self.rdp)} orders)"

    @property
    def assumption(self) -> Assumption:
        """On whose word every ε rests then."""
        return Assumption(kind=MECHANISM, part=self.part)


def check_curve(rdp: tuple[float, ...], what: str) -> None:
    """Refuse what can be no curve of a mechanism that answers; `what` names it in errors.

    Raises:
        InputError: too few orders, numbers that are not finite and above 0, or that fall.
    """
    if not LEAST_ORDERS <= len(rdp) <= len(CLAIMED_ORDERS):
        raise InputError(
            f"{what}: claims an RDP at {len(rdp)} orders; {LEAST_ORDERS} to {len(CLAIMED_ORDERS)} from 1.02 "
            "on are meant, as nothing else bounds ε"
        )
    for order, value in zip(CLAIMED_ORDERS, rdp, strict=False):
        if not 0 < value < math.inf:
            raise InputError(
                f"{what}: claims an RDP of {value!r} at order {order:.4g}; what answers by votes costs "
                "something: nats above 0 are meant"
            )
    for before, after, order in zip(rdp, rdp[1:], CLAIMED_ORDERS[1:], strict=False):
        if after < before * (1 - _NEAR):
            raise InputError(f"{what}: its RDP falls at order {order:.4g}; Rényi divergence never does")
