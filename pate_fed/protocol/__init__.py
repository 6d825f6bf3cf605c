"""What coordinator and hospital say to each other, typed, both ways: terms, messages, refusals.

Begin with `terms.py`: all that a study fixes beforehand, whose digest names it. `guarantee.py` states what it
costs at most, before the first message. `messages.py` declares every message with its fields, `refusals.py`
the fixed list of reasons, and `sizes.py` bounds how large a message can be. Imports neither side, and no
flwr.
"""
