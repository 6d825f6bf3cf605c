"""Noisy max where the hospitals add the noise: the coordinator never sees an exact total.

Every hospital adds its own discrete Gaussian share before its votes are masked; what is unmasked is noisy
already. The threshold is then post-processing and saves nothing: every query whose noisy totals were unmasked
is paid for. Against the student and the public that is the outcome, which class wins or that none reaches the
threshold; against the coordinator it is the noisy totals.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from pate_fed.errors import InputError
from pate_fed.privacy.bounds.cost import Cost
from pate_fed.privacy.bounds.noise_law import GAUSSIAN
from pate_fed.privacy.checks import check_count, check_scale, is_number
from pate_fed.privacy.mechanisms.events import CoordinatorView, hospital_noise, sum_distance, sum_sigma
from pate_fed.privacy.mechanisms.noise import NoiseSource
from pate_fed.privacy.mechanisms.noisy_max import (
    NOT_ANSWERED,
    Bools,
    Ints,
    Voting,
    noisy_argmax,
    stop_after,
    winner_cost,
)
from pate_fed.privacy.protection import Protection

# Masked sums are taken modulo 2^32, so no honest noisy total can be larger.
_LARGEST = 2**31


def party_sigma(sigma: float, *, parties: int, colluders: int = 0) -> float:
    """Noise parameter of one hospital's share, in votes: of `parties` in a sum, the honest add up to `sigma`.

    Raises:
        InputError: counts that leave no honest survivor.
    """
    check_count("colluders", colluders)
    honest = check_count("parties", parties, least=1) - colluders
    if honest < 1:
        raise InputError(
            f"colluders={colluders}: none of {parties} hospitals is left whose noise nobody knows"
        )
    share = check_scale("sigma", sigma) / math.sqrt(honest)  # variances of independent noise add up
    # Rounded up, compared exactly: the shares must not add up to less than they should.
    while Fraction(share) ** 2 * honest < Fraction(sigma) ** 2:
        share = math.nextafter(share, math.inf)
    return share


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DistributedGNMax(Voting):
    """Argmax of totals to which the hospitals added noise, where the noisy maximum reaches `threshold`.

    `sigma_party` is the parameter of each hospital's discrete Gaussian share, `least_honest` the number of
    hospitals in a sum, less those that may collude, below which nothing is unmasked. `threshold` is None
    where every query is answered. All but the count in votes.
    """

    name: ClassVar[str] = "distributed-gnmax"
    threshold: float | None
    sigma_party: float
    least_honest: int

    def _check(self) -> None:
        check_count("least_honest", self.least_honest, least=1)
        hospital_noise(sigma_party=self.sigma_party, survivors=self.least_honest)
        if self.threshold is not None and not (is_number(self.threshold) and math.isfinite(self.threshold)):
            raise InputError(f"threshold={self.threshold!r}: must be a finite number of votes, or None")

    def cost_asked(self, protection: Protection) -> Cost:
        """Cost of one query's outcome, with the least noise that its totals may hold.

        The noise is a sum of discrete Gaussians, not quite one; the distance between the two is paid for.
        """
        least = hospital_noise(sigma_party=self.sigma_party, survivors=self.least_honest)
        totals = least.cost(1, protection, num_classes=self.num_classes)
        assert totals is not None
        return winner_cost(
            GAUSSIAN,
            sum_sigma(self.sigma_party, self.least_honest),
            protection,
            totals=totals.as_totals.rho,
            distance=sum_distance(self.sigma_party, self.least_honest),
        )

    def _votes(self, totals: ArrayLike, coordinator: CoordinatorView) -> Ints:
        """Noisy totals as int64 (queries, classes), which may be negative."""
        array = np.asarray(totals)
        if array.dtype.kind not in "iu" or array.ndim != 2 or array.shape[1] != self.num_classes:
            raise InputError(
                f"noisy totals are {array.dtype} {array.shape}; whole numbers (queries, {self.num_classes}) "
                "are meant"
            )
        if array.size and (array.max() > _LARGEST or array.min() < -_LARGEST):
            raise InputError("noisy totals hold a value that no sum of votes and noise can have")
        honest = (coordinator.survivors or 0) - coordinator.colluders
        if coordinator.sigma_party != self.sigma_party or honest < self.least_honest:
            raise InputError(
                f"the totals hold noise of {honest} hospitals with sigma_party={coordinator.sigma_party}; "
                f"{self.least_honest} with {self.sigma_party} are needed"
            )
        return array.astype(np.int64)

    def _answer(
        self, votes: Ints, top: Ints, noise: NoiseSource, max_answers: int | None
    ) -> tuple[Bools, Ints]:
        # All queries count as asked, since all were unmasked; `noise` breaks ties and adds nothing.
        least = -_LARGEST if self.threshold is None else math.ceil(self.threshold)
        passed = top >= least
        passed[stop_after(passed, max_answers) :] = False
        label = np.full(len(votes), NOT_ANSWERED, dtype=np.int64)
        label[passed] = noisy_argmax(votes[passed], np.zeros_like(votes[passed]), noise)
        return passed, label
