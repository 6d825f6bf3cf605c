"""What is protected: sensitivities by brute force over all neighbours. On whose word an ε rests."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from pate_fed.errors import InputError
from pate_fed.privacy import Protection
from pate_fed.privacy.protection import (
    ADJACENCIES,
    FEATURE_MAP,
    MECHANISM,
    TEACHER,
    UNITS,
    Assumption,
    Assumptions,
    to_a_patient,
)
from pate_fed.structure.parts import PartIdentity


def histograms(votes: int, classes: int) -> list[tuple[int, ...]]:
    return [t for t in itertools.product(range(votes + 1), repeat=classes) if sum(t) == votes]


@pytest.mark.parametrize("moved", [1, 2, 3])
def test_sensitivity_of_moved_votes_is_the_largest_over_all_neighbours(moved: int) -> None:
    protection = Protection(unit="hospital", votes_moved=moved)
    rest = histograms(4, 3)
    own = histograms(moved, 3)
    _largest(protection, [(_add(r, a), _add(r, b)) for r in rest for a in own for b in own])


@pytest.mark.parametrize("moved", [1, 2, 3])
def test_sensitivity_of_votes_that_vanish_is_the_largest_over_all_neighbours(moved: int) -> None:
    protection = Protection(unit="hospital", adjacency="add-or-remove-one", votes_moved=moved)
    rest = histograms(4, 3)
    _largest(protection, [(r, _add(r, a)) for r in rest for a in histograms(moved, 3)])


def _add(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(first, second, strict=True))


def _largest(protection: Protection, pairs: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
    first, second = np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])
    move = np.abs(first - second)
    assert protection.l1 == move.sum(axis=1).max()
    assert protection.l2_squared == (move**2).sum(axis=1).max()
    assert protection.top == np.abs(first.max(axis=1) - second.max(axis=1)).max()


def test_a_record_added_or_removed_changes_a_teacher_that_goes_on_voting() -> None:
    kinds = [Protection(adjacency=adjacency) for adjacency in ("replace-one", "add-or-remove-one")]
    assert {(kind.l1, kind.l2_squared, kind.top) for kind in kinds} == {(2, 2, 1)}


@pytest.mark.parametrize(
    "change",
    [
        {"unit": "galaxy"},
        {"adjacency": "both"},
        {"votes_moved": 0},
        {"votes_moved": -1},
        {"votes_moved": 1.5},
        {"votes_moved": True},
        {"votes_moved": 10**10},
        {"hospitals": 0},
        {"hospitals": 2, "votes_moved": 2},  # of a record
        {"hospitals": 3, "unit": "patient", "votes_moved": 2},
    ],
)
def test_bad_protection_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(change))):
        Protection(**change)


def test_one_hospital_of_a_patient_is_written_as_ledgers_always_were() -> None:
    one = Protection(unit="patient")
    assert one.to_dict() == {"unit": "patient", "adjacency": "replace-one", "votes_moved": 1}
    three = Protection(unit="patient", votes_moved=6, hospitals=3)
    assert three.to_dict()["hospitals"] == 3
    assert (Protection(**one.to_dict()), Protection(**three.to_dict())) == (one, three)
    assert three.text() == "one patient replaced at each of up to 3 hospitals (up to 6 votes of a query move)"


def test_words_name_unit_and_adjacency() -> None:
    assert Protection().text() == "one record replaced (one vote of a query moves)"
    hospital = Protection(unit="hospital", adjacency="add-or-remove-one", votes_moved=4)
    assert hospital.text() == "one hospital added or removed (up to 4 votes of a query appear or disappear)"
    one = Protection(unit="hospital", adjacency="add-or-remove-one")
    assert one.text() == "one hospital added or removed (one vote of a query appears or disappears)"


PART = PartIdentity(name="theirs:make", version="1.2", digest="cd" * 32)


@pytest.mark.parametrize("kind", [MECHANISM, FEATURE_MAP, TEACHER])
def test_each_kind_says_whose_word_it_is_and_that_nothing_is_proven(kind: str) -> None:
    warning = Assumption(kind=kind, part=PART).warning
    assert "theirs:make 1.2" in warning and "cd" * 32 in warning and "not proven" in warning


def test_all_of_a_study_s_are_told_together() -> None:
    other = PartIdentity(name="others:map", version=None, digest="ef" * 32)
    both = Assumptions((Assumption(kind=MECHANISM, part=PART), Assumption(kind=FEATURE_MAP, part=other)))
    assert both and not Assumptions()
    assert both.short == "claimed by theirs:make and others:map, not proven"
    assert both.warning == "; ".join(one.warning for one in both.each)
    assert [one.part for one in both.at_hospitals] == [other]
    assert both.sources[1] == {
        "kind": FEATURE_MAP,
        "name": "others:map",
        "version": None,
        "digest": "ef" * 32,
    }


def test_another_kind_is_refused() -> None:
    with pytest.raises(InputError, match="kind"):
        Assumption(kind="student", part=PART)


@pytest.mark.parametrize("sees", [None, "every hospital's votes"])
@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("unit", [*UNITS, "label"])
def test_a_patient_is_told_in_one_sentence_who_is_protected_and_what_is_not(
    unit: str, adjacency: str, sees: str | None
) -> None:
    told = to_a_patient(unit=unit, adjacency=adjacency, hospitals=1, epsilon="2.5", sees=sees, private=True)
    assert told.endswith(".") and ". " not in told and "ε = 2.5 allows about" in told
    whose = {"record": "one single record of yours", "patient": "all your records at one of these hospitals"}
    whose |= {"hospital": "all records of one hospital, yours", "label": "the label of one single record"}
    assert whose[unit] in told
    assert ("used" in told) == (adjacency == "add-or-remove-one")
    treated = "someone who knows that you were treated at two or more of these hospitals can learn more"
    assert (treated in told) == (unit in ("patient", "hospital"))
    assert ("several records are yours" in told) == (unit == "record")
    assert ("and its coordinator," in told) == (sees is None)
    assert (f"the coordinator sees {sees}, which no ε covers" in told) == (sees is not None)


def test_a_patient_is_promised_nothing_where_nothing_holds() -> None:
    given: dict[str, Any] = {"unit": "patient", "adjacency": ADJACENCIES[0], "sees": None}
    more = to_a_patient(**given, hospitals=3, epsilon="1", private=True)
    assert "up to 3 of these hospitals" in more and "treated at more than 3 of these" in more
    for epsilon, private in (("1", False), (None, True)):
        told = to_a_patient(**given, hospitals=1, epsilon=epsilon, private=private)
        assert told.startswith("Nobody is pro") and "can learn" not in told
