"""The coordinator's side: ask, add up, release under noise, keep the ledger, train the student.

Begin with `run.py`, a study from its first message to its student, whatever the kind of question; what is
asked, released and learnt stands in `kinds/`. `app.py` has what is around a run, from checks to outcome. A
release goes through `release.py`: the ledger's row is on the disk before a label is used. `exchange.py` sends
and waits, `exchange.py` knows who is there, `masked.py` leads secure summation. `state.py` keeps what a
coordinator goes on with after it died. `learning.py` has the rule of which inputs test a student.

An auditor reads this room and `pate_fed.privacy`: nothing else decides what is released and what it costs. It
never imports `clients`.
"""
