"""What is protected: unit and adjacency, and from them the sensitivity of a query's totals."""

from __future__ import annotations

from dataclasses import dataclass

from pate_fed.errors import InputError
from pate_fed.privacy.checks import check_count

UNITS = ("record", "hospital")
ADJACENCIES = ("replace-one", "add-or-remove-one")


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """Neighbouring relation: the unit that two data sets differ in, and how many votes it moves.

    `votes_moved` is the number of teachers that one unit can sway: 1 for a record in one teacher's part, K
    for a hospital with K teachers, k for a patient present in k parts, K too for a record whose coming or
    going deals all of a hospital's records to its K teachers anew. Where it is above 1 Gaussian RDP grows
    by its square and pure ε by itself.

    The unit "label" is for features that are public: one record's label is replaced (label DP).

    Raises:
        InputError: an unknown unit or adjacency, or `votes_moved` below 1.
    """

    unit: str = "record"
    adjacency: str = "replace-one"
    votes_moved: int = 1

    def __post_init__(self) -> None:
        if self.unit not in (*UNITS, "label"):
            raise InputError(f"unit={self.unit!r}: must be one of {', '.join(UNITS)}")
        if self.adjacency not in ADJACENCIES:
            raise InputError(f"adjacency={self.adjacency!r}: must be one of {', '.join(ADJACENCIES)}")
        moved = check_count("votes_moved", self.votes_moved, least=1)
        if moved > 10**9:
            raise InputError(f"votes_moved={moved}: must be at most 10^9")
        if self.unit == "label" and (self.adjacency, moved) != ("replace-one", 1):
            raise InputError("unit='label': one label is replaced, and moves one vote")
        # A NumPy number would be spelt differently in the ledger.
        object.__setattr__(self, "votes_moved", moved)

    @property
    def votes_vanish(self) -> bool:
        """Whether the unit's votes may appear or disappear whole, instead of moving from class to class.

        Only a hospital that joins or leaves takes its teachers along. A record that is added or removed
        changes the teachers that saw it, which go on voting.
        """
        return self.unit == "hospital" and self.adjacency == "add-or-remove-one"

    @property
    def l1(self) -> int:
        """L1 sensitivity of the totals, in votes."""
        return self.votes_moved if self.votes_vanish else 2 * self.votes_moved

    @property
    def l2_squared(self) -> int:
        """Squared L2 sensitivity of the totals: all moved votes may go from one class to one other."""
        return self.votes_moved**2 if self.votes_vanish else 2 * self.votes_moved**2

    @property
    def top(self) -> int:
        """Sensitivity of the largest total, in votes."""
        return self.votes_moved

    def text(self) -> str:
        """The unit and the adjacency as part of a sentence."""
        if self.unit == "label":
            return "one record's label replaced, where features are public"
        verb = "replaced" if self.adjacency == "replace-one" else "added or removed"
        votes = "one vote" if self.votes_moved == 1 else f"up to {self.votes_moved} votes"
        if self.votes_moved == 1:
            effect = "appears or disappears" if self.votes_vanish else "moves"
        else:
            effect = "appear or disappear" if self.votes_vanish else "move"
        return f"one {self.unit} {verb} ({votes} of a query {effect})"


RECORD = Protection()
LABEL = Protection(unit="label")
