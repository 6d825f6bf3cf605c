"""Claims of mechanisms that are none of ours, held against their code where that may be loaded."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pate_fed.errors import InputError
from pate_fed.privacy.ledger.terms import LedgerTerms
from pate_fed.privacy.mechanisms.own import OwnMechanism, check_claim
from pate_fed.structure.parts import entry_points

Named = Collection[str] | Mapping[str, Any] | None
"""Mechanisms whose code may be loaded: by name, or with the object itself; None: not even installed ones."""


def check_claims(terms: LedgerTerms, named: Named) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Which claims were held against their code, and why others were not, a sentence each.

    Code is loaded where it is an installed entry point of the group pate_fed.aggregators, or in `named`. No
    other is, whatever a ledger names: the file may come from anyone.

    Raises:
        IntegrityError: the code is another than the ledger names, or claims a larger curve.
    """
    checked, unchecked = list[str](), list[str]()
    for mechanism in terms.mechanisms:
        if not isinstance(mechanism, OwnMechanism):
            continue
        name, whose = mechanism.name, mechanism.claim.part.text
        if named is None:
            unchecked.append(f"the curve of {whose} was not computed again: ledger verify does")
            continue
        if name not in named and name not in entry_points("aggregator").values():
            unchecked.append(
                f"the curve of {whose} was not computed again: a ledger may name any code, so it is loaded "
                f"only if you name it: --aggregator {name}, or in Python "
                f"Ledger.read(RUN_DIR, aggregators=[{name!r}])"
            )
            continue
        try:
            check_claim(mechanism, named.get(name) if isinstance(named, Mapping) else None)
        except InputError as error:
            unchecked.append(f"the code of {whose} cannot be used here: {error}")
            continue
        checked.append(f"{name}: its code, as it is here, claims no more than was charged")
    return tuple(checked), tuple(unchecked)
