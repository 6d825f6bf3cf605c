"""study.toml and the command line: what is read is what was written, and every mistake is named."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pate_fed.config.sections import Aggregation, Parties, Privacy
from pate_fed.config.study import Study, load_study, study_from_dict
from pate_fed.errors import InputError
from pate_fed.simulation import main

names = st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), max_size=100).filter(str.isprintable)


@example(name="", seed=None, clients=100, epsilon=None, delta=1e-6, alpha=1.0)  # noise is planned
@example(name="s", seed=3, clients=1, epsilon=1e-6, delta=1e-12, alpha=1.0)
@settings(deadline=None, max_examples=30)
@given(
    name=names,
    seed=st.none() | st.integers(0, 2**63 - 1),
    clients=st.integers(250, 5000),
    epsilon=st.none() | st.floats(1e-6, 1e6),
    delta=st.floats(1e-5, 0.5),
    alpha=st.floats(0.01, 100),
)
def test_a_resolved_study_survives_toml(
    name: str, seed: int | None, clients: int, epsilon: float | None, delta: float, alpha: float
) -> None:
    study = Study(
        name=name,
        seed=seed,
        parties=Parties(num_clients=clients, partition=f"dirichlet:{alpha}"),
        aggregation=Aggregation(aggregator="confident-gnmax"),
        privacy=Privacy(epsilon=epsilon, delta=delta),
    ).resolve()
    assert study_from_dict(tomllib.loads(study.to_toml())) == study


def test_seeds_differ_between_uses_and_studies() -> None:
    study = Study()
    seeds = {study.seed_for("teacher", party, k) for party in range(50) for k in range(3)}
    assert len(seeds) == 150
    assert study.seed_for("a") != replace(study, seed=1).seed_for("a")
    assert Study().seed_for("a") == Study(seed=0).seed_for("a")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"partis": {}}, ["partis", "parties"]),
        ({"parties": {"num_clint": 3}}, ["num_clint", "num_clients"]),
        ({"parties": {"num_clients": 0}}, ["--num-clients", "0", "from 1 to 1,000,000"]),
        ({"parties": {"num_clients": -3}}, ["--num-clients", "-3"]),
        ({"parties": {"num_clients": True}}, ["--num-clients", "whole number"]),
        ({"parties": {"num_clients": 2.5}}, ["--num-clients", "2.5"]),
        ({"parties": {"partition": "dirichlet:0"}}, ["--partition", "dirichlet:0.5"]),
        ({"parties": {"partition": "iid:3"}}, ["--partition", "iid:3"]),
        ({"parties": {"quorum": 0}}, ["--quorum"]),
        (
            {"parties": {"num_clients": 10**6, "teachers_per_client": 10**5}},
            ["--teachers-per-client", "1,000"],
        ),
        ({"parties": 3}, ["parties in study.toml is 3", "a table of settings"]),
        ({"study": 3}, ["study in study.toml is 3"]),
        ({"study": {"parties": 3}}, ["study.parties in study.toml: no such key"]),
        ({"seed": 3}, ["seed in study.toml: stands in [study]"]),
        ({"data": {"table": {"lable": "x"}}}, ["data.table.lable", "did you mean label?"]),
        ({"data": {"dataset": "glyf"}}, ["--dataset", "did you mean glyph"]),
        ({"data": {"glyph": {"classes": 1}}}, ["data.glyph", "classes"]),
        ({"data": {"glyph": {"klasses": 10}}}, ["klasses", "classes"]),
        ({"teacher": {"name": "small-cn"}}, ["small-cn", "small-cnn"]),
        ({"student": {"epochs": 0}}, ["epochs"]),
        ({"aggregation": {"sigma1": 0.0}}, ["--sigma1", "1e-6 to 1e9"]),
        ({"aggregation": {"sigma2": float("nan")}}, ["--sigma2", "nan"]),
        ({"aggregation": {"sigma2": float("inf")}}, ["--sigma2", "inf"]),
        ({"aggregation": {"threshold": float("inf")}}, ["--threshold"]),
        ({"privacy": {"delta": 0.0}}, ["--delta", "above 0"]),
        ({"privacy": {"delta": 1.0}}, ["--delta", "below 1"]),
        ({"privacy": {"epsilon": -1}}, ["--epsilon", "-1"]),
        ({"privacy": {"unit": "patient"}}, ["privacy.unit", "record"]),
        ({"queries": {"labels": 0}}, ["--labels"]),
        ({"study": {"seed": -1}}, ["--seed"]),
        ({"study": {"name": "a\nb"}}, ["study.name"]),
        ({"engine": {"backend": "rai"}}, ["--backend", "did you mean ray"]),
        ({"engine": {"gpus_per_client": 1.5}}, ["--gpus-per-client"]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_mistakes_are_named(values: dict[str, object], words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        study_from_dict(values)
    for word in words:
        assert word in str(caught.value)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.toml.*No such file"):
        load_study(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[parties\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"bad\.toml: not valid TOML"):
        load_study(tmp_path / "bad.toml")


def test_a_used_run_directory_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics.json").write_text("{}", encoding="utf-8")
    assert main(["--run-dir", str(tmp_path)]) == 2
    assert "already holds a run" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.json"]


def test_a_file_as_run_directory_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert main(["--run-dir", str(tmp_path / "file")]) == 2
    assert "a file of that name" in capsys.readouterr().err


def test_a_study_from_an_editor_that_marks_its_text_is_read(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_bytes(b"\xef\xbb\xbf[parties]\r\nnum_clients = 7\r\n")
    assert load_study(tmp_path / "study.toml") == {"parties": {"num_clients": 7}}


@pytest.mark.parametrize("named", [True, False])
def test_a_table_implies_its_teacher_and_student(named: bool) -> None:
    schema = {"label": "ill", "classes": ["0", "1"], "columns": {"age": "number"}}
    data = {"pool": "pool.csv", "table": schema} | ({"dataset": "table"} if named else {})
    study = study_from_dict({"data": data, "teacher": {"trees": 7}})
    assert study.data.dataset == "table"
    assert (study.teacher.name, study.teacher.trees) == ("random-forest", 7)
    assert study.student.name == "forest"
    boosted = study_from_dict({"data": data, "teacher": {"name": "gradient-boosting"}})
    assert boosted.teacher.name == "gradient-boosting"
    with pytest.raises(InputError, match="for tables one of random-forest"):
        study_from_dict({"data": data, "teacher": {"name": "small-cnn"}})
    with pytest.raises(InputError, match="for images"):
        study_from_dict({"data": {"dataset": "glyph", "table": schema}, "student": {"name": "forest"}})
