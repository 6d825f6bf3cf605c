"""The coordinator's side: rounds, totals, noise, ledger, labels, student."""
