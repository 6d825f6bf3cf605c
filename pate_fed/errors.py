"""Every error that a user can meet, with the exit code that a command ends with.

PateFedError              1  a fault of the program
├── InputError            2  the user's input is wrong: what, where, and what would be right
├── BudgetError           3  the privacy budget would be passed
├── QuorumError           4  too few hospitals are left
├── PolicyError           5  a hospital's policy refuses
└── IntegrityError        6  the ledger or a message failed its check
"""

from __future__ import annotations

__all__ = ["BudgetError", "InputError", "IntegrityError", "PateFedError", "PolicyError", "QuorumError"]


class PateFedError(Exception):
    """Base of all errors with a message meant for the user; `exit_code` is the command's status."""

    exit_code: int = 1


class InputError(PateFedError, ValueError):
    """The user's input is wrong."""

    exit_code = 2


class BudgetError(PateFedError):
    """A spend would pass the privacy budget; nothing was spent."""

    exit_code = 3


class QuorumError(PateFedError):
    """Fewer hospitals answer than the study's quorum."""

    exit_code = 4


class PolicyError(PateFedError):
    """A hospital's own policy forbids what was asked."""

    exit_code = 5


class IntegrityError(PateFedError):
    """The ledger or a message is not what it claims to be."""

    exit_code = 6
