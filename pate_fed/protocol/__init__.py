"""What coordinator and hospital say to each other, typed, both ways: messages, refusals, texts with a digest.

Begin with `messages.py`, which declares every message with its fields, whatever the kind of question, the
fixed list of reasons for which a hospital does not answer, and how both sides name terms by a digest. The
terms themselves are in `pate_fed.kinds`. Imports neither side, and no flwr.
"""
