"""Which public inputs test a student: none that taught it its label, and as many as there are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import make_rows, vary
from numpy.typing import NDArray

from pate_fed.config.sections import Data
from pate_fed.config.study import Study, study_from_dict
from pate_fed.data import Dataset
from pate_fed.learning import StudentSettings
from server.learning import choose_test_part, measure_student

Ints = NDArray[np.int64]

TABLE = study_from_dict(
    {
        "data": {
            "dataset": "table",
            "pool": "pool.csv",
            "table": {"label": "y", "classes": ["no", "yes"], "columns": {"a": "number"}},
        },
        "aggregation": {"aggregator": "gnmax"},
    }
).resolve()
IMAGES = Study(
    data=Data(dataset="images", pool="pool.npz", classes=("no", "yes")),
    student=StudentSettings(name="supervised"),
).resolve()


def _asked(count: int, of: int) -> Ints:
    return np.random.default_rng(1).permutation(of)[:count]


def _places(study: Study, dataset: Dataset, asked: Ints) -> tuple[set[int], set[int], set[int]]:
    part = choose_test_part(study, dataset, asked=asked)
    found = [part.kept, part.not_asked, *part.left_out]
    places = np.concatenate(found).tolist()
    assert len(set(places)) == len(places)
    left_out = {int(place) for each in part.left_out for place in each}
    return set(part.kept.tolist()), set(part.not_asked.tolist()), left_out


def test_every_row_of_a_small_pool_tests_a_tables_student() -> None:
    """189 rows as in the demonstration: the last tenth, 19 rows, was all that tested its student."""
    dataset, asked = make_rows(189, 170), _asked(150, 170)
    kept, not_asked, left_out = _places(TABLE, dataset, asked)
    assert kept == set(range(170, 189)) and left_out == set(asked.tolist())
    assert not_asked == set(range(170)) - left_out


@pytest.mark.parametrize(
    ("changes", "rest"),
    [({}, True), ({"strategy": "least-confident", "rounds": 2}, False)],
)
def test_a_student_that_is_long_to_train_is_tested_on_what_was_not_asked(
    changes: dict[str, Any], rest: bool
) -> None:
    """What a student chose to ask leaves the easier inputs: these say too much."""
    dataset, asked = make_rows(300, 200), _asked(60, 200)
    kept, not_asked, left_out = _places(vary(IMAGES, **changes), dataset, asked)
    assert kept == set(range(200, 300)) and not left_out
    assert not_asked == (set(range(200)) - set(asked.tolist()) if rest else set())


def test_what_a_tables_student_chose_to_ask_tests_as_well() -> None:
    study = vary(TABLE, strategy="least-confident", rounds=2)
    kept, not_asked, left_out = _places(study, make_rows(189, 170), _asked(150, 170))
    assert len(kept) + len(not_asked) + len(left_out) == 189


def test_where_a_students_predictions_became_labels_no_label_can_be_left_out() -> None:
    study = vary(TABLE, aggregator="interactive-gnmax", threshold=1.0, sigma1=1.0, rounds=2)
    kept, not_asked, left_out = _places(study, make_rows(189, 126), _asked(100, 126))
    assert (len(kept), len(not_asked), left_out) == (63, 26, set())


@pytest.mark.parametrize("known", [True, False])
def test_a_part_that_is_named_to_test_does_so_alone(known: bool) -> None:
    """A known data set's, as in the papers, or what data.num_queries leaves."""
    named = vary(TABLE, num_queries=150)
    study = Study(student=StudentSettings(name="encoder-head")).resolve() if known else named
    kept, *others = _places(study, make_rows(189, 150), _asked(100, 150))
    assert kept == set(range(150, 189)) and others == [set(), set()]
    everything = vary(TABLE, num_queries=189)
    kept, not_asked, left_out = _places(everything, make_rows(189, 189), _asked(150, 189))
    assert (len(kept), len(not_asked), len(left_out)) == (0, 39, 150)


def test_a_thousand_test_inputs_need_no_others() -> None:
    kept, *others = _places(TABLE, make_rows(10_000, 9_000), _asked(500, 9_000))
    assert len(kept) == 1000 and others == [set(), set()]
    kept, not_asked, left_out = _places(TABLE, make_rows(3_000, 2_700), _asked(500, 2_700))
    assert (len(kept), len(not_asked), len(left_out)) == (300, 2_200, 0)


def test_an_input_that_equals_one_that_was_asked_about_never_tests_the_student() -> None:
    dataset, asked = make_rows(60, 54), np.arange(20)
    rows = dataset.public_images.copy()
    rows[30], rows[57] = rows[3], rows[4]
    twins = replace(dataset, public_images=rows, public_labels=(rows[:, 0] > 0).astype(np.int64))
    kept, not_asked, _ = _places(TABLE, twins, asked)
    assert 57 not in kept and 30 not in not_asked
    part = choose_test_part(TABLE, twins, asked=asked)
    for one, other in ((3, 30), (4, 57)):
        (holding,) = [each for each in part.left_out if one in each]
        assert other in holding
    assert 57 not in choose_test_part(vary(TABLE, num_queries=54), twins, asked=asked).kept


