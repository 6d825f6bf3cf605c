"""How many of a hospital's teachers one record can sway, held against what the ledger charges for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from builders import make_terms, vary

from pate_fed.config.sections import Parties
from pate_fed.data import Schema, split_by_patient
from pate_fed.data.table import read_table
from pate_fed.privacy import Protection

TEACHERS, RECORDS = 5, 60
TERMS = make_terms(teachers_per_client=TEACHERS)


def _charged(adjacency: str, teachers: int = TEACHERS) -> Protection:
    terms = vary(TERMS, adjacency=adjacency, teachers_per_client=teachers)
    return terms.ledger_terms(noise="n", private=True).protection


def _swayed(before: tuple[list[int], list[int]], after: tuple[list[int], list[int]]) -> int:
    """Teachers whose records differ; a hospital's file is (records, patients), row by row."""

    def parts(records: list[int], patients: list[int]) -> list[list[int]]:
        dealt = split_by_patient(np.arange(len(records)), np.array(patients), num_teachers=TEACHERS, seed=3)
        return [sorted(records[row] for row in part) for part in dealt]

    return sum(one != other for one, other in zip(parts(*before), parts(*after), strict=True))


RECORDS_OF_ALL = list(range(RECORDS))
SCHEMA = Schema(label="outcome", classes=("well", "ill"), columns=(("age", ()),), patient="patient")
ALONE = list(range(RECORDS))  # every record another patient's
TOGETHER = [row // 3 for row in range(RECORDS)]  # three records a patient


@pytest.mark.parametrize("patients", [ALONE, TOGETHER])
@pytest.mark.parametrize("row", [0, 17, RECORDS - 1])
def test_a_replaced_record_sways_one_teacher_and_one_vote_is_charged(patients: list[int], row: int) -> None:
    other = [-1 if place == row else record for place, record in enumerate(RECORDS_OF_ALL)]
    assert _swayed((RECORDS_OF_ALL, patients), (other, patients)) == 1
    assert _charged("replace-one").votes_moved == 1


@pytest.mark.parametrize("patient", [0, 7, 19])
@pytest.mark.parametrize("count", [1, 2, 11])
def test_all_records_of_a_patient_sway_one_teacher_however_many_others_replace_them(
    patient: int, count: int
) -> None:
    kept = [(record, one) for record, one in zip(RECORDS_OF_ALL, TOGETHER, strict=True) if one != patient]
    # The others' rows move in the file, and the patient's stand elsewhere in it.
    records, patients = zip(*[(-1 - number, patient) for number in range(count)], *kept, strict=True)
    assert _swayed((RECORDS_OF_ALL, TOGETHER), (list(records), list(patients))) == 1


def test_a_patient_s_rows_in_a_table_move_no_other_patient(tmp_path: Path) -> None:
    def parts(*rows: str) -> list[set[str]]:
        path = tmp_path / "own.csv"
        path.write_text("patient,age,outcome\n" + "".join(f"{row}\n" for row in rows), encoding="utf-8")
        own = read_table(path, SCHEMA, labelled=True)
        dealt = split_by_patient(np.arange(len(rows)), own.patients, num_teachers=3, seed=3)
        return [{rows[row] for row in part} for part in dealt]

    others = [f"p{number},{number},well" for number in range(1, 12)]
    before = parts("p0,50,well", *others, "p0,51,ill")
    after = parts(*others, "p0,52,ill")  # p0's first row is gone: in the order of rows p0 would be the last
    assert sum(one != other for one, other in zip(before, after, strict=True)) == 1


@pytest.mark.parametrize("patients", [ALONE, TOGETHER])
@pytest.mark.parametrize("patient", [0, 7, 19])
def test_a_patient_more_or_less_sways_several_teachers_and_all_are_charged(
    patients: list[int], patient: int
) -> None:
    kept = [(record, one) for record, one in zip(RECORDS_OF_ALL, patients, strict=True) if one != patient]
    records, others = zip(*kept, strict=True)
    swayed = _swayed((RECORDS_OF_ALL, patients), (list(records), list(others)))
    assert swayed > 1
    protection = _charged("add-or-remove-one")
    assert swayed <= protection.votes_moved == TEACHERS
    assert (protection.l2_squared, protection.votes_vanish) == (2 * TEACHERS**2, False)


def test_with_one_teacher_a_record_sways_one_whatever_it_does() -> None:
    for adjacency in ("replace-one", "add-or-remove-one"):
        assert _charged(adjacency, teachers=1).votes_moved == 1


@pytest.mark.parametrize("adjacency", ["replace-one", "add-or-remove-one"])
def test_teachers_by_size_sway_no_more_votes_than_are_charged(adjacency: str) -> None:
    parties = Parties(teachers_per_client=TEACHERS, records_per_teacher=10)

    def votes(patients: list[int], number: int) -> list[list[int]]:
        teachers = parties.teachers_for(len(set(patients)))
        rows = np.arange(len(patients))
        dealt = split_by_patient(rows, np.array(patients), num_teachers=teachers, seed=3)
        return [
            sorted((patients[row], number if patients[row] == 0 else 0) for row in part) for part in dealt
        ]

    moved = _charged(adjacency).votes_moved
    for count in range(9, 62):  # around every size at which the number of teachers changes
        patients = list(range(count))
        if adjacency == "replace-one":
            before, after = votes(patients, 1), votes(patients, 2)
            assert len(before) == len(after)
            assert sum(one != other for one, other in zip(before, after, strict=True)) == 1 <= moved
        else:
            before, after = votes(patients, 1), votes(patients[1:], 1)
            # Every teacher may change, and one may be gone: the totals move by no more than K votes twice.
            assert max(len(before), len(after)) <= moved


def test_the_number_of_teachers_follows_from_patients_alone() -> None:
    parties = Parties(teachers_per_client=4, records_per_teacher=25)
    assert [parties.teachers_for(count) for count in (1, 25, 49, 50, 123, 294)] == [1, 1, 1, 2, 4, 4]
    assert Parties(teachers_per_client=4).teachers_for(1) == 4
