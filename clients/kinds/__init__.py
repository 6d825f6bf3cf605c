"""How a hospital answers, a file a kind: what it checks, prepares and says about its own records.

`base.py` is what every kind has; agreement, policy, journal, masks and log stand in `clients/` and ask it.
"""

from __future__ import annotations

from pathlib import Path

from clients.kinds.base import HospitalSide
from clients.kinds.labels import LabelSide
from clients.kinds.own import OwnSide
from clients.kinds.sums import RoundSide, ScoredSide, SumSide
from clients.kinds.votes import VoteSide
from clients.log import HospitalLog
from clients.site import Site
from pate_fed.kinds.terms import Terms

__all__ = ["HospitalSide", "check_file", "side_of"]

_SIDES: dict[str, type[HospitalSide]] = {
    "votes": VoteSide,
    "class-sums": SumSide,
    "sums-in-rounds": RoundSide,
    "sums-and-scores": ScoredSide,
    "private-labels": LabelSide,
    "own": OwnSide,
}


def side_of(site: Site, terms: Terms, log: HospitalLog) -> HospitalSide:
    """The hospital's work for what the terms ask."""
    return _SIDES[terms.asks.kind](site, terms, log)


def check_file(path: Path, terms: Terms, *, decimal: str | None) -> str:
    """Read a hospital's records as these terms want them (`HospitalSide.check_file`)."""
    return _SIDES[terms.asks.kind].check_file(path, terms, decimal=decimal)
