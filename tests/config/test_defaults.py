"""Noise, threshold and counts that a study leaves open: in proportion, or planned where that is dear."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pate_fed.config.defaults import MOST_BY_DEFAULT, USEFUL_LABELS
from pate_fed.config.sections import Aggregation, Parties, Privacy, Queries
from pate_fed.config.study import Study
from pate_fed.privacy import ConfidentGNMax, GNMax, Protection
from pate_fed.privacy.accountant import capped_cost_epsilon


def _open(teachers: int, **sections: object) -> Study:
    return replace(Study(parties=Parties(num_clients=teachers)), **sections)  # type: ignore[arg-type]


def _epsilon(study: Study) -> float:
    threshold, sigma1, sigma2 = study.aggregation.fixed()
    size = {"num_teachers": study.parties.num_teachers, "num_classes": 10}
    labels = study.queries.labels or 0
    asked = study.queries.cap(2000, noise_at_hospitals=False)
    if study.aggregation.aggregator == "gnmax":
        return capped_cost_epsilon(GNMax(**size, sigma=sigma2).cost(labels, labels, Protection()), 1e-5)
    mechanism = ConfidentGNMax(**size, threshold=threshold, sigma1=sigma1, sigma2=sigma2)
    return capped_cost_epsilon(mechanism.cost(asked, labels, Protection()), 1e-5)


def test_many_teachers_keep_noise_in_proportion() -> None:
    usual = _open(250).resolve()
    assert usual.aggregation.fixed() == (200, 150, 40)
    assert (usual.queries.labels, usual.queries.max_queries) == (500, None)
    assert _open(1000).resolve().aggregation.fixed() == (800, 600, 160)


@pytest.mark.parametrize(("teachers", "aggregator"), [(100, "confident-gnmax"), (50, "gnmax")])
def test_fewer_teachers_are_planned_for(teachers: int, aggregator: str) -> None:
    study = _open(teachers, aggregation=Aggregation(aggregator=aggregator)).resolve()
    assert study.queries.labels is not None and study.queries.labels >= USEFUL_LABELS
    assert 0.85 * MOST_BY_DEFAULT < _epsilon(study) <= MOST_BY_DEFAULT
    in_proportion = replace(
        study, aggregation=Aggregation(aggregator=aggregator).resolve(teachers), queries=Queries(labels=500)
    )
    assert _epsilon(in_proportion) > 1.5 * MOST_BY_DEFAULT
    # What is written to the run directory leaves nothing open, and is read back as the same.
    assert study.resolve() == study


def test_a_given_budget_is_planned_for() -> None:
    study = _open(100, privacy=Privacy(epsilon=2.0)).resolve()
    assert 1.7 < _epsilon(study) <= 2.0


@pytest.mark.parametrize(
    "given",
    [
        {"aggregation": Aggregation(sigma2=7.0)},
        {"queries": Queries(labels=70)},
        {"queries": Queries(max_queries=70)},
        {"aggregation": Aggregation(aggregator="lnmax")},
    ],
)
def test_what_is_given_stays_and_nothing_is_planned_around_it(given: dict[str, object]) -> None:
    study = _open(50, **given).resolve()
    threshold, sigma1, sigma2 = study.aggregation.fixed()
    assert (threshold, sigma1) == (40, 30) and sigma2 in (7.0, 8.0)
    assert study.queries.labels in (70, 500)


def test_too_few_teachers_are_left_to_the_check_before_the_first_message() -> None:
    study = _open(12).resolve()
    assert study.aggregation.fixed() == (9.6, 7.2, 1.92) and _epsilon(study) > 100


def test_a_unit_that_sways_more_votes_has_noise_planned_for_it() -> None:
    parties = Parties(num_clients=100, teachers_per_client=5)
    record = replace(Study(), parties=parties).resolve()
    hospital = replace(Study(), parties=parties, privacy=Privacy(unit="hospital")).resolve()
    assert record.aggregation.fixed() == (400, 300, 80)
    assert hospital.aggregation.fixed()[2] > 1.5 * 80
