"""The hospital's side: agree to a study, get ready, answer each question once, refuse.

Begin with `hospital.py`, which does so for every kind of question, and `policy.py`: what a hospital agrees
to. What an answer is made of stands in `kinds/`; it leaves, under masks too, in `base.py`. `journal.py` keeps
what was answered, so that nothing is answered twice. `log.py` has what left, signed, and `account.py` what
all studies cost together. `leave.py` withdraws.

All that leaves is decided here. A reviewer reads this room and `pate_fed.secure_sum`: nothing else decides
what leaves the house. It never imports `server`.
"""
