"""Noise, threshold and counts that a study leaves open: in proportion, or planned where that is dear."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pate_fed.config.defaults import MOST_BY_DEFAULT, USEFUL_LABELS
from pate_fed.config.sections import Aggregation, Parties, Privacy, Queries
from pate_fed.config.study import Study
from pate_fed.config.trust import TrustModel
from pate_fed.errors import InputError
from pate_fed.privacy import ConfidentGNMax, GNMax, LNMax, Protection, epsilon_of
from pate_fed.privacy.bounds.control import capped_cost_epsilon
from pate_fed.privacy.mechanisms.distributed import party_sigma
from pate_fed.privacy.mechanisms.events import hospital_noise

NOISY = TrustModel(secure_sum=True, noise_at="hospitals")


CONFIDENT = Aggregation(aggregator="confident-gnmax")


def _open(teachers: int, **sections: object) -> Study:
    return replace(Study(parties=Parties(num_clients=teachers)), **sections)  # type: ignore[arg-type]


def _asked(study: Study) -> int:
    a_label = study.aggregation.queries_a_label(study.parties.num_teachers)
    return study.queries.cap(2000, a_label=a_label)


def _epsilon(study: Study) -> float:
    """What the study guarantees against all who see labels, by optimal control."""
    threshold, sigma1, sigma2 = study.aggregation.fixed()
    size = {"num_teachers": study.parties.num_teachers, "num_classes": 10}
    labels, name = study.queries.labels or 0, study.aggregation.aggregator
    if name == "confident-gnmax":
        mechanism = ConfidentGNMax(**size, threshold=threshold, sigma1=sigma1, sigma2=sigma2)
        return capped_cost_epsilon(mechanism.cost(_asked(study), labels, Protection()), 1e-5)
    winner = GNMax(**size, sigma=sigma2) if name == "gnmax" else LNMax(**size, scale=sigma2)
    return capped_cost_epsilon(winner.cost(labels, labels, Protection()), 1e-5)


def _coordinators_epsilon(study: Study) -> float:
    """The same against a coordinator that sees the noisy totals of the fewest hospitals."""
    least, colluders = study.least_clients, study.secrecy.colluders or 0
    share = party_sigma(study.aggregation.fixed()[2], parties=least, colluders=colluders)
    seen = hospital_noise(sigma_party=share, survivors=least, colluders=colluders)
    cost = seen.cost(study.queries.max_queries or 0, Protection(), num_classes=10)
    assert cost is not None
    return epsilon_of(cost, 1e-5)


def test_many_teachers_keep_noise_in_proportion() -> None:
    usual = _open(250).resolve()
    assert usual.aggregation.fixed() == (200, 150, 40)
    assert (usual.queries.labels, usual.queries.max_queries) == (500, None)
    assert _open(1000).resolve().aggregation.fixed() == (800, 600, 160)


@pytest.mark.parametrize(("teachers", "aggregator"), [(100, "confident-gnmax"), (50, "gnmax"), (80, "lnmax")])
def test_fewer_teachers_are_planned_for(teachers: int, aggregator: str) -> None:
    study = _open(teachers, aggregation=Aggregation(aggregator=aggregator)).resolve()
    assert study.queries.labels is not None and study.queries.labels >= USEFUL_LABELS
    assert 0.99 * MOST_BY_DEFAULT < _epsilon(study) <= MOST_BY_DEFAULT
    in_proportion = replace(
        study, aggregation=Aggregation(aggregator=aggregator).resolve(teachers), queries=Queries(labels=500)
    )
    assert _epsilon(in_proportion) > 1.5 * MOST_BY_DEFAULT
    # What is written to the run directory leaves nothing open, and is read back as the same.
    assert study.resolve() == study


@pytest.mark.parametrize("teachers", [100, 200])
def test_a_given_budget_is_planned_for(teachers: int) -> None:
    study = _open(teachers, privacy=Privacy(epsilon=2.0), aggregation=CONFIDENT).resolve()
    assert 0.99 * 2.0 < _epsilon(study) <= 2.0
    assert study.queries.labels is not None and study.queries.labels >= USEFUL_LABELS


def test_a_budget_that_the_usual_noise_keeps_to_changes_nothing() -> None:
    usual = _open(250, privacy=Privacy(epsilon=3.0)).resolve()
    assert usual.aggregation.fixed() == (200, 150, 40) and _epsilon(usual) <= 3.0


@pytest.mark.parametrize("aggregator", ["confident-gnmax", "gnmax"])
@pytest.mark.parametrize("epsilon", [None, 3.0])
def test_hospitals_noise_is_planned_against_who_sees_its_totals(
    aggregator: str, epsilon: float | None
) -> None:
    aggregation = Aggregation(aggregator=aggregator)
    study = _open(100, aggregation=aggregation, secrecy=NOISY, privacy=Privacy(epsilon=epsilon)).resolve()
    budget = epsilon or MOST_BY_DEFAULT
    assert 0.99 * budget < _coordinators_epsilon(study) <= budget
    assert study.queries.labels is not None and study.queries.labels >= USEFUL_LABELS
    assert study.resolve() == study


def test_no_more_is_planned_than_can_be_bounded() -> None:
    leaving = Privacy(unit="hospital", adjacency="add-or-remove-one")
    study = _open(250, secrecy=NOISY, privacy=leaving).resolve()
    assert study.aggregation.sigma2 == 40.0 and study.queries.max_queries is None
    # Whoever starts it is told in words that there is no bound.
    with pytest.raises(InputError, match="takes its noise along"):
        seen = hospital_noise(sigma_party=4.0, survivors=200, colluders=25)
        seen.cost(1, Protection(unit="hospital", adjacency="add-or-remove-one"), num_classes=10)


def test_the_cap_on_queries_follows_the_threshold() -> None:
    usual = Aggregation().resolve(250)
    assert usual.queries_a_label(250) == 2.5 == Aggregation().resolve(1000).queries_a_label(1000)
    assert (
        Queries(labels=500).cap(9000, a_label=2.5) == 1250
        and Queries(labels=500).cap(800, a_label=2.5) == 800
    )
    assert Queries(labels=3, max_queries=7).cap(9000, a_label=2.5) == 7
    found = [
        Aggregation(
            aggregator="confident-gnmax", threshold=at * 250, sigma1=30.0, sigma2=40.0
        ).queries_a_label(250)
        for at in (0.1, 0.5, 0.7, 0.9, 3.0)
    ]
    assert found == sorted(found) and found[0] == 1.5 and found[1] < found[2] < found[3] and found[-1] == 4.0
    for other in ("gnmax", "lnmax", "interactive-gnmax"):
        assert Aggregation(aggregator=other).resolve(250).queries_a_label(250) == 4.0
    assert usual.queries_a_label(250, noise_at_hospitals=True) == 2.0


def test_a_planned_cap_above_the_pool_is_no_slip_of_the_hand() -> None:
    planned = _open(100, aggregation=CONFIDENT).resolve()
    assert planned.is_planned and not _open(250).resolve().is_planned
    assert not replace(planned, queries=replace(planned.queries, max_queries=1999)).is_planned


@pytest.mark.parametrize(
    "given",
    [
        {"aggregation": Aggregation(sigma2=7.0)},
        {"queries": Queries(labels=70)},
        {"queries": Queries(max_queries=70)},
    ],
)
def test_what_is_given_stays_and_nothing_is_planned_around_it(given: dict[str, object]) -> None:
    study = _open(50, **given).resolve()
    threshold, sigma1, sigma2 = study.aggregation.fixed()
    assert (threshold, sigma1) == (40, 30) and sigma2 in (7.0, 8.0)
    assert study.queries.labels in (70, 500)


def test_too_few_teachers_are_left_to_the_check_before_the_first_message() -> None:
    study = _open(12, aggregation=Aggregation(aggregator="confident-gnmax")).resolve()
    assert study.aggregation.fixed() == (9.6, 7.2, 1.92) and _epsilon(study) > 60


def test_a_unit_that_sways_more_votes_has_noise_planned_for_it() -> None:
    parties = Parties(num_clients=60, teachers_per_client=2)
    alone = replace(Study(), parties=Parties(num_clients=120), privacy=Privacy(epsilon=8.0)).resolve()
    votes = replace(Study(), parties=parties, aggregation=CONFIDENT)
    hospital = replace(votes, privacy=Privacy(unit="hospital", epsilon=8.0)).resolve()
    record = replace(votes, privacy=Privacy(epsilon=8.0)).resolve()
    assert alone.aggregation.fixed() == (96, 72, 19.2)
    assert record.aggregation.fixed()[2] > 1.5 * 19.2  # of two teachers both, as one is replaced
    assert hospital.aggregation.fixed() == record.aggregation.fixed()
