"""Secure summation: the coordinator learns the sum of the hospitals' vectors, and of no hospital its vector.

Pure state machines: messages in, messages out, no network. `HospitalSum` is a hospital's side,
`CoordinatorSum` and its `SumBatch` the coordinator's. Pairwise masks with one key exchange a study (after
Bonawitz et al. 2017, CCS), a consistency round over signed survivors, and fresh secrets a batch; primitives
from `cryptography` only.

What is guaranteed: with at most `threshold` - 1 hospitals in league with a coordinator that follows the
protocol, and fewer than 2 `threshold` - n with one that does not, the coordinator learns one sum a batch over
at least `threshold` hospitals (and can subtract what those in league tell it of their own). From 200
hospitals on, where not all mask with all, that is `in_league` of them with either. Who seals wrong shares, or
complains of right ones, is named by all alike, and the batch begins again without it. What is not: that a
hospital's vector is honest, and that a batch succeeds where somebody dealt shares of no one secret.

Begin with `hospital.py` and `coordinator.py`; `graph.py` has who masks with whom, `messages.py` what they
send, `blame.py` who is wrong where they do not agree, `masks.py` and `shamir.py` the arithmetic, `state.py`
what lies on a disk between two messages.
"""

from pate_fed.secure_sum.batch import SumBatch
from pate_fed.secure_sum.coordinator import CoordinatorSum
from pate_fed.secure_sum.dealing import PlayedSeats
from pate_fed.secure_sum.graph import in_league, shape
from pate_fed.secure_sum.hospital import HospitalSum
from pate_fed.secure_sum.keys import Identity, fingerprint, read_fingerprint, spoken
from pate_fed.secure_sum.masks import SumRange, add_noise_share
from pate_fed.secure_sum.messages import read_reply, read_request
from pate_fed.secure_sum.refusals import RefusedError, SumRefusal
from pate_fed.secure_sum.roster import Demands, confirmed_for, threshold_for
from pate_fed.secure_sum.store import PlayedStore, SumStore

__all__ = [
    "CoordinatorSum",
    "Demands",
    "HospitalSum",
    "Identity",
    "PlayedSeats",
    "PlayedStore",
    "RefusedError",
    "SumBatch",
    "SumRange",
    "SumRefusal",
    "SumStore",
    "add_noise_share",
    "confirmed_for",
    "fingerprint",
    "in_league",
    "read_fingerprint",
    "read_reply",
    "read_request",
    "shape",
    "spoken",
    "threshold_for",
]
