"""A study of four hospitals' tables that a plain installation runs: votes of forests that are quick."""

from __future__ import annotations

import json
from pathlib import Path

from pate_fed.cli.demo import HOSPITALS, make_demo

_VOTES = """
[teacher]
name = "random-forest"
trees = 2
[aggregation]
aggregator = "gnmax"
sigma2 = 8.0
[queries]
labels = 10
[student]
name = "forest"
trees = 2
"""


def write_tables_study(folder: Path) -> None:
    """Write the hospitals' tables, the demonstration's study.toml, and simulated.toml, whose parties vote."""
    make_demo(folder)
    text = (folder / "study.toml").read_text(encoding="utf-8")
    files = json.dumps([f"{name}.csv" for name in HOSPITALS])
    for old, new in (
        ("num_clients = 4", "num_clients = 4\nteachers_per_client = 5"),
        ('pool = "pool.csv"', f'pool = "pool.csv"\nprivate = {files}'),
        ("epsilon = 1.0", "epsilon = 9.0"),
    ):
        assert old in text
        text = text.replace(old, new)
    text += _VOTES
    (folder / "simulated.toml").write_text(text, encoding="utf-8")
