"""Terms are held to types, ranges and sane limits wherever they are built or read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from builders import (
    THEIRS,
    make_noisy_terms,
    make_scored_terms,
    make_sum_terms,
    make_table_terms,
    make_terms,
    own_map_terms,
    vary,
)

from pate_fed.data import Schema
from pate_fed.errors import InputError, IntegrityError
from pate_fed.kinds.terms import Terms, worst_epsilon
from pate_fed.learning import TeacherSettings
from pate_fed.privacy import LedgerTerms
from pate_fed.structure import entries
from pate_fed.structure.parts import PartIdentity

PLAIN, NOISY, TABLE = make_terms(), make_noisy_terms(), make_table_terms()


def _leaves(values: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in values.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from _leaves(value, (*path, key))


def _with(terms: Terms, path: tuple[str, ...], value: object) -> str:
    whole = json.loads(terms.to_json())
    table = whole
    for key in path[:-1]:
        table = table[key]
    table[path[-1]] = value
    return json.dumps(whole)


def _kinds(terms: Terms, path: tuple[str, ...]) -> tuple[Any, ...]:
    owner: Any = terms
    for key in path[:-1]:
        owner = getattr(owner, key)
    return next(entry for entry in entries(type(owner)) if entry.name == path[-1]).kinds


WRONG: dict[type, list[Any]] = {
    bool: [0, 1, "true", [], 0.5],
    int: ["3", 2.5, True, [3], {}, -1, 10**19, float("nan")],
    float: ["x", True, [1.0], {}, 10**12, -(10**12), 10**400, float("nan"), float("inf")],
    str: [3, True, ["x"], {}, 2.5, "x" * 1001],
}
OTHERS = [3, "x", True, 2.5, ["x", 3], [None], {"x": 3}]


@pytest.mark.parametrize("terms", [NOISY, TABLE], ids=["votes", "table"])
def test_a_wrong_value_of_any_field_is_refused(terms: Terms) -> None:
    for path in _leaves(json.loads(terms.to_json())):
        for wrong in WRONG.get(_kinds(terms, path)[0], OTHERS):
            with pytest.raises(IntegrityError):
                pytest.fail(f"{path}: {Terms.from_json(_with(terms, path, wrong))}")


@pytest.mark.parametrize("terms", [NOISY, TABLE], ids=["votes", "table"])
def test_a_field_that_is_left_out_is_refused(terms: Terms) -> None:
    """Both sides would fill in defaults of their own release."""
    for path in _leaves(json.loads(terms.to_json())):
        whole = json.loads(terms.to_json())
        table = whole
        for key in path[:-1]:
            table = table[key]
        del table[path[-1]]
        with pytest.raises(IntegrityError):
            pytest.fail(f"{path}: {Terms.from_json(json.dumps(whole))}")


def test_colluders_are_a_number_where_hospitals_add_the_noise() -> None:
    """Open, they would be one in ten by the study and none in every ε."""
    with pytest.raises(InputError, match="colluders"):
        vary(NOISY, colluders=None)


@pytest.mark.parametrize(
    "changes",
    [
        {"sigma2": "x"},
        {"teacher": TeacherSettings(name="os:system")},  # code that nobody could have refused
        {"teacher_part": PartIdentity(name="theirs:make", digest="cd" * 32)},
        {
            "teacher": TeacherSettings(name="os:system"),
            "teacher_part": PartIdentity(name="theirs:make", digest="cd" * 32),
        },
        {"unit": "galaxy"},
        {"delta": 7},
        {"delta": 0.0},
        {"unit": "label"},
        {"trees": 10**9},
        {"teachers_per_client": 10**9},
        {"num_clients": 10**9},
        {"num_clients": 10**6, "teachers_per_client": 10**4},
        {"pool_size": 10**12},
        {"num_classes": 10**9},
        {"num_classes": 1},
        {"image_shape": ()},
        {"image_shape": (10**6, 10**6, 3)},
        {"image_shape": (1, 1, 1, 1)},
        {"image_shape": (8, 0, 1)},
        {"least_clients": 11},
        {"least_clients": 0},
        {"sigma1": None},
        {"sigma_party": 3.0},
        {"noise_at": "hospitals", "secure_sum": True},
        {"noise_at": "hospitals", "secure_sum": True, "sigma_party": 3.0, "colluders": 8},
        {"classes": ("a", "b")},
        {"pool_digest": "../../etc"},
        {"encoder": "x"},
        {"seed": -1},
        {"epsilon": float("inf")},
        {"aggregator": "argmax"},
        {"table": Schema(label="y", classes=("a", "b", "c"), columns=(("x", ()),))},
    ],
    ids=str,
)
def test_nobody_builds_wrong_terms(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError) as told:
        make_terms(**changes)
    assert "is meant is meant" not in str(told.value)


def test_terms_survive_and_any_change_shows_in_their_digest() -> None:
    assert Terms.from_json(PLAIN.to_json()) == PLAIN
    for change in (
        {"sigma1": 3.5},
        {"pool_digest": "cd" * 32},
        {"epsilon": 1.0},
        {"delta": 1e-6},
        {"study": "t"},
    ):
        assert vary(PLAIN, **change).digest != PLAIN.digest


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "null", '{"study": 1}', PLAIN.to_json()[:-1] + ',"extra":1}']
)
def test_malformed_terms_are_refused(text: str) -> None:
    with pytest.raises(IntegrityError):
        Terms.from_json(text)


OWN = vary(make_terms(), teacher=TeacherSettings(name=THEIRS.name), teacher_part=THEIRS)
HOSPITAL: dict[str, Any] = {"unit": "hospital"}


@pytest.mark.parametrize(
    ("terms", "apart", "together"),
    [
        (make_terms(), [], []),
        (make_terms(teachers_per_client=4), [], []),
        (make_sum_terms(), [], []),
        (OWN, [], ["teacher"]),
        (vary(OWN, teachers_per_client=4), ["teacher"], ["teacher"]),
        (vary(OWN, teachers_per_client=4, **HOSPITAL), [], ["teacher"]),
        (vary(OWN, teachers_per_client=4, adjacency="add-or-remove-one"), ["teacher"], ["teacher"]),
        (vary(OWN, teachers_per_client=2), [], ["teacher"]),  # one that is replaced may change both
        (own_map_terms(), ["feature map"], ["feature map"]),
        (own_map_terms(most_units=5, **HOSPITAL), [], ["feature map"]),
    ],
)
def test_ε_rests_on_code_that_could_carry_a_record_to_what_the_unit_does_not_move(
    terms: Terms, apart: list[str], together: list[str]
) -> None:
    assert [each.kind for each in terms.assumptions().each] == apart
    assert [each.kind for each in terms.assumptions(together=True).each] == together
    assert bool(terms.assumptions()) is bool(apart)
    made = terms.ledger_terms(noise="n", private=True, together=True)
    assert [each.kind for each in made.assumptions.each] == together
    assert ("assumed" in made.to_dict()) is bool(together)  # ledgers of other studies are as they were
    assert LedgerTerms.from_dict(made.to_dict()) == made


def test_hardly_any_noise_is_a_large_epsilon_and_no_fault() -> None:
    """As a page says it of confirmed hospitals alone: a chance that underflows divides by 0."""
    terms = make_scored_terms()
    terms = replace(terms, asks=replace(terms.asks, first=1, count=1024), sigma_party=2400.0)
    told = replace(terms, secrecy=replace(terms.secrecy, colluders=terms.least_clients - 1))
    _, coordinator = worst_epsilon(told)
    assert coordinator is not None and 150 < coordinator < 200
