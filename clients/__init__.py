"""The hospital's side: train, vote, keep its own journal, refuse.

All that can leave the house is decided here.
"""
