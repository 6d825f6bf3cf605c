"""How many of a hospital's teachers one unit can sway, held against what the ledger charges for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import make_terms, vary
from numpy.typing import NDArray

from clients.kinds.votes import count_votes, fixed_votes, teacher_paths, train_missing
from clients.local import local_site
from clients.site import Site
from clients.state_dir import LocalSettings
from pate_fed.config.sections import Parties
from pate_fed.config.study import study_from_dict
from pate_fed.data import Schema, split_among_teachers
from pate_fed.data.table import read_table
from pate_fed.kinds.terms import Terms, worst_epsilon
from pate_fed.learning import TeacherSettings
from pate_fed.privacy import Protection
from pate_fed.structure import to_plain

PATIENTS = 60
KEYS = [bytes([number]) * 32 for number in range(8)]
SCHEMA = Schema(label="outcome", classes=("well", "ill"), columns=(("age", ()),), patient="patient")
TERMS = make_terms()


def charged(adjacency: str, teachers: int, unit: str = "patient", hospitals: int = 1) -> Protection:
    terms = vary(TERMS, adjacency=adjacency, teachers_per_client=teachers, unit=unit)
    terms = vary(terms, hospitals_per_patient=hospitals)
    return terms.ledger_terms(noise="n", private=True).protection


def parts_of(names: list[Any], records: list[int], *, teachers: int, key: bytes) -> list[list[int]]:
    """What each teacher learns from, of a file with these records, each of the unit with this name."""
    dealt = split_among_teachers(np.arange(len(records)), np.array(names), num_teachers=teachers, key=key)
    return [[records[row] for row in part] for part in dealt]


def swayed(before: list[list[int]], after: list[list[int]]) -> int:
    return sum(one != other for one, other in zip(before, after, strict=True))


# A patient.


@pytest.mark.parametrize("teachers", [2, 5, 10])
@pytest.mark.parametrize("each", [1, 3])
def test_another_person_in_a_patient_s_place_changes_the_old_one_s_teacher_and_the_new_one_s(
    teachers: int, each: int
) -> None:
    """The other has another number, which stands elsewhere among all; nobody else's teacher changes."""
    numbers = [7 * patient for patient in range(PATIENTS) for _ in range(each)]
    records, found = list(range(len(numbers))), set()
    for key in KEYS:
        before = parts_of(numbers, records, teachers=teachers, key=key)
        for patient in (0, 7 * 17, 7 * 59):
            for other in (-5, 200, 10_000):
                others = [other if number == patient else number for number in numbers]
                new = [-1 - row if numbers[row] == patient else row for row in records]
                found.add(swayed(before, parts_of(others, new, teachers=teachers, key=key)))
    assert found == {1, 2}
    assert charged("replace-one", teachers).votes_moved == 2


