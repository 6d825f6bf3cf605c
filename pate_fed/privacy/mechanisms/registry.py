"""Every mechanism by its name, as studies and ledgers know it: ours, and by module:attribute others'."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from pate_fed.errors import InputError
from pate_fed.privacy.label_dp import LABEL_MECHANISMS
from pate_fed.privacy.mechanisms.class_sums import CLASS_SUM_MECHANISMS
from pate_fed.privacy.mechanisms.distributed import DistributedGNMax
from pate_fed.privacy.mechanisms.events import Mechanism
from pate_fed.privacy.mechanisms.noisy_max import ConfidentGNMax, GNMax, InteractiveGNMax, LNMax, Voting
from pate_fed.privacy.mechanisms.own import OwnMechanism
from pate_fed.structure.parts import is_part_name

MECHANISMS: dict[str, type[Voting]] = {
    kind.name: kind for kind in (LNMax, GNMax, ConfidentGNMax, InteractiveGNMax, DistributedGNMax)
}


def mechanism_from_parameters(name: str, parameters: dict[str, Any]) -> Mechanism:
    """The mechanism with that name and these parameters, as a ledger keeps them.

    One of somebody else's is what its row says: no code of it is loaded (`own.check_claim` does that).

    Raises:
        InputError: an unknown name, or parameters that are not the mechanism's.
    """
    if isinstance(name, str) and is_part_name(name):
        return OwnMechanism.from_parameters(name, parameters)
    labels = LABEL_MECHANISMS | CLASS_SUM_MECHANISMS
    kind: type[Any] | None = MECHANISMS.get(name) or labels.get(name)
    if kind is None:
        raise InputError(f"mechanism={name!r}: must be one of {', '.join(MECHANISMS)}")
    names = {entry.name for entry in fields(kind)}
    if set(parameters) != names:
        raise InputError(f"mechanism={name!r} has the parameters {', '.join(sorted(names))}")
    made: Mechanism = kind(**parameters)
    return made
