"""PATE's privacy: mechanisms, noise, what they cost, the budget and the ledger. No torch, no flwr."""

from pate_fed.format import epsilon_text
from pate_fed.privacy.bounds.conversion import ConvertedEpsilon, to_epsilon
from pate_fed.privacy.bounds.data_dependent import (
    data_dependent_epsilon_do_not_publish,
    data_dependent_rdp,
    mechanism_epsilon_do_not_publish,
)
from pate_fed.privacy.bounds.sanitise import (
    SanitisedEpsilon,
    SanitiseSettings,
    check_sanitisable,
    sanitised_epsilon,
)
from pate_fed.privacy.filter import BudgetFilter, Odometer, epsilon_of, total_cost
from pate_fed.privacy.ledger.describe import LedgerReport, describe, verify
from pate_fed.privacy.ledger.guarantee import guaranteed_coordinator_epsilon, guaranteed_epsilon
from pate_fed.privacy.ledger.ledger import Ledger
from pate_fed.privacy.ledger.provenance import Provenance, digest_of
from pate_fed.privacy.ledger.rows import Entry, LedgerTerms
from pate_fed.privacy.mechanisms.distributed import DistributedGNMax, party_sigma
from pate_fed.privacy.mechanisms.events import (
    PLAIN,
    RECORD,
    SECURE_SUM,
    CoordinatorView,
    PrivacyEvent,
    Protection,
    hospital_noise,
)
from pate_fed.privacy.mechanisms.gnmax import ConfidentGNMax, GNMax, InteractiveGNMax, LNMax, Release
from pate_fed.privacy.mechanisms.noise import NoiseSource, SeededNoise, SystemNoise, noise_from_seed
from pate_fed.privacy.planning.audit import AuditResult, audit_all
from pate_fed.privacy.planning.planner import Plan, plan
from pate_fed.privacy.planning.vote_model import past_votes, past_votes_from_file

__all__ = [
    "PLAIN",
    "RECORD",
    "SECURE_SUM",
    "AuditResult",
    "BudgetFilter",
    "ConfidentGNMax",
    "ConvertedEpsilon",
    "CoordinatorView",
    "DistributedGNMax",
    "Entry",
    "GNMax",
    "InteractiveGNMax",
    "LNMax",
    "Ledger",
    "LedgerReport",
    "LedgerTerms",
    "NoiseSource",
    "Odometer",
    "Plan",
    "PrivacyEvent",
    "Protection",
    "Provenance",
    "Release",
    "SanitiseSettings",
    "SanitisedEpsilon",
    "SeededNoise",
    "SystemNoise",
    "audit_all",
    "check_sanitisable",
    "data_dependent_epsilon_do_not_publish",
    "data_dependent_rdp",
    "describe",
    "digest_of",
    "epsilon_of",
    "epsilon_text",
    "guaranteed_coordinator_epsilon",
    "guaranteed_epsilon",
    "hospital_noise",
    "mechanism_epsilon_do_not_publish",
    "noise_from_seed",
    "party_sigma",
    "past_votes",
    "past_votes_from_file",
    "plan",
    "sanitised_epsilon",
    "to_epsilon",
    "total_cost",
    "verify",
]
