"""Mechanisms: how totals become labels, with which noise, and which events that charges."""
