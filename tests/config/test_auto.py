"""`--aggregator auto`: what it takes, what that implies, and when it refuses."""

from __future__ import annotations

import argparse
import re
import tomllib
from dataclasses import replace
from typing import Any

import pytest

from pate_fed.config.defaults import Sums
from pate_fed.config.options import add_study_options, study_from_arguments
from pate_fed.config.sections import Aggregation, Data, Parties, Privacy, Queries
from pate_fed.config.study import Study, study_from_dict
from pate_fed.config.trust import TrustModel
from pate_fed.data import GlyphSettings
from pate_fed.errors import InputError
from pate_fed.learning import StudentSettings, TeacherSettings

SCHEMA = {"label": "y", "classes": ["no", "yes"], "columns": {"x": "number"}}
RANGED = {**SCHEMA, "ranges": {"x": [0, 9]}}


def _study(hospitals: int, **sections: Any) -> Study:
    return replace(Study(parties=Parties(num_clients=hospitals)), **sections).resolve()


def test_the_default_study_votes_with_the_noise_that_it_always_had() -> None:
    study = Study().resolve()
    assert study.aggregation == Aggregation(
        aggregator="confident-gnmax", threshold=200.0, sigma1=150.0, sigma2=40.0
    )
    assert "250 teachers are enough" in study.reason and not study.secrecy.secure_sum


@pytest.mark.parametrize("hospitals", [4, 8, 30])
def test_few_hospitals_sum_under_masks_with_their_own_noise(hospitals: int) -> None:
    study = _study(hospitals)
    assert study.aggregation.sums and study.secrecy.secure_sum and study.secrecy.at_hospitals
    assert study.student.name == "ridge" and study.privacy.epsilon == 1.0
    assert "--secure-sum --noise-at hospitals" in study.reason
    again = study_from_dict(tomllib.loads(study.to_toml()))
    assert again == study == again.resolve() and again.reason == study.reason
    assert replace(study, reason="") == study  # a run that an earlier release began is gone on with


def test_many_hospitals_vote_and_fewer_sum_where_that_is_estimated_to_be_better() -> None:
    assert _study(250).aggregation.aggregator == "confident-gnmax"
    assert _study(100).aggregation.sums and "votes in" in _study(100).reason
    strict = _study(100, privacy=Privacy(epsilon=0.3))
    assert strict.aggregation.sums and strict.privacy.epsilon == 0.3


@pytest.mark.parametrize(
    "sections",
    [
        {"aggregation": Aggregation(sigma2=5.0)},
        {"aggregation": Aggregation(threshold=5.0)},
        {"queries": Queries(labels=20)},
        {"queries": Queries(strategy="least-confident")},
        {"teacher": TeacherSettings(name="small-cnn")},
        {"privacy": Privacy(sanitise=True)},
    ],
)
def test_a_setting_of_votes_means_votes(sections: dict[str, Any]) -> None:
    study = _study(8, **sections)
    assert study.aggregation.aggregator == "confident-gnmax" and "is a setting of it" in study.reason


def test_a_setting_of_sums_means_sums_and_a_named_student_stays() -> None:
    assert _study(250, sums=Sums(dimension=50)).aggregation.sums
    assert _study(250, student=StudentSettings(name="ridge")).aggregation.sums
    named = study_from_dict({"parties": {"num_clients": 8}, "student": {"name": "pate++"}}).resolve()
    assert named.aggregation.sums and named.student.name == "pate++"


def test_a_name_is_taken_as_it_is() -> None:
    study = _study(8, aggregation=Aggregation(aggregator="gnmax"))
    assert study.aggregation.aggregator == "gnmax" and not study.reason


def test_records_of_hospitals_own_are_not_known_and_it_says_so() -> None:
    values = {"parties": {"num_clients": 4}, "data": {"pool": "p.csv", "table": SCHEMA}}
    study = study_from_dict(values).resolve()
    assert study.aggregation.sums and "how many records there are is not known" in study.reason
    assert study.student.name == "ridge" and study.teacher.name == "random-forest"


