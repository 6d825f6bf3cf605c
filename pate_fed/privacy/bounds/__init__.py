"""Public accounting API: the papers' bounds on the privacy loss, each with its theorem, by module.

A whole study by privacy loss distributions (PLD) is in `pate_fed.privacy.accounting`. P17 is arXiv 1610.05755
(PATE, 2017), P18 is arXiv 1802.08908 (PATE, 2018), PATE++ is arXiv 2211.01628.

- `hockey_stick`: what one query releases, the class that wins and the check's bit, as RDP and as δ(ε):
  `argmax_rdp`, `bit_rdp`, `moved_rdp`, `argmax_delta`, `bit_delta`, `argmax_epsilon`, `bit_epsilon`.
- `cost`: exact and rounded up, what a ledger charges, and the RDP that a mechanism of the user's own claims:
  `Cost`, `epsilon_of`, `ClaimedCurve`.
- `control`: a whole study with caps, by optimal control of the privacy loss: `capped_cost_epsilon`,
  `capped_epsilon`.
- `gnmax`: GNMax (P18, Propositions 7, 8 and 10, Theorem 6) and the check's bit (section 4.2); LNMax and the
  moments accountant (P17, Lemma 4, Theorems 1 to 3): `gnmax_log_q`, `theorem6`, `gnmax_rdp`,
  `gnmax_rdp_total`, `exact_bit_rdp`, `exact_bit_worst_case`, `lnmax_log_q`, `lnmax_log_moments`,
  `moments_epsilon`.
- `smooth`: smooth sensitivity, and what its release costs (P18, appendix B): `smooth_sensitivity`,
  `gnss_rdp`.
- `conversion`: any RDP curve as ε, data-independent totals of Gaussian PATE, and whatever is ε-DP:
  `to_epsilon`, `ConvertedEpsilon`, `confident_rho`, `confident_mu`, `gaussian_dp_epsilon`, `pure_rdp`,
  `pure_epsilon`.

They rest on three more, whose names are no API: arithmetic rounded outward, the integer noise that runs, and
the lattice of who wins.
"""
