"""A study in words: every way that votes leave, in 80 columns; others' words steer no terminal."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from builders import THEIRS, make_label_terms, make_sum_terms, make_terms, own_map_terms, vary

from pate_fed.cli.terms import make_page
from pate_fed.config.sections import About
from pate_fed.data import Schema
from pate_fed.errors import InputError
from pate_fed.format import epsilon_text
from pate_fed.kinds.terms import Terms, worst_epsilon
from pate_fed.learning import TeacherSettings

SCHEMA = Schema(
    label="ill", classes=("no", "yes", "maybe"), columns=(("age", ()), ("sex", ("f", "m"))), patient="id"
)
TABLE = make_terms(
    study="lungs",
    image_shape=(3,),
    classes=SCHEMA.classes,
    table=SCHEMA,
    teachers_per_client=4,
    teacher=TeacherSettings(name="random-forest", trees=7),
    unit="patient",
    epsilon=3.0,
    sigma2=10.0,
    sigma1=15.0,
    labels=4,
    max_queries=4,
)


def _text(terms: Terms, **more: Any) -> str:
    lines = list(make_page(terms, **more).lines())
    assert max(map(len, lines)) <= 80
    return " ".join(" ".join(lines).split())


def test_what_a_hospital_must_know_stands_there() -> None:
    about = About(requester="Dr. Ada", purpose="triage", legal_basis="Art. 9", contact="ada@example")
    terms = replace(TABLE, about=about)
    text = _text(terms)
    assert terms.digest != TABLE.digest  # what is said of a study is agreed to with it
    public, _ = worst_epsilon(TABLE)
    for words in (
        "The study lungs",
        "requester Dr. Ada",
        "legal basis Art. 9",
        "retention not stated",
        "It comes to every hospital that took part. Who may use it: the hospitals that took part.",
        "2 columns, and no other: age, sex (f, m)",
        "The column ill",
        "The column id says which rows are one patient's",
        "no, yes, maybe",
        "2,000 public inputs",
        TABLE.pool_digest,
        terms.digest,
        "4 at your hospital, 40 in the study",
        "random-forest, of 7 trees each",
        f"At most ε = {epsilon_text(public)} at δ = 1e-5",
        "At most 4 of the pool's 2000",
        "At most 4 are released",
        "At least 8 of 10 must answer",
        "before ε = 3 against the public",
    ):
        assert words in text


def test_a_patient_teaches_one_teacher_only_where_a_patient_is_the_unit() -> None:
    assert "a part of your patients of about equal size. No patient teaches two." in _text(TABLE)
    assert "No record teaches two. A patient with several records may." in _text(vary(TABLE, unit="record"))
    assert TABLE.table is not None
    text = _text(vary(TABLE, table=replace(TABLE.table, patient=None), unit="record"))
    assert "No record teaches two. A patient with several records may." in text
    assert "No patient teaches two" not in text


def test_whose_word_the_cost_rests_on_stands_beside_it() -> None:
    assert f"NOT PROVEN: every ε rests on the word of {THEIRS.name}" in _text(own_map_terms())
    [claimed] = make_page(own_map_terms()).values["epsilon"]["claimed_by"]
    assert claimed["digest"] == THEIRS.digest
    assert "NOT PROVEN" not in _text(make_sum_terms())
    assert make_page(make_label_terms()).values["epsilon"]["claimed_by"] == []


@pytest.mark.parametrize(
    ("changes", "leaves", "sees", "cost"),
    [
        ({}, "without masks and without noise", "your hospital's own votes on every question", "No bound"),
        ({"secure_sum": True}, "under masks", "exact sum over at least 8 hospitals", "No bound"),
        (
            {"secure_sum": True, "noise_at": "hospitals", "sigma_party": 8.0, "colluders": 1},
            "adds noise first",
            "noisy sums over at least 8 hospitals",
            "coordinator At most ε = ",
        ),
    ],
)
def test_what_leaves_and_who_sees_it(changes: dict[str, Any], leaves: str, sees: str, cost: str) -> None:
    text = _text(vary(TABLE, **changes))
    assert leaves in text and sees in text and cost in text
    first = text[: text.index("WHO ASKS")]  # before all else: what stays, what leaves, who sees it
    assert "stays Records" in first and "never leave your house." in first and sees in first
    assert ("without masks" in text) is not bool(changes)


@pytest.mark.parametrize(
    ("adjacency", "colluders", "words"),
    [
        ("replace-one", 0, "no hospital will tell"),
        ("replace-one", 1, "at most 1 hospital may tell"),
        ("add-or-remove-one", 2, "at most 2 hospitals may tell"),
    ],
)
def test_what_an_ε_is_stated_for_is_shown_before_it_is_agreed_to(
    adjacency: str, colluders: int, words: str
) -> None:
    secret = {"secure_sum": True, "noise_at": "hospitals", "sigma_party": 8.0, "colluders": colluders}
    few = {"teachers_per_client": 1, "max_queries": 20, "epsilon": None}
    asks = vary(TABLE.asks, labels=8)  # a table has labels, too
    terms = vary(replace(TABLE, asks=asks), **secret, **few, adjacency=adjacency)
    text, values = _text(terms), make_page(terms).values["epsilon"]
    replaced = adjacency == "replace-one"
    assert f"One patient {'replaced' if replaced else 'added or removed'} (" in text
    assert f"Each ε reckons that {words} the coordinator what noise it added." in text
    assert [values[key] for key in ("unit", "adjacency", "colluders")] == ["patient", adjacency, colluders]


def test_nobody_is_reckoned_with_where_hospitals_add_no_noise() -> None:
    for terms in (TABLE, vary(TABLE, secure_sum=True), make_label_terms()):
        assert "reckons" not in _text(terms)
        assert make_page(terms).values["epsilon"]["colluders"] is None
    labels = make_page(make_label_terms()).values["epsilon"]
    assert (labels["unit"], labels["adjacency"]) == ("label", "replace-one")


def test_teachers_by_a_hospitals_size() -> None:
    sized = vary(TABLE, records_per_teacher=25)
    text = _text(sized)
    assert "4, or fewer by --teachers, chosen before your records are read. One for every 25 patients" in text
    assert "the number of your teachers, which the coordinator sees" in text
    assert "which the coordinator sees" not in _text(vary(sized, secure_sum=True))


@pytest.mark.parametrize("most", [1, 3])
def test_at_how_many_hospitals_a_patient_was_is_said_to_be_assumed(most: int) -> None:
    by_patient = vary(TABLE, unit="patient", hospitals_per_patient=most, epsilon=None)
    text, values = _text(by_patient), make_page(by_patient).values["epsilon"]
    at = "one of these hospitals only" if most == 1 else "up to 3 of these hospitals"
    assert f"for patients who were at {at}." in text and "is assumed, not checked" in text
    assert values["hospitals_per_patient"] == most
    assert "assumed, not checked" not in _text(vary(TABLE, unit="hospital"))


def test_images_and_seeded_noise() -> None:
    text = _text(make_terms(seed=4, study=""))
    assert "Images of 8×8×1" in text and "3 without names" in text and "NOT PRIVATE" in text
    assert "without a name" in text and "learns from all your records" in text


def test_private_labels() -> None:
    text = _text(make_label_terms())
    assert (
        "Your labels after randomised response" in text
        and "once" in text
        and "At most ε = 1 at δ = 0" in text
    )
    assert "Nothing is trained" in text


def test_a_text_that_would_steer_the_terminal_is_refused_or_made_harmless() -> None:
    with pytest.raises(InputError, match="printable"):
        About(purpose="good\x1b[2Kbad")
    with pytest.raises(InputError, match="500"):
        About(purpose="a" * 501)
    evil = make_terms(classes=("a\x1b[31m", "b\x07", "c\u202e"))
    page = make_page(evil)
    shown = "\n".join(page.lines())
    assert all(letter.isprintable() or letter == "\n" for letter in shown)
    assert "\x1b" not in json.dumps(page.values)


def test_long_lists_are_cut_on_the_page_alone() -> None:
    columns: tuple[tuple[str, tuple[str, ...]], ...]
    columns = tuple((f"column {number}", ()) for number in range(100))
    schema = Schema(label="ill", classes=("no", "yes"), columns=columns)
    forest = TeacherSettings(name="random-forest")
    terms = make_terms(image_shape=(100,), num_classes=2, table=schema, teacher=forest)
    assert "and 40 more" in _text(terms)
    assert len(make_page(terms).values["columns"]) == 100
    columns = (("town", tuple(f"town {number}" for number in range(500))),)
    schema = Schema(label="ill", classes=("no", "yes"), columns=columns)
    terms = make_terms(image_shape=(500,), num_classes=2, table=schema, teacher=forest)
    assert "and 440 more" in _text(terms) and "town 60" not in _text(terms)


@pytest.mark.parametrize("at_hospitals", [True, False])
def test_class_sums_are_told_without_a_word_of_votes(at_hospitals: bool) -> None:
    terms = make_sum_terms(at_hospitals=at_hospitals)
    text, values = _text(terms), make_page(terms).values
    for words in (
        "Nothing is trained at your hospital.",
        "Once, one table of 20 rows and 3 columns of whole numbers",
        "cd" * 32,
        "One record's part in the sum is cut to a fixed length.",
        "Your hospital gives its sums once.",
        "Made of the sums for 1500 inputs of the pool's 2000.",
        "One record replaced (its features in the sums",
    ):
        assert words in text
    assert "vote" not in text
    exact = "how many of all records have a class and a feature, also where that is a single one"
    assert (exact in text) is not at_hospitals
    assert ("Your machine adds noise first." in text) is at_hospitals
    assert ("No bound: what it sees has no noise." in text) is not at_hospitals
    assert values["sums"]["dimension"] == 20 and values["teachers"] is None
    assert "vote" not in values["epsilon"]["protects"]
    json.dumps(values)


def test_a_patients_rows_count_as_one_in_class_sums() -> None:
    schema = Schema(label="y", classes=("a", "b", "c"), columns=(("x", ()),), patient="id")
    terms = vary(make_sum_terms(), table=schema, image_shape=(1,), classes=schema.classes, unit="patient")
    assert "One record's part in the sum is cut to a fixed length." in _text(vary(terms, unit="record"))
    text = _text(terms)
    assert "One patient's part in the sum is cut to a fixed length." in text
    assert "The column y, by which features are summed." in text
