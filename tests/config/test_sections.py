"""Sections of a study check themselves, also where they are built in Python."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pate_fed.config.backend import Engine
from pate_fed.config.sections import Aggregation, Data, Parties, Privacy, Queries
from pate_fed.config.study import Study
from pate_fed.data.schema import Schema
from pate_fed.errors import InputError

PATIENTS = Schema(label="y", classes=("a", "b"), columns=(("x", ()),), patient="id")


def test_noise_and_threshold_grow_with_the_number_of_teachers() -> None:
    parties, comes = Parties(num_clients=25, teachers_per_client=10), Privacy(adjacency="add-or-remove-one")
    ours = Study(parties=parties, privacy=comes).resolve().aggregation
    assert (ours.threshold, ours.sigma1, ours.sigma2) == (200, 150, 40)
    assert Study(aggregation=Aggregation(sigma2=7.0)).resolve().aggregation.sigma2 == 7.0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Aggregation(sigma2="x"), r"--sigma2 \(sigma2\) is 'x': a number of votes from 1e-6 to 1e9"),
        (lambda: Privacy(unit="galaxy"), "unit is 'galaxy': one of auto, record, patient, hospital"),
        (lambda: Privacy(delta=7), r"--delta \(delta\) is 7: a number of at least 0 and below 1"),
        (lambda: Privacy(epsilon=float("nan")), "--epsilon"),
        (lambda: Parties(num_clients=10**20), "--num-clients .* from 1 to 1,000,000"),
        (lambda: Parties(num_clients=10**6, teachers_per_client=10**4), "at most 1,000 is meant"),
        (lambda: Parties(partition="dirichlet:inf"), "dirichlet:ALPHA"),
        (lambda: Queries(max_queries=0), "--max-queries"),
        (lambda: Queries(rounds=1).resolve(interactive=True), "--rounds .* at least 2"),
        (lambda: Queries(rounds=2).resolve(interactive=False), "--rounds .* 1 unless"),
        (lambda: Data(dataset="table", pool="p.csv"), "table is None: label, classes and columns"),
        (lambda: Data(dataset="table"), "pool is None: the file of .*, and as data.table label, classes"),
        (lambda: Data(dataset="images", pool="p.npz", classes=("a",)), "two or more"),
        (lambda: Data(dataset="images", classes=("a", "b")), "pool is None"),
        (lambda: Data(table=PATIENTS), 'patient = .id.: goes with data.dataset = "table"'),
        (lambda: Engine(device="tpu"), "auto, cpu, cuda or cuda:N"),
        (lambda: Aggregation().fixed(), "open still"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(make: Callable[[], object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()
