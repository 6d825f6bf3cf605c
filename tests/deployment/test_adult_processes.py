"""Class sums of real records at four hospitals as processes: the UCI Adult census at ε 1."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate_fed.cli.demo import HOSPITALS, make_identities
from pate_fed.privacy.ledger.report import verify_run

CENTRAL = 0.853  # logistic regression of all records in one place (test_class_sums_benchmark.py)
NUMBERS = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")
COLUMNS = (
    "age workclass fnlwgt education education-num marital-status occupation relationship race sex "
    "capital-gain capital-loss hours-per-week native-country"
).split()
STUDY = """
[study]
name = "census"
[parties]
num_clients = 4
[data]
dataset = "table"
pool = "pool.csv"
num_queries = {queries}
[data.table]
label = "income"
classes = ["low", "high"]
[data.table.columns]
{columns}
[aggregation]
aggregator = "class-sums"
[privacy]
epsilon = 1.0
[secrecy]
secure_sum = true
noise_at = "hospitals"
"""

Rows = list[list[str]]


@pytest.fixture(scope="module")
def census(shared: Path) -> dict[str, Rows]:
    """Rows of adult.data and adult.test, missing cells empty, the class last."""
    found = {}
    for part in ("data", "test"):
        with open(shared / "data" / "adult" / f"adult.{part}", encoding="utf-8", newline="") as file:
            rows = [row for row in csv.reader(file, skipinitialspace=True) if len(row) == 15]
        found[part] = [
            [
                *("" if cell == "?" else cell for cell in row[:14]),
                "high" if row[14].startswith(">") else "low",
            ]
            for row in rows
        ]
    return found


def _kinds(rows: Rows) -> dict[str, str]:
    """Each column as study.toml declares it; "education" says the same as its number."""
    kinds = {}
    for place, name in enumerate(COLUMNS):
        if name != "education":
            values = sorted({row[place] for row in rows} - {""})
            kinds[name] = '"number"' if name in NUMBERS else json.dumps(values)
    return kinds


def _write(path: Path, rows: Rows, names: list[str]) -> None:
    places = [*(COLUMNS.index(name) for name in names), 14]
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*names, "income"])
        writer.writerows([row[place] for place in places] for row in rows)


@pytest.mark.slow
def test_four_hospitals_of_8000_records_come_near_central_learning(
    rehearsal: Any, census: dict[str, Rows]
) -> None:
    folder, private, public = rehearsal.folder, census["data"], census["test"]
    kinds = _kinds(private + public)
    owners = np.random.default_rng(0).integers(0, len(HOSPITALS), len(private))
    for number, name in enumerate(HOSPITALS):
        own = [row for row, owner in zip(private, owners, strict=True) if owner == number]
        assert 7800 < len(own) < 8500
        _write(folder / f"{name}.csv", own, list(kinds))
    _write(folder / "pool.csv", public, list(kinds))
    columns = "\n".join(f"{name} = {kind}" for name, kind in kinds.items())
    queries = len(public) // 2
    (folder / "study.toml").write_text(STUDY.format(queries=queries, columns=columns), encoding="utf-8")
    make_identities(folder)
    hospitals = [
        rehearsal.start(
            name,
            *("-m", "pate_fed.client", "--hospital", name, "--data", f"{name}.csv"),
            *("--tls-dir", f"identity-{name}"),
        )
        for name in HOSPITALS
    ]
    options = ("--config", "study.toml", "--tls-dir", "authority", "--run-dir", "run")
    server = rehearsal.start("server", "-m", "pate_fed.server", *options)
    assert server.wait() == 0, server.text + hospitals[0].text
    for party in hospitals:
        assert party.wait(60) == 0, party.text
    assert verify_run(folder / "run").chain.entries
    metrics = json.loads((folder / "run" / "metrics.json").read_text(encoding="utf-8"))
    assert 0.95 < metrics["privacy"]["student"]["data_independent"] <= 1
    print(server.text)
    student = metrics["accuracy"]["student"]
    assert student > CENTRAL - 0.02, server.text
