"""metrics.json keeps its contract: keys, nulls, and every ε rounded up; the outcome is one line."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import vary

from pate_fed.data import Schema
from pate_fed.errors import InputError
from pate_fed.privacy.protection import MEANING
from pate_fed.report.accuracy import Accuracy
from pate_fed.report.metrics import collect_versions, make_metrics, outcome_json, outcome_line, write_metrics
from pate_fed.report.result import Outcome, PrivacyFigures, RunResult
from pate_fed.runtime.console import nothing_spent

SCHEMA = {
    "status": str,
    "study": str,
    "num_clients": int,
    "num_teachers": int,
    "num_classes": int,
    "seed": None,
    "queries_asked": int,
    "queries_answered": int,
    "accuracy": {
        "labels": float,
        "labels_n": int,
        "labels_interval": list,
        "labels_majority": float,
        "student": float,
        "student_n": int,
        "student_interval": list,
        "majority": float,
        "balanced_accuracy": float,
        "balanced_accuracy_interval": list,
        "auc": None,
        "auc_interval": None,
        "sensitivity_at_90_specificity": None,
        "sensitivity_interval": None,
        "recall": {name: {"recall": float, "n": int, "interval": list} for name in "ABCDEFGHIJ"},
        "tested": dict.fromkeys(("kept", "not_asked", "left_out", "splits", "seen_unlabelled"), int),
    },
    "accuracy_do_not_publish": {
        "teacher_mean": float,
        "ensemble": float,
        "n": int,
        "ensemble_interval": list,
        "majority": float,
    },
    "privacy": {
        "delta": float,
        "unit": str,
        "adjacency": str,
        "student": {"data_independent": float, "data_dependent_do_not_publish": float, "sanitised": None},
        "coordinator": {"epsilon": None, "sees": str},
    },
    "seconds": {"teach": float, "vote": float, "aggregate": float, "student": float, "total": float},
    "peak_memory_mb": int,
    "versions": {"pate_fed": str, "flwr": str, "torch": str},
}


def assert_schema(value: object, schema: object) -> None:
    if isinstance(schema, dict):
        assert isinstance(value, dict)
        assert list(value) == list(schema)
        for key, inner in schema.items():
            assert_schema(value[key], inner)
    elif schema is None:
        assert value is None
    else:
        assert type(value) is schema


ALONE = f"{MEANING['patient']}, for patients who were at one of these hospitals only"


@pytest.mark.parametrize(
    ("unit", "patient", "said"),
    [
        ("patient", "id", {"unit_means": ALONE, "hospitals_per_patient": 1}),
        ("record", "id", {"unit_means": MEANING["record"]}),
        ("record", None, {}),
    ],
)
def test_what_the_unit_means_is_said_where_patients_are_named(
    unit: str, patient: str | None, said: dict[str, Any], run_result: RunResult
) -> None:
    schema = Schema(label="y", classes=("a", "b", "c"), columns=(("x", ()),), patient=patient)
    study = run_result.study
    terms = vary(study.terms, image_shape=(1,), table=schema, unit=unit)
    privacy = make_metrics(replace(run_result, study=replace(study, terms=terms)))["privacy"]
    assert privacy["unit"] == unit
    assert {key: privacy[key] for key in ("unit_means", "hospitals_per_patient") if key in privacy} == said


def test_the_keys_are_those_of_the_design(run_result: RunResult, tmp_path: Path) -> None:
    write_metrics(run_result, tmp_path / "metrics.json")
    assert_schema(json.loads((tmp_path / "metrics.json").read_text(encoding="utf-8")), SCHEMA)


def test_unknown_figures_are_null(run_result: RunResult) -> None:
    empty = Outcome(
        status="failed", accuracy=Accuracy(student=math.nan), privacy=PrivacyFigures(student=math.inf)
    )
    bare = replace(run_result, outcome=empty, releases=(), study=vary(run_result.study, versions={}))
    metrics = make_metrics(bare)
    assert set(metrics["accuracy"].values()) == {None}
    assert set(metrics["accuracy_do_not_publish"].values()) == {None}
    assert set(metrics["seconds"].values()) == {None}
    assert metrics["peak_memory_mb"] is None
    assert metrics["versions"] == {"pate_fed": None, "flwr": None, "torch": None}
    assert metrics["queries_asked"] == 0


def test_an_epsilon_without_bound_has_its_reason_beside_it(run_result: RunResult) -> None:
    privacy = PrivacyFigures(student=None, student_reason="no noise was added")
    metrics = make_metrics(replace(run_result, outcome=replace(run_result.outcome, privacy=privacy)))
    assert metrics["privacy"]["student"]["data_independent"] is None
    assert metrics["privacy"]["student"]["reason"] == "no noise was added"
    assert metrics["privacy"]["coordinator"] == {"epsilon": None, "sees": "every hospital's votes"}


def test_what_follows_from_private_votes_stands_apart(run_result: RunResult) -> None:
    metrics = make_metrics(run_result)
    private = metrics["accuracy_do_not_publish"]
    assert (private["teacher_mean"], private["ensemble"], private["n"]) == (0.623, 0.871, 3478)
    assert not {"teacher_mean", "ensemble", "n", "votes_n"} & set(metrics["accuracy"])
    assert metrics["accuracy"]["student_n"] == 1000 and metrics["accuracy"]["majority"] == 0.112
    low, high = metrics["accuracy"]["student_interval"]
    # statsmodels' proportion_confint(904, 1000, method="wilson"), to four digits.
    assert (low, high) == pytest.approx((0.8842, 0.9208), abs=1e-4)


def test_a_seed_is_told(run_result: RunResult) -> None:
    seeded = replace(run_result, study=vary(run_result.study, seed=0))
    assert make_metrics(seeded)["seed"] == 0
    assert " noise=seeded report=" in outcome_line(seeded) and "seeded" not in outcome_line(run_result)
    assert json.loads(outcome_json(seeded))["noise"] == "seeded" and "noise" not in outcome_json(run_result)


def test_a_delta_is_shown_in_three_digits_and_never_below_itself(run_result: RunResult) -> None:
    for delta, shown in ((1e-5, "1e-5"), (1 / 90_000, "1.12e-5"), (9.996e-6, "1e-5"), (2e-12, "2e-12")):
        result = replace(run_result, study=vary(run_result.study, delta=delta))
        assert f"δ={shown} " in outcome_line(result)
    for delta, shown in ((0.001, "0.001"), (0.5, "0.5"), (0.12341, "0.124")):
        result = replace(run_result, study=vary(run_result.study, delta=delta))
        assert f"δ={shown} " in outcome_line(result)


def test_metrics_and_line_round_up(run_result: RunResult) -> None:
    privacy = PrivacyFigures(
        student=2.00000001, data_dependent_do_not_publish=1.00000001, sanitised=1.50000001
    )
    result = replace(run_result, outcome=replace(run_result.outcome, privacy=privacy))
    assert make_metrics(result)["privacy"]["student"] == {
        "data_independent": 2.000001,
        "data_dependent_do_not_publish": 1.000001,
        "sanitised": 1.500001,
    }
    assert "ε=2.001 " in outcome_line(result)


def test_the_outcome_is_one_line(run_result: RunResult) -> None:
    line = outcome_line(run_result, Path("runs/a\nb/report.html"))
    labels = run_result.queries_answered
    assert line.startswith("SUCCESS  ε=")
    figure = "accuracy=0.904 n=1000 interval=0.884-0.921 majority=0.112"
    assert line.endswith(f" δ=1e-5 unit=record labels={labels} {figure} report=runs/a?b/report.html")
    assert len(line.splitlines()) == 1


def test_the_outcome_line_of_a_small_test_has_no_digits_that_it_does_not_know(run_result: RunResult) -> None:
    small = Accuracy(student=12 / 15, student_n=15, majority=8 / 15)
    line = outcome_line(replace(run_result, outcome=replace(run_result.outcome, accuracy=small)))
    assert " accuracy=0.80 n=15 interval=0.55-0.93 majority=0.53 " in line


def test_recall_has_every_class_by_its_name(run_result: RunResult) -> None:
    tested = Accuracy.of_student(np.array([0, 0, 2]), np.array([0, 2, 2]))
    result = replace(run_result, outcome=replace(run_result.outcome, accuracy=tested))
    found = make_metrics(result)["accuracy"]
    assert list(found["recall"]) == list("ABCDEFGHIJ")
    assert found["recall"]["C"]["recall"] == 0.5 and found["recall"]["C"]["n"] == 2
    assert found["recall"]["B"] == {"recall": None, "n": 0, "interval": None}
    assert found["balanced_accuracy"] == 0.75
    twins = replace(result, study=vary(result.study, classes=("x",) * 10))
    assert len(make_metrics(twins)["accuracy"]["recall"]) == 10


def test_the_outcome_line_without_figures(run_result: RunResult) -> None:
    bare = replace(run_result, outcome=Outcome(status="aborted", reason="stopped"), releases=())
    assert outcome_line(bare) == "ABORTED  ε=- δ=1e-5 unit=record labels=0 accuracy=- report=-"
    assert outcome_line(replace(bare, outcome=Outcome(status="success"))).startswith("SUCCESS  ε=unbounded ")


def test_the_outcome_as_json_has_the_same_fields(run_result: RunResult) -> None:
    text = outcome_json(run_result, Path("r/report.html"))
    values = json.loads(text)
    assert "\n" not in text
    assert values["status"] == "success" and values["report"] == "r/report.html"
    assert values["labels"] == run_result.queries_answered
    assert values["epsilon"] >= run_result.releases[-1].epsilon
    nothing = json.loads(nothing_spent("failed", "δ is missing", as_json=True))
    assert list(nothing) == list(values)
    assert (nothing["reason"], nothing["epsilon"], nothing["delta"]) == ("δ is missing", 0, None)
    begun = json.loads(nothing_spent("failed", "the port is taken", as_json=True, begun=True))
    assert (begun["epsilon"], begun["labels"]) == (None, None)


def test_writing_replaces_at_once_and_leaves_nothing_else(run_result: RunResult, tmp_path: Path) -> None:
    path = tmp_path / "metrics.json"
    path.write_text("old", encoding="utf-8")
    write_metrics(run_result, path)
    assert json.loads(path.read_text(encoding="utf-8"))["status"] == "success"
    assert [entry.name for entry in tmp_path.iterdir()] == ["metrics.json"]
    with pytest.raises(InputError, match="cannot be written"):
        write_metrics(run_result, tmp_path / "nowhere" / "metrics.json")


def test_versions_are_found_without_importing() -> None:
    assert set(collect_versions()) <= {"pate_fed", "flwr", "torch"}
    assert collect_versions()["pate_fed"]
