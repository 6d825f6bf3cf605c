"""Public accounting API: the papers' bounds on the privacy loss, each with its theorem, by module.

P17 is arXiv 1610.05755 (PATE, 2017), P18 is arXiv 1802.08908 (PATE, 2018), PATE++ is arXiv 2211.01628.

- `lnmax`: LNMax and the moments accountant (P17, Lemma 4, Theorems 1 to 3): `lnmax_log_q`,
  `lnmax_log_moments`, `moments_epsilon`.
- `gnmax`: GNMax (P18, Propositions 7, 8 and 10, Theorem 6): `gnmax_log_q`, `theorem6`, `gnmax_rdp`,
  `gnmax_rdp_total`.
- `threshold`: the threshold check (P18, section 4.2) and its exact divergence: `threshold_rdp`,
  `exact_bit_rdp`, `exact_bit_worst_case`.
- `joint`: a whole query before it is known whether it is answered: `joint_rdp`.
- `smooth`: smooth sensitivity (P18, appendix B): `gnmax_local_sensitivity`, `threshold_local_sensitivity`,
  `smooth_sensitivity`.
- `gnss`: what its release costs (P18, appendix B): `gnss_rdp`, `gnss_rdp_printed`, `nrs_parameters`.
- `gaussian`: data-independent totals: `confident_rho`, `confident_mu`, `gaussian_dp_epsilon`,
  `pate_plus_plus_epsilon`.
- `outcomes`: what a query releases, the class that wins and the check's bit: `argmax_rdp`, `bit_rdp`,
  `moved_rdp`.
- `hockey_stick`: δ(ε) of one outcome, and ε(δ): `argmax_delta`, `bit_delta`, `argmax_epsilon`, `bit_epsilon`.
- `profiles`: a whole study by privacy loss distributions (PLD): `pld_epsilon`, `totals_pld_epsilon`.
- `control`: a whole study with caps, by optimal control of the privacy loss: `control_epsilon`,
  `control_delta`; of other outcomes `capped_epsilon`.
- `cost`: exact and rounded up, what a ledger charges: `Cost`, `epsilon_of`.
- `conversion`: any RDP curve as ε: `to_epsilon`, `ConvertedEpsilon`.
"""
