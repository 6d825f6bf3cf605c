"""What follows from a study's terms before its first message: its guarantee, and its messages' sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pate_fed.config.sections import EPSILON_ALARM
from pate_fed.errors import InputError
from pate_fed.format import delta_text, epsilon_text
from pate_fed.kinds.terms import Terms
from pate_fed.privacy import LedgerTerms
from pate_fed.privacy.ledger.terms import guaranteed_coordinator_epsilon, guaranteed_epsilon

_NUMBER = 8  # int64 on the wire; masked entries take less, and so do most pools
_PER_HOSPITAL = 2048  # a name, keys, signatures, sealed shares
_RECEIPT = 400  # digests of a query's messages: five, where it is a batch of its own
_MARGIN = 2**20  # headers, digests, and what Flower wraps around a message
_MOST = 2**31 - 1  # gRPC's own limit


def guarantee_lines(fixed: LedgerTerms) -> list[str]:
    """ε that a study cannot pass, as text: at which δ, for which unit, against whom."""
    public, coordinator = guaranteed_epsilon(fixed), guaranteed_coordinator_epsilon(fixed)
    told = "unbounded" if coordinator is None else f"ε={epsilon_text(coordinator)}"
    found = [
        f"guaranteed: ε={epsilon_text(public)} at δ={delta_text(fixed.delta)} for {fixed.protects}, "
        "against all who see the labels or the student",
        f"against the coordinator: {told}; it sees {fixed.coordinator.text()}",
    ]
    found += (each.warning for each in fixed.assumptions.each)
    if not fixed.private:
        found.append("not private: the noise is seeded; with private noise the same ε would hold")
    return found


def worst_epsilon(terms: Terms) -> tuple[float | None, float | None]:
    """The most that the study can cost at its δ: against all who see labels, and against the coordinator.

    What the ledger promises: whatever the answers are. None where the coordinator sees them without noise.

    Raises:
        InputError: terms that no mechanism has.
    """
    fixed = terms.ledger_terms(noise="as agreed", private=terms.seed is None)
    return guaranteed_epsilon(fixed), guaranteed_coordinator_epsilon(fixed)


def require_meaningful(terms: Terms, fixed: LedgerTerms) -> None:
    """Refuse a study whose guarantee means almost nothing, unless its terms say that it is meant.

    Raises:
        InputError: ε above 10 against the public, or none; the message says what to do.
    """
    if terms.privacy.allow_weak:
        return
    epsilon = guaranteed_epsilon(fixed)
    if epsilon is not None and epsilon <= EPSILON_ALARM:
        return
    raise InputError(
        f"ε={epsilon_text(epsilon)} at δ={delta_text(terms.delta)} against all who see labels promises "
        f"almost nothing: at most {EPSILON_ALARM:g} is meant, and nothing was asked. {terms.words.instead}. "
        "--allow-weak-privacy (privacy.allow_weak = true) runs it all the same"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSizes:
    """Bytes of the largest legitimate message each way, with a margin."""

    to_hospital: int
    to_coordinator: int


def largest_messages(terms: Terms) -> MessageSizes:
    """What the largest message of a study under these terms can take.

    To a hospital that is the public pool (8 bytes a number, its file's type not being in the terms) with the
    encoder or the feature map, to the coordinator a batch of all the queries that the terms allow, a vote
    matrix of int64, or all sums.
    """
    shared = _MARGIN + _PER_HOSPITAL * terms.num_clients
    to_hospital = shared + len(terms.to_json())
    bounds, queries = terms.bounds, min(terms.pool_size, terms.max_queries)
    if terms.asks.reads_inputs:
        to_hospital += _NUMBER * terms.pool_size * math.prod(terms.image_shape)
    asked = _NUMBER * max(queries, bounds.rows)  # places of a question
    to_hospital += asked + _RECEIPT * queries + bounds.file
    to_coordinator = shared + _NUMBER * bounds.rows * bounds.columns
    return MessageSizes(to_hospital=min(to_hospital, _MOST), to_coordinator=min(to_coordinator, _MOST))
