"""What a study hides from its coordinator, and by what; reading it touches no data and imports nothing heavy.

Masks hide single votes, noise that the hospitals add hides the exact totals too. How many hospitals must be
in a sum, and how much noise each of them adds, follows from here, before any vote is seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pate_fed.errors import InputError
from pate_fed.privacy.protection import (
    LEAST_PARTIES,
    LEAST_SHARE_VARIANCE,
    Shares,
    masked_voters,
    usual_colluders,
)
from pate_fed.structure import check, setting

AT_COORDINATOR = "coordinator"
AT_HOSPITALS = "hospitals"

MOST_PARTIES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustModel:
    """With `secure_sum` the coordinator learns totals only; with noise at the hospitals only noisy ones.

    `colluders` is how many hospitals may tell the coordinator their own noise before the ε against it is
    passed; None: one in ten, at least one. It only counts where the hospitals add the noise.

    Raises:
        InputError: settings that do not go together.
    """

    secure_sum: bool = setting(
        False,
        "show the coordinator totals only; a hospital that lies can then spoil the student unseen",
        "--secure-sum",
    )
    noise_at: str = setting(
        AT_COORDINATOR,
        "who adds the noise (with --secure-sum)",
        "--noise-at",
        choices=(AT_COORDINATOR, AT_HOSPITALS),
    )
    colluders: int | None = setting(
        None,
        "hospitals that may tell the coordinator their own noise (default: one in ten)",
        unit="hospitals",
        low=0,
        high=MOST_PARTIES,
    )

    def __post_init__(self) -> None:
        check(self)
        if self.at_hospitals and not self.secure_sum:
            raise InputError(
                "--noise-at hospitals (secrecy.noise_at) without --secure-sum: noise at the hospitals "
                "protects only totals that come out of a secure summation; give --secure-sum too"
            )

    @property
    def at_hospitals(self) -> bool:
        """Whether the hospitals add the noise."""
        return self.noise_at == AT_HOSPITALS

    def least_voters(self, num_clients: int, quorum: float) -> int:
        """The quorum, two thirds where votes are masked; an InputError where all are too few for masks."""
        if not self.secure_sum:
            return math.ceil(quorum * num_clients)
        if num_clients < LEAST_PARTIES:
            raise InputError(
                f"--secure-sum with --num-clients {num_clients}: a sum over fewer than {LEAST_PARTIES} "
                "hospitals hides too little; give more hospitals or leave --secure-sum out"
            )
        return masked_voters(num_clients, quorum)

    def shares(self, num_clients: int, least_voters: int) -> Shares:
        """How many hospitals' noise is counted on, for a study of this size.

        Raises:
            InputError: so many colluders that no honest hospital might be left in a sum.
        """
        colluders = usual_colluders(num_clients) if self.colluders is None else self.colluders
        if colluders >= least_voters:
            raise InputError(
                f"secrecy.colluders is {colluders}: a sum may hold as few as {least_voters} of "
                f"{num_clients} hospitals, so at most {least_voters - 1} of them can be counted on"
            )
        return Shares(num_clients=num_clients, least_voters=least_voters, colluders=colluders)


def fit_noise(shares: Shares, given: float | None, usual: float | None) -> float:
    """The noise of a sum, in votes: as given, else the usual or what so many shares take at least.

    Raises:
        InputError: the given noise makes shares that are too small; the message says what would do.
    """
    if given is None:
        return max(usual or 0.0, shares.least_sigma)
    if given < shares.least_sigma:
        raise InputError(
            f"--sigma2 {given:g} with --noise-at hospitals: shared among {shares.honest} honest hospitals "
            f"the noise of each has a variance below {LEAST_SHARE_VARIANCE} votes squared, for which no "
            f"bound is known; give --sigma2 {shares.least_sigma:g} or more"
        )
    return given
