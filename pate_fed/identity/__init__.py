"""Who may join: a study's authority, the coordinator's and the hospitals' keys, admission and revocation.

Keys are made where they are used and never leave. A hospital's request is signed; what it gets back, its
admission, is one file with its certificate, the authority's, the study's terms and the coordinator's address.
Imports no flwr.

Begin with `authority.py` at the coordinator and `admission.py` at a hospital. Who said yes stands in
`admission.py`, what the coordinator signs in `keys.py` (what it received) and `bundle.py` (the student).
"""

from pate_fed.identity.admission import Admission, HospitalIdentity
from pate_fed.identity.authority import Authority
from pate_fed.identity.keys import make_request, read_request, sum_fingerprint

__all__ = ["Admission", "Authority", "HospitalIdentity", "make_request", "read_request", "sum_fingerprint"]
