"""Bounds on the privacy loss, from the papers; each names its theorem."""