def test_another_row_of_a_patient_who_was_asked_about_never_tests_the_student() -> None:
    """Four rows a patient, as 0 1 2 3, 0 1 2 3: each patient is within one part, or was not asked about."""
    patients = np.arange(100) // 4
    dataset = replace(make_rows(100, 90), public_patients=patients)
    asked = np.arange(0, 60, 4)  # one row of each of 15 patients
    part = choose_test_part(TABLE, dataset, asked=asked)
    assert set(part.not_asked.tolist()) == set(range(60, 90)) and len(part.kept) == 10
    assert sum(map(len, part.left_out)) == 60
    of = [set(patients[each].tolist()) for each in part.left_out]
    assert sum(map(len, of)) == len(set().union(*of)) == 15
    kept = choose_test_part(vary(IMAGES, num_queries=90), dataset, asked=np.array([1, 89])).kept
    assert set(kept.tolist()) == set(range(92, 100))  # patient 22 has rows 88 to 91


def test_only_inputs_with_a_true_label_test() -> None:
    dataset = make_rows(100, 100)
    half = np.where(np.arange(100) % 2 == 0, dataset.public_labels, -1)
    places = _places(TABLE, replace(dataset, public_labels=half), _asked(80, 100))
    assert set().union(*places) == set(range(0, 100, 2))
    none = replace(dataset, public_labels=np.full(100, -1))
    found = measure_student(TABLE, none, asked=_asked(80, 100), predict=_never, predict_left_out=_never)
    assert found.student is None and found.student_n is None


def _never(_: Any) -> Any:
    raise AssertionError


def test_the_student_is_told_no_label_of_what_it_is_tested_on() -> None:
    """It knows its labels by heart, and all of them are wrong: nothing of that may show."""
    dataset, asked = make_rows(100, 90), _asked(70, 90)
    by_heart = {float(dataset.public_images[place, 0]): 1 - dataset.public_labels[place] for place in asked}

    def sign(rows: NDArray[Any], known: dict[float, int]) -> Ints:
        return np.array([known.get(float(row), int(row > 0)) for row in rows[:, 0]], dtype=np.int64)

    def left_out(parts: tuple[Ints, ...]) -> tuple[Ints, ...]:
        found = []
        for part in parts:
            hidden = {float(dataset.public_images[place, 0]) for place in part}
            others = {row: label for row, label in by_heart.items() if row not in hidden}
            found.append(sign(dataset.public_images[part], others))
        return tuple(found)

    found = measure_student(
        TABLE,
        dataset,
        asked=asked,
        predict=lambda rows: sign(rows, by_heart),
        predict_left_out=left_out,
    )
    assert (found.student, found.student_n) == (1.0, 100)
    tested = found.tested
    assert (tested.kept, tested.not_asked, tested.left_out, tested.splits) == (10, 20, 70, 10)
    assert tested.seen_unlabelled == 0  # a forest sees labelled rows alone


def test_probabilities_of_the_published_student_are_held_against_the_truth() -> None:
    dataset, asked = make_rows(300, 200), _asked(60, 200)
    right = lambda rows: (rows[:, 0] > 0).astype(np.int64)  # noqa: E731
    sure = lambda rows: np.where(np.eye(2)[right(rows)] == 1, 0.9, 0.1)  # noqa: E731
    found = measure_student(
        IMAGES, dataset, asked=asked, predict=right, predict_proba=sure, predict_left_out=_never
    )
    assert found.calibration is not None and found.calibration.count == found.student_n
    assert found.calibration.error == pytest.approx(0.1)


def test_what_a_network_has_seen_without_a_label_is_told() -> None:
    dataset, asked = make_rows(300, 200), _asked(60, 200)
    predict = lambda rows: (rows[:, 0] > 0).astype(np.int64)  # noqa: E731
    found = measure_student(IMAGES, dataset, asked=asked, predict=predict, predict_left_out=_never)
    assert (found.tested.kept, found.tested.not_asked, found.tested.seen_unlabelled) == (100, 140, 140)


def test_inputs_of_which_no_student_could_be_taught_do_not_count() -> None:
    dataset, asked = make_rows(30, 27), np.arange(20)

    def left_out(parts: tuple[Ints, ...]) -> tuple[Ints, ...]:
        return tuple(np.full(len(part), -1 if place else 0) for place, part in enumerate(parts))

    predict = lambda rows: (rows[:, 0] > 0).astype(np.int64)  # noqa: E731
    found = measure_student(TABLE, dataset, asked=asked, predict=predict, predict_left_out=left_out)
    assert found.tested.left_out == 2 and found.student_n == 12