@pytest.mark.parametrize(
    ("study", "why"),
    [
        (_study, "needs 4 hospitals"),
        (lambda n: _study(n + 2, data=Data(glyph=GlyphSettings(private=12, classes=2))), "hides the sums"),
        (lambda n: _study(n + 2, privacy=Privacy(unit="hospital")), "hides the sums"),
    ],
)
def test_where_nothing_serves_it_says_what_would(study: Any, why: str) -> None:
    with pytest.raises(InputError, match=f"--aggregator auto: nothing serves .*{why}.*more hospitals"):
        study(2)


def test_teachers_that_are_not_trained_are_told_and_no_error() -> None:
    parser = argparse.ArgumentParser()
    add_study_options(parser)
    typed = ["--num-clients", "4", "--teachers-per-client", "5"]
    assert "no teachers are trained" in study_from_arguments(parser.parse_args(typed)).reason
    with pytest.raises(InputError, match="--teachers-per-client 5 would have no effect"):
        study_from_arguments(parser.parse_args([*typed, "--aggregator", "class-sums", "--secure-sum"]))


@pytest.mark.parametrize(
    ("sections", "rounds", "why"),
    [
        ({"data": {"dataset": "fashion-mnist"}}, 3, "60,000 records .* in 10 classes are enough"),
        ({"data": {"dataset": "fashion-mnist"}, "privacy": {"epsilon": 0.3}}, 0, "are too few"),
        ({"data": {"dataset": "cifar100"}}, 0, "in 100 classes are too few"),
        ({"data": {"pool": "p.csv", "table": SCHEMA}}, 0, "does not say how many records .*--records"),
        ({"data": {"pool": "p.csv", "table": SCHEMA}, "parties": {"records": 8140}}, 10, "32,560 records"),
        ({"data": {"pool": "p.csv", "table": SCHEMA}, "parties": {"records": 100}}, 0, "400 records .* few"),
        ({"data": {"pool": "p.csv", "table": SCHEMA}, "parties": {"records": 20_000}}, 0, "no room"),
        ({"data": {"table": RANGED}}, 0, "does not say how many records .*--records"),
        ({"data": {"table": RANGED}, "parties": {"records": 200}}, 0, "800 records .* few"),
        ({"data": {"table": RANGED}, "parties": {"records": 20_000}}, 3, "80,000 records .* enough"),
        ({"data": {"table": RANGED}, "parties": {"records": 200_000}}, 0, "no room"),
        ({"aggregation": {"sigma2": 5.0}}, 0, "--sigma2 is given"),
        ({"aggregation": {"sigma2": 5.0}, "privacy": {"epsilon": 3.0}}, 0, "--sigma2 is given"),
        ({"privacy": {"unit": "hospital"}, "sums": {"most_records": 5}}, 0, "whole hospital's sum"),
        ({"privacy": {"unit": "hospital"}, "parties": {"num_clients": 250}}, 3, "250 hospitals under noise"),
        ({"privacy": {"unit": "hospital"}, "parties": {"num_clients": 20}}, 0, "are few"),
        ({"sums": {"rounds": 0}}, 0, None),
        ({"sums": {"rounds": 2}}, 2, None),
    ],
)
def test_rounds_follow_from_what_is_known_of_records(
    sections: dict[str, dict[str, Any]], rounds: int, why: str | None
) -> None:
    sums = {"aggregation": {"aggregator": "class-sums"}, "secrecy": {"secure_sum": True}}
    values = {
        **sections,
        "parties": {"num_clients": 4, **sections.get("parties", {})},
        **{key: {**value, **sections.get(key, {})} for key, value in sums.items()},
    }
    study = study_from_dict(values).resolve()
    assert study.sums.rounds == rounds
    assert (re.search(f"^rounds {rounds}: .*{why}", study.reason) is not None) == (why is not None)
    again = study_from_dict(tomllib.loads(study.to_toml()))
    assert again == study == again.resolve()


def test_a_whole_hospitals_map_is_that_of_directions_where_records_are_known() -> None:
    whole = {"aggregation": Aggregation(aggregator="class-sums"), "secrecy": TrustModel(secure_sum=True)}
    whole["privacy"] = Privacy(unit="hospital")
    assert _study(250, **whole).sums.features == "directions"
    assert _study(250, **whole, sums=Sums(rounds=1)).sums == Sums(
        rounds=1, features="directions", scores=False
    )
    assert _study(250, **whole, sums=Sums(most_records=5)).sums.features is None
    assert _study(250, privacy=Privacy(unit="hospital")).aggregation.votes  # auto keeps to them
