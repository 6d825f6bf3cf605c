"""Who may join: a study's authority, the coordinator's and the hospitals' keys, and one small file.

Keys are made where they are used and never leave; a hospital's request is signed, and what it gets back is
its certificate, the authority's, the study's terms and the coordinator's address. Imports no flwr.
"""

from pate_fed.identity.admission import Admission, HospitalIdentity
from pate_fed.identity.authority import Authority
from pate_fed.identity.keys import make_request, read_request, sum_fingerprint
from pate_fed.identity.terms import read_terms

__all__ = [
    "Admission",
    "Authority",
    "HospitalIdentity",
    "make_request",
    "read_request",
    "read_terms",
    "sum_fingerprint",
]
