"""Words on class sums: once, and no word of votes or teachers."""

from __future__ import annotations

import pytest
from builders import make_scored_terms, make_sum_terms


@pytest.mark.parametrize("at_hospitals", [True, False])
def test_nothing_speaks_of_votes_or_teachers(at_hospitals: bool) -> None:
    words = make_sum_terms(at_hospitals=at_hospitals).words
    told = [
        *(
            text
            for _, text in (*words.trains, *words.leaves, *words.sees, *words.limits, *words.settings(""))
        ),
        *(f"{each.sees} {each.hidden} {each.by}" for each in words.against("noise", "Sums")),
        words.done("images", asked=1500, answered=1500),
        words.left("images"),
        words.why_large(1500),
        words.instead,
        *words.way,
        *words.together(0.9),
    ]
    assert not [text for text in told if "vote" in text.lower() or "teacher" in text.lower()]


def test_noise_is_named_where_hospitals_add_it() -> None:
    assert "mask and noise" in make_sum_terms().words.left("images")
    assert "noise" not in make_sum_terms(at_hospitals=False).words.left("images")


def test_sums_are_given_once_or_not_at_all() -> None:
    words = make_sum_terms().words
    assert words.given(20, left=True) == "its class sums once"
    assert words.given(20, left=False) == "answers to 0 queries"


@pytest.mark.parametrize("at_hospitals", [True, False])
def test_whoever_reads_exact_counts_is_said_to(at_hospitals: bool) -> None:
    """Theorem 7's table is the coordinator's where it adds the noise, and figures of it are everyone's."""
    words = make_scored_terms(at_hospitals=at_hospitals).words
    coordinator, _, public = (text for _, text in words.sees)
    exact = (
        "reads an exact table of the held-out records of all hospitals together: how many have a class, by "
        "the class that is said and by how sure it is, also where that is a single one."
    )
    assert (exact in coordinator) != at_hospitals and "It chooses the model's weights." in coordinator
    assert "Figures of the noisy counts are published" in public
    assert words.home.released.endswith("at most 3 times, and counts once")
    assert words.against("noise", "Sums")[0].sees.startswith("Noisy counts of held-out records, noisy sums")
    noise = dict(words.settings("records"))["Noise σ of counts"]
    sigma = 48_000 * 7**0.5 if at_hospitals else 120_000  # of 8 hospitals one may tell its own
    assert noise == f"{sigma / 20_000:.4g} records on every count"


def test_a_key_of_a_seed_is_not_said_to_stay_at_home() -> None:
    drawn, seeded = (
        dict(terms.words.leaves)["counts"] for terms in (make_scored_terms(), make_scored_terms(seed=3))
    )
    assert "by a key that never leaves" in drawn and "never leaves" not in seeded
    assert "a key that others can make, too: it follows from the study's seed" in seeded


def test_images_are_held_out_by_patient_wherever_they_name_them() -> None:
    by_record, by_patient = (
        dict(terms.words.leaves)["counts"]
        for terms in (make_scored_terms(), make_scored_terms(unit="patient"))
    )
    assert "20% of your records, or of patients where images name them, are left out" in by_record
    assert "20% of your patients are left out" in by_patient
