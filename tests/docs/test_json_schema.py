"""The JSON schema of study.toml allows what a study may hold, and refuses what it may not."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from json_schema import json_schema, study_schema

from clients.policy import Policy
from pate_fed.config.study import Study
from pate_fed.config.template import study_template
from pate_fed.data import Schema
from pate_fed.errors import InputError


def validator(schema: dict[str, Any]) -> Any:
    """Of a schema that is one. Imported here: its grammars take two seconds, in each worker that collects."""
    from jsonschema import Draft202012Validator

    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@cache
def of_studies() -> Any:
    return validator(study_schema())


def faults(values: dict[str, Any]) -> list[str]:
    return [error.json_path for error in of_studies().iter_errors(values)]


def test_it_is_a_schema_and_takes_whole_studies(tmp_path: Path) -> None:
    schema = Schema(label="outcome", classes=("well", "ill"), columns=(("age", ()), ("sex", ("f", "m"))))
    for text in (
        Study().resolve().to_toml(),
        study_template(name="ours"),
        study_template(name="ours", schema=schema, num_clients=4),
    ):
        assert faults(tomllib.loads(text)) == []


def test_every_file_of_the_documents_fits() -> None:
    root = Path(__file__).parents[2]
    blocks = [
        block.split("```")[0]
        for page in (root / "README.md", root / "deploy" / "README.md", *(root / "docs").rglob("*.md"))
        for block in page.read_text(encoding="utf-8").split("```toml\n")[1:]
    ]
    policy = validator(json_schema(Policy, title="policy"))
    assert len(blocks) > 3
    for values in map(tomllib.loads, blocks):
        if (
            "tool" not in values and "columns" not in values
        ):  # a pyproject.toml, how a hospital's file is read
            assert not faults(values) or not list(policy.iter_errors(values)), values


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ({"parties": {"num_clients": 0}}, "$.parties.num_clients"),
        ({"parties": {"num_clients": "many"}}, "$.parties.num_clients"),
        ({"parties": {"quorum": 0}}, "$.parties.quorum"),
        ({"privacy": {"delta": 1}}, "$.privacy.delta"),
        ({"student": {"name": "pate+++"}}, "$.student.name"),
        ({"data": {"dataset": "mnst"}}, "$.data.dataset"),
        ({"stduent": {}}, "$"),
        ({"study": {"seed": -1}}, "$.study.seed"),
        ({"seed": 1}, "$"),
    ],
)
def test_it_refuses_what_a_study_refuses(values: dict[str, Any], path: str) -> None:
    from pate_fed.config.study import study_from_dict

    assert faults(values) == [path]
    with pytest.raises(InputError):
        study_from_dict(values)


def test_a_policy_s_schema() -> None:
    policy = validator(json_schema(Policy, title="policy"))
    assert not list(policy.iter_errors({"plain_votes": True, "epsilon_public": 3, "trusted": {"a": "1f"}}))
    assert [error.json_path for error in policy.iter_errors({"plain_votes": 1})] == ["$.plain_votes"]


def test_parts_of_one_s_own_are_named() -> None:
    named = {"data": {"dataset": "my_pkg.data:load"}, "teacher": {"name": "my_models:make"}}
    assert faults(named) == []
