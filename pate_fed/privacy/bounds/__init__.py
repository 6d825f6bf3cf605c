"""Public accounting API: the papers' bounds on the privacy loss, each with its theorem.

P17 is arXiv 1610.05755 (PATE, 2017), P18 is arXiv 1802.08908 (PATE, 2018), PATE++ is arXiv 2211.01628.

- LNMax and the moments accountant (P17, Lemma 4, Theorems 1 to 3): `lnmax_log_q`, `lnmax_log_moments`,
  `moments_epsilon`.
- GNMax (P18, Propositions 7, 8 and 10, Theorem 6): `gnmax_log_q`, `theorem6`, `gnmax_rdp`, `gnmax_rdp_total`.
- The threshold check (P18, section 4.2) and its exact divergence: `threshold_rdp`, `exact_bit_rdp`,
  `exact_bit_worst_case`; a whole query before it is known whether it is answered: `joint_rdp`.
- Smooth sensitivity (P18, appendix B): `gnmax_local_sensitivity`, `threshold_local_sensitivity`,
  `smooth_sensitivity`, `gnss_rdp`, `gnss_rdp_printed`, `nrs_parameters`.
- Data-independent totals: `confident_rho`, `confident_mu`, `gaussian_dp_epsilon`, `pld_epsilon`,
  `pate_plus_plus_epsilon`; `Cost` and `epsilon_of` are exact and rounded up, and are what a ledger charges.
- Conversion of any RDP curve: `to_epsilon`.
"""

from pate_fed.privacy.bounds.conversion import ConvertedEpsilon, to_epsilon
from pate_fed.privacy.bounds.cost import Cost, epsilon_of
from pate_fed.privacy.bounds.gaussian import (
    confident_mu,
    confident_rho,
    gaussian_dp_epsilon,
    pate_plus_plus_epsilon,
    pld_epsilon,
)
from pate_fed.privacy.bounds.gnmax import gnmax_log_q, gnmax_rdp, gnmax_rdp_total, theorem6
from pate_fed.privacy.bounds.gnss import gnss_rdp, gnss_rdp_printed, nrs_parameters
from pate_fed.privacy.bounds.joint import joint_rdp
from pate_fed.privacy.bounds.lnmax import lnmax_log_moments, lnmax_log_q, moments_epsilon
from pate_fed.privacy.bounds.orders import DEFAULT_ORDERS
from pate_fed.privacy.bounds.smooth import (
    gnmax_local_sensitivity,
    smooth_sensitivity,
    threshold_local_sensitivity,
)
from pate_fed.privacy.bounds.threshold import exact_bit_rdp, exact_bit_worst_case, threshold_rdp

__all__ = [
    "DEFAULT_ORDERS",
    "ConvertedEpsilon",
    "Cost",
    "confident_mu",
    "confident_rho",
    "epsilon_of",
    "exact_bit_rdp",
    "exact_bit_worst_case",
    "gaussian_dp_epsilon",
    "gnmax_local_sensitivity",
    "gnmax_log_q",
    "gnmax_rdp",
    "gnmax_rdp_total",
    "gnss_rdp",
    "gnss_rdp_printed",
    "joint_rdp",
    "lnmax_log_moments",
    "lnmax_log_q",
    "moments_epsilon",
    "nrs_parameters",
    "pate_plus_plus_epsilon",
    "pld_epsilon",
    "smooth_sensitivity",
    "theorem6",
    "threshold_local_sensitivity",
    "threshold_rdp",
    "to_epsilon",
]
