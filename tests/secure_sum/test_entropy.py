"""Randomness has one source, which nobody can seed."""

from __future__ import annotations

import ast
from pathlib import Path

import pate_fed.secure_sum as room


def test_randomness_has_one_source_and_no_seed() -> None:
    folder = Path(room.__file__).parent
    for path in folder.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        names |= {
            alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
        }
        # Attributes and imports by which a program could draw, or replace the source of, randomness.
        assert not names & {"random", "default_rng", "urandom", "getrandbits", "_system"}
        assert bool(names & {"secrets", "token_bytes"} - {"secrets"}) == (path.name == "entropy.py")
