"""Class sums in a study.toml: what follows from the data, what is implied, what is refused and why."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from pate_fed.config.defaults import SUMS_EPSILON, Sums
from pate_fed.config.study import Study, study_from_dict
from pate_fed.config.template import study_template
from pate_fed.data import Schema
from pate_fed.errors import InputError
from pate_fed.simulation import main

SCHEMA = Schema(label="y", classes=("a", "b"), columns=(("age", ()), ("sex", ("m", "f", "d"))))
BASE: dict[str, Any] = {"aggregation": {"aggregator": "class-sums"}, "secrecy": {"secure_sum": True}}


def _study(**more: Any) -> Study:
    return study_from_dict({**BASE, **more}).resolve()


def test_what_a_study_says_nothing_of_is_fixed_and_survives_its_text() -> None:
    study = _study(parties={"num_clients": 4, "teachers_per_client": 9, "records_per_teacher": 30})
    assert study.privacy.epsilon == SUMS_EPSILON
    assert study.student.name == "ridge"
    assert (study.parties.teachers_per_client, study.parties.records_per_teacher) == (1, None)
    assert study_from_dict(tomllib.loads(study.to_toml())).resolve() == study
    assert study_from_dict(tomllib.loads(study.to_toml())) == study


def test_noise_that_is_given_sets_no_budget_and_a_student_that_is_named_stays() -> None:
    study = _study(aggregation={"aggregator": "class-sums", "sigma2": 5.0}, student={"name": "encoder-head"})
    assert study.privacy.epsilon is None and study.aggregation.sigma2 == 5
    assert study.student.name == "encoder-head"


def test_ridge_learns_from_class_sums_alone() -> None:
    with pytest.raises(InputError, match=r"student\.name"):
        study_from_dict({"student": {"name": "ridge"}, "aggregation": {"aggregator": "gnmax"}})


def test_features_follow_from_the_data() -> None:
    assert Sums().of_inputs(None).name == "kernel"
    assert Sums(dimension=7, lattice=64).of_inputs(None).dimension == 7
    table = Sums(features="bins", bins=6, cuts=(("age", (30.0, 60.0)),)).of_inputs(SCHEMA)
    assert (table.name, table.columns, table.bins) == ("bins", (1, 3), 6)
    assert table.cuts == ((30.0, 60.0), ())
    assert Sums().of_inputs(SCHEMA).cuts == () and Sums().of_inputs(SCHEMA).name == "linear-and-kernel"


@pytest.mark.parametrize(
    ("sums", "schema", "named"),
    [
        (Sums(cuts=(("age", (1.0,)),)), None, "meant for a table, and this is none"),
        (Sums(cuts=(("size", (1.0,)),)), SCHEMA, "'size' is no column"),
        (Sums(cuts=(("sex", (1.0,)),)), SCHEMA, "'sex' is no column of numbers"),
    ],
)
def test_knots_belong_to_columns_of_numbers(sums: Sums, schema: Schema | None, named: str) -> None:
    with pytest.raises(InputError, match=named):
        sums.of_inputs(schema)


def test_knots_rise() -> None:
    with pytest.raises(InputError, match="rising"):
        Sums(cuts=(("age", (60.0, 30.0)),))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], ["--secure-sum", "only the sum over all hospitals"]),
        (["--secure-sum", "--sanitise"], ["--sanitise"]),
        (["--secure-sum", "--threshold", "4"], ["--threshold 4", "nothing is voted on"]),
        (["--secure-sum", "--labels", "40"], ["--labels 40", "no effect"]),
        (["--secure-sum", "--teacher", "deep-cnn"], ["--teacher deep-cnn", "no effect"]),
        (["--secure-sum", "--num-clients", "3"], ["--num-clients 3"]),
        (["--secure-sum", "--epsilon", "20"], ["--allow-weak-privacy", "a smaller --epsilon"]),
        (["--secure-sum", "--epsilon", "0.5", "--sigma2", "3"], ["--epsilon 0.5", "--sigma2"]),
    ],
)
def test_what_does_not_go_together_ends_with_a_reason(
    options: list[str], words: list[str], tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["--num-clients", "4", "--aggregator", "class-sums", "--backend", "inline", "--device", "cpu"]
    config = tmp_path / "study.toml"
    config.write_text("[data.glyph]\nclasses = 3\nprivate = 60\npublic = 40\n[sums]\ndimension = 5\n")
    run_dir = tmp_path / "run"
    assert main([*base, "--config", str(config), "--run-dir", str(run_dir), *options]) == 2
    told = capsys.readouterr().err
    assert all(word in told for word in words), told
    assert not run_dir.exists()


def test_a_new_study_names_every_setting_of_the_sums() -> None:
    text = study_template()
    start = text.index("[sums]")
    section = text[start : text.index("\n[", start + 1)]
    for name in (
        "features",
        "lattice",
        "dimension",
        "whitening",
        "bins",
        "cuts",
        "balanced",
        "rounds",
        "most_records",
    ):
        assert f"{name} =" in section
    assert study_from_dict(tomllib.loads(text)).sums == Sums()
