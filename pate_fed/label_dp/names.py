"""The methods' names, apart, so that a command line can list them without loading torch."""

from __future__ import annotations

__all__ = ["METHODS"]

METHODS = (
    "noise-cluster",
    "randres+normal",
    "randres+ssl",
    "randres+denoise-ssl",
    "randres+aug-descent",
    "pate-fm",
    "pate-fm+normal",
    "pate-fm+ssl",
    "pate-fm+denoise-ssl",
    "pate-fm+aug-descent",
    "alibi",
    "lp-1st",
    "lp-2st",
)
