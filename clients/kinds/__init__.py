"""How a hospital answers, a file a kind: what it checks, prepares and says about its own records.

`base.py` is what every kind has; agreement, policy, journal, masks and log stand in `clients/` and ask it.
"""

from __future__ import annotations

from clients.kinds.base import HospitalSide
from clients.kinds.own import OwnSide
from clients.kinds.sums import SumSide
from clients.kinds.votes import VoteSide
from clients.log import HospitalLog
from clients.site import Site
from pate_fed.kinds.terms import Terms

__all__ = ["HospitalSide", "side_of"]

_SIDES: dict[str, type[HospitalSide]] = {"votes": VoteSide, "class-sums": SumSide, "own": OwnSide}


def side_of(site: Site, terms: Terms, log: HospitalLog) -> HospitalSide:
    """The hospital's work for what the terms ask."""
    return _SIDES[terms.asks.kind](site, terms, log)
