"""The ledger: what was charged, on disk before it is used, and how it is verified."""
