"""Who may join: a study's authority, the coordinator's and the hospitals' keys, and one small file.

Keys are made where they are used and never leave; a hospital's request is signed, and what it gets back is
its certificate, the authority's, the study's terms and the coordinator's address. Imports no flwr.
"""

from pate_fed.cli.show_terms import cost_text, make_terms_of, read_terms
from pate_fed.identity.admission import Admission, HospitalIdentity
from pate_fed.identity.authority import Authority
from pate_fed.identity.keys import check_private, make_request, read_request, sum_fingerprint

__all__ = [
    "Admission",
    "Authority",
    "HospitalIdentity",
    "check_private",
    "cost_text",
    "make_request",
    "make_terms_of",
    "read_request",
    "read_terms",
    "sum_fingerprint",
]
