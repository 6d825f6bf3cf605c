"""Privacy accounting of PATE: mechanisms and noise, the budget, the ledger, planning, the papers' bounds.

Needs NumPy and SciPy only; `docs/accounting.md` has examples. `pate_fed.privacy.bounds` holds the theorems;
what is not named here is imported from its own module. Input that is out of range, of another shape or no
number is an InputError that names it, everywhere; docstrings say what else is refused.

Begin with `accounting.py`, an accountant for scripts and the filter that stops a study before its budget
would be passed, and `mechanisms`: how totals become labels, and what that costs. `protection.py` says what is
protected, `ledger` writes and verifies what was charged, `planning` says beforehand what a budget affords.
"""

from importlib import import_module

TYPE_CHECKING = False  # each name is imported when it is asked for: settings need a few light ones
if TYPE_CHECKING:
    from pate_fed.privacy.accounting import Accountant, BudgetFilter
    from pate_fed.privacy.bounds.control import capped_cost_epsilon
    from pate_fed.privacy.bounds.cost import epsilon_of
    from pate_fed.privacy.ledger.ledger import Ledger
    from pate_fed.privacy.ledger.report import verify
    from pate_fed.privacy.ledger.terms import LedgerTerms
    from pate_fed.privacy.mechanisms.data_dependent import (
        SanitiseSettings,
        data_dependent_epsilon_do_not_publish,
        sanitised_epsilon,
    )
    from pate_fed.privacy.mechanisms.distributed import DistributedGNMax
    from pate_fed.privacy.mechanisms.events import CoordinatorView, PrivacyEvent, odometer, total_cost
    from pate_fed.privacy.mechanisms.noise import NoiseSource, SeededNoise, SystemNoise, noise_from_seed
    from pate_fed.privacy.mechanisms.noisy_max import ConfidentGNMax, GNMax, InteractiveGNMax, LNMax, Release
    from pate_fed.privacy.mechanisms.prices import Sensitivity, TotalsNoise
    from pate_fed.privacy.planning.audit import audit_all
    from pate_fed.privacy.planning.planner import Plan, plan
    from pate_fed.privacy.planning.vote_model import Pool
    from pate_fed.privacy.protection import RECORD, Protection

__all__ = [
    "RECORD",
    "Accountant",
    "BudgetFilter",
    "ConfidentGNMax",
    "CoordinatorView",
    "DistributedGNMax",
    "GNMax",
    "InteractiveGNMax",
    "LNMax",
    "Ledger",
    "LedgerTerms",
    "NoiseSource",
    "Plan",
    "Pool",
    "PrivacyEvent",
    "Protection",
    "Release",
    "SanitiseSettings",
    "SeededNoise",
    "Sensitivity",
    "SystemNoise",
    "TotalsNoise",
    "audit_all",
    "capped_cost_epsilon",
    "data_dependent_epsilon_do_not_publish",
    "epsilon_of",
    "noise_from_seed",
    "odometer",
    "plan",
    "sanitised_epsilon",
    "total_cost",
    "verify",
]

_PLACES = {
    "accounting": "Accountant BudgetFilter",
    "bounds.control": "capped_cost_epsilon",
    "bounds.cost": "epsilon_of",
    "ledger.ledger": "Ledger",
    "ledger.report": "verify",
    "ledger.terms": "LedgerTerms",
    "mechanisms.data_dependent": "SanitiseSettings data_dependent_epsilon_do_not_publish sanitised_epsilon",
    "mechanisms.distributed": "DistributedGNMax",
    "mechanisms.events": "CoordinatorView PrivacyEvent odometer total_cost",
    "mechanisms.noise": "NoiseSource SeededNoise SystemNoise noise_from_seed",
    "mechanisms.noisy_max": "ConfidentGNMax GNMax InteractiveGNMax LNMax Release",
    "mechanisms.prices": "Sensitivity TotalsNoise",
    "planning.audit": "audit_all",
    "planning.planner": "Plan plan",
    "planning.vote_model": "Pool",
    "protection": "RECORD Protection",
}


def __getattr__(name: str) -> object:
    """The public names, each imported when it is first asked for."""
    for place, names in _PLACES.items():
        if name in names.split():
            return getattr(import_module(f"{__name__}.{place}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
