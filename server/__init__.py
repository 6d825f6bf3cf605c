"""The coordinator's side: ask, add up, release under noise, keep the ledger, train the student.

Begin with `app.py`, which starts a run, and `base_run.py`, which holds what all kinds of studies share. A
release goes through `release.py`: the ledger's row is on the disk before a label is used. `exchange.py` sends
and waits, `presence.py` knows who is there, `masked.py` leads secure summation. `state.py` keeps what a
coordinator goes on with after it died. `testing.py` has the rule of which inputs test a student.

An auditor reads this room and `pate_fed.privacy`: nothing else decides what is released and what it costs. It
never imports `clients`.
"""