@pytest.mark.parametrize("teachers", [2, 5, 10])
def test_a_patient_who_comes_or_goes_changes_one_teacher(teachers: int) -> None:
    numbers = [patient // 3 for patient in range(PATIENTS * 3)]
    records = list(range(len(numbers)))
    for key in KEYS:
        before = parts_of(numbers, records, teachers=teachers, key=key)
        for patient in (0, 7, 59):
            kept = [row for row in records if numbers[row] != patient]
            after = parts_of([numbers[row] for row in kept], kept, teachers=teachers, key=key)
            assert swayed(before, after) == 1
    protection = charged("add-or-remove-one", teachers)
    assert (protection.votes_moved, protection.l2_squared, protection.votes_vanish) == (1, 2, False)


def test_a_patient_s_number_in_a_table_follows_from_no_other_patient(tmp_path: Path) -> None:
    def parts(*rows: str) -> list[list[str]]:
        path = tmp_path / "own.csv"
        path.write_text("patient,age,outcome\n" + "".join(f"{row}\n" for row in rows), encoding="utf-8")
        own = read_table(path, SCHEMA, labelled=True)
        dealt = split_among_teachers(np.arange(len(rows)), own.patients, num_teachers=5, key=KEYS[3])
        return [[rows[row] for row in part] for part in dealt]

    others = [f"p{number},{number},well" for number in range(1, 60)]
    before = parts("p0,50,well", *others, "p0,51,ill")
    for name in ("p0", "a", "p17x", "z"):  # the first, the last, or one in between
        after = parts(*others, f"{name},52,ill")
        assert 1 <= sum(one != other for one, other in zip(before, after, strict=True)) <= 2


# A record.


@pytest.mark.parametrize("teachers", [2, 5, 10])
def test_another_record_changes_the_old_one_s_teacher_and_the_new_one_s_wherever_it_stands(
    teachers: int,
) -> None:
    rng = np.random.default_rng(1)
    inputs, labels = rng.integers(0, 256, (PATIENTS, 4, 4, 1), dtype=np.uint8), np.arange(PATIENTS) % 3

    def parts(inputs: NDArray[Any], labels: NDArray[Any], key: bytes) -> list[list[bytes]]:
        dealt = split_among_teachers(np.arange(len(labels)), inputs, labels, num_teachers=teachers, key=key)
        return [sorted(inputs[row].tobytes() + bytes([labels[row]]) for row in part) for part in dealt]

    found, gone = set(), set()
    for key in KEYS:
        before = parts(inputs, labels, key)
        for row in (0, 30, 59):
            other = rng.integers(0, 256, (1, 4, 4, 1), dtype=np.uint8)
            rest = np.delete(inputs, row, axis=0), np.delete(labels, row)
            for new in (np.concatenate([rest[0], other]), np.concatenate([other, rest[0]])):  # sorted anew
                label = [rest[1], [1]] if new[-1].tobytes() == other.tobytes() else [[1], rest[1]]
                after = parts(new, np.concatenate(label), key)
                found.add(sum(one != two for one, two in zip(before, after, strict=True)))
            after = parts(*rest, key)
            gone.add(sum(one != two for one, two in zip(before, after, strict=True)))
    assert found == {1, 2} and gone == {1}
    assert charged("replace-one", teachers, "record").votes_moved == 2
    assert charged("add-or-remove-one", teachers, "record").votes_moved == 1


# What is charged.


@pytest.mark.parametrize("adjacency", ["replace-one", "add-or-remove-one"])
def test_with_one_teacher_nothing_is_charged_more(adjacency: str) -> None:
    for unit in ("record", "patient", "hospital"):
        assert charged(adjacency, 1, unit).votes_moved == 1
    assert [charged(adjacency, teachers, "hospital").votes_moved for teachers in (2, 5)] == [2, 5]


@pytest.mark.parametrize(("adjacency", "each"), [("replace-one", 2), ("add-or-remove-one", 1)])
def test_a_patient_at_several_hospitals_moves_its_teachers_at_each(adjacency: str, each: int) -> None:
    for hospitals in (1, 2, 3):
        protection = charged(adjacency, 5, hospitals=hospitals)
        assert (protection.votes_moved, protection.hospitals) == (each * hospitals, hospitals)


def test_ε_is_larger_where_one_is_replaced_and_smaller_where_one_comes_or_goes() -> None:
    alone = worst_epsilon(TERMS)[0]
    assert alone is not None
    several = vary(TERMS, teachers_per_client=4)
    replaced = worst_epsilon(several)[0]
    comes = worst_epsilon(vary(several, adjacency="add-or-remove-one"))[0]
    whole = worst_epsilon(vary(several, unit="hospital"))[0]
    assert replaced is not None and comes is not None and whole is not None
    assert comes == alone < replaced < whole


# The key, the number of teachers, and parts without records.


def _site(folder: Path, terms: Terms, *, patients: int = 20, teachers: int | None = None) -> Site:
    path, pool = folder / "own.csv", folder / "pool.csv"
    rows = "".join(f"p{n % patients},{n},{'ill' if n % 2 else 'well'}\n" for n in range(2 * patients))
    path.write_text("patient,age,outcome\n" + rows, encoding="utf-8")
    pool.write_text("age\n" + "".join(f"{n}\n" for n in range(100)), encoding="utf-8")
    settings = LocalSettings(
        hospital="north", data=str(path), state_dir=folder / "state", pool=pool, teachers=teachers
    )
    return local_site(settings).under(terms)


def _table_terms(**more: Any) -> Terms:
    table = vary(TERMS, image_shape=(1,), table=SCHEMA, classes=SCHEMA.classes, num_classes=2)
    forest = TeacherSettings(name="random-forest", trees=3)
    return vary(vary(table, teacher=forest, secure_sum=True, unit="patient"), **more)


def test_the_key_is_the_hospital_s_own_and_stays_with_its_state(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    terms = _table_terms(teachers_per_client=4)
    one, other = (_site(tmp_path / name, terms) for name in ("a", "b"))
    first = one.teacher_parts()
    assert all(map(np.array_equal, first, _site(tmp_path / "a", terms).teacher_parts()))
    assert not all(map(np.array_equal, first, other.teacher_parts()))
    kept = tmp_path / "a" / "state" / "teachers.key"
    assert len(kept.read_bytes()) == 32 and kept.stat().st_mode & 0o777 == 0o600
    seeded = [_site(tmp_path / name, vary(terms, seed=5)) for name in ("a", "b")]  # one name, one seed
    assert all(map(np.array_equal, *(site.teacher_parts() for site in seeded)))


def test_a_hospital_deals_its_file_as_a_simulation_of_all_files_does(tmp_path: Path) -> None:
    """With a seed, also where another file has patients of the same names before its own."""
    terms = vary(_table_terms(teachers_per_client=4), seed=5)
    own = _site(tmp_path, terms)
    other = tmp_path / "other.csv"
    other.write_text("patient,age,outcome\np0,1,ill\np1,2,well\n", encoding="utf-8")
    study = study_from_dict(
        {
            "study": {"seed": 5},
            "parties": {"num_clients": 2, "teachers_per_client": 4},
            "privacy": {"unit": "patient", "allow_weak": True},
            "data": {
                "dataset": "table",
                "pool": str(tmp_path / "pool.csv"),
                "private": [str(other), str(tmp_path / "own.csv")],
                "table": to_plain(SCHEMA),
            },
        }
    )
    simulated = Site(party="own", number=1, study=study, state_dir=tmp_path / "simulated", simulated=True)
    named = replace(own, party="own")  # a simulated party is called as its file
    begins = len(simulated.dataset.private_labels) - len(named.dataset.private_labels)
    dealt = [(part - begins).tolist() for part in simulated.teacher_parts()]
    assert dealt == [part.tolist() for part in named.teacher_parts()] and sum(map(bool, dealt)) > 1


def test_the_number_of_teachers_follows_from_no_record(tmp_path: Path) -> None:
    parties = Parties(teachers_per_client=4, records_per_teacher=25)
    assert [parties.proposed_teachers(count) for count in (1, 25, 49, 50, 123, 294)] == [1, 1, 1, 2, 4, 4]
    assert Parties(teachers_per_client=4).proposed_teachers(1) == 4
    terms = _table_terms(teachers_per_client=4, records_per_teacher=5)
    for patients in (2, 20, 40):
        for ready, teachers in ((None, 4), (2, 2), (9, 4)):
            site = _site(tmp_path, terms, patients=patients, teachers=ready)
            assert len(site.teacher_parts()) == site.num_teachers == teachers
            assert sorted(np.concatenate(site.teacher_parts()).tolist()) == list(range(2 * patients))


def test_a_teacher_without_records_votes_by_a_rule_of_its_own(tmp_path: Path) -> None:
    """Its part is empty, or has one patient: its vote moves, and no other."""
    site = _site(tmp_path, _table_terms(teachers_per_client=8), patients=2)
    empty = [not len(part) for part in site.teacher_parts()]
    assert sum(empty) >= 6
    train_missing(site, encoder=None, taught=lambda _: None, anew=lambda _: None)
    inputs = site.dataset.public_images[:40]
    votes = count_votes(site, inputs)
    assert (votes.sum(axis=1) == 8).all() and all(path.exists() for path in teacher_paths(site))
    fixed = np.zeros_like(votes)
    for number in np.flatnonzero(empty):
        fixed[np.arange(40), fixed_votes(inputs, number, 2)] += 1
    left = votes - fixed
    assert (left >= 0).all() and (left.sum(axis=1) == 8 - sum(empty)).all()
    again = replace(site, state_dir=tmp_path / "again")  # by another key, of the same name
    again.state_dir.mkdir()
    train_missing(again, encoder=None, taught=lambda _: None, anew=lambda _: None)
    assert (count_votes(again, inputs).sum(axis=1) == 8).all()


def test_fixed_votes_follow_from_input_and_teacher_alone_and_spread_over_classes() -> None:
    inputs = np.arange(3000, dtype=np.float64)[:, None]
    found = [fixed_votes(inputs, number, 3) for number in range(4)]
    for votes in found:
        assert np.bincount(votes).min() > 900
    assert np.array_equal(fixed_votes(inputs[::-1], 2, 3), found[2][::-1])
    agree = np.mean(found[0] == found[1])
    assert 0.28 < agree < 0.39
