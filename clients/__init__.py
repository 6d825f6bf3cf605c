"""The hospital's side: agree to a study, teach, answer each question once, refuse.

Begin with `app.py`, which takes Flower's messages, and `policy.py`: what a hospital agrees to. Each kind of
question is answered in a module of its own, under masks in `masked.py`. `journal.py` keeps what was answered,
so that nothing is answered twice. `log.py` has what left, signed, and `account.py` what all studies cost
together. `leave.py` withdraws.

All that leaves is decided here. A reviewer reads this room and `pate_fed.secure_sum`: nothing else decides
what leaves the house. It never imports `server`.
"""
