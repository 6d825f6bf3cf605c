"""Words on votes: what to expect of teachers, why ε is large, and what to do instead."""

from __future__ import annotations

import numpy as np
import pytest
from builders import THEIRS, make_terms, vary

from pate_fed.kinds.votes_words import expect_labels
from pate_fed.privacy.planning.vote_model import VoteModel, assumed_votes

TERMS = make_terms(num_classes=2, image_shape=(2,), teachers_per_client=2, sigma2=4.0)


def test_the_expectation_is_of_the_studys_own_noise_and_caps() -> None:
    votes = assumed_votes(0.9, 2, 20)
    plain = vary(TERMS, aggregator="gnmax")
    labels, right = expect_labels(plain, votes)
    assert labels == plain.labels and 0.8 < right < 1
    assert expect_labels(vary(plain, sigma2=40.0), votes)[1] < right - 0.1
    assert expect_labels(vary(plain, max_queries=50), votes)[0] == 50
    # Sampled: the same chance by drawing the noise itself.
    draw = np.random.default_rng(2).normal(scale=4.0, size=(200, *votes.shares.shape))
    won = (20 * votes.shares + draw).argmax(axis=-1) == votes.right
    assert right == pytest.approx(won.mean(), abs=0.01)


def test_a_threshold_answers_fewer_and_surer() -> None:
    sure = VoteModel(np.array([[1.0, 0.0]] * 5 + [[0.5, 0.5]] * 5), np.zeros(10, dtype=np.int64), "made up")
    checked = vary(TERMS, threshold=16.0, sigma1=1.0, labels=200, max_queries=100)
    labels, right = expect_labels(checked, sure)
    assert labels == 50 and right > 0.99
    assert expect_labels(vary(checked, aggregator="gnmax"), sure)[1] < 0.8


def test_what_is_expected_follows_the_accuracy_of_one_teacher() -> None:
    first, second = TERMS.words.together(0.9)
    assert first.startswith("about ") and "20 teachers" in first and "not known beforehand" in second
    assert list(TERMS.words.together(1.0)) == [
        "no expectation: such teachers are always right, or no better than chance"
    ]


def test_few_teachers_and_many_labels_are_other_reasons() -> None:
    assert "20 teachers can outvote only a little noise (noise of σ₂ = 4 votes)" in TERMS.words.why_large(9)
    many = make_terms(num_clients=200, least_clients=150, threshold=150.0, sigma1=50.0, sigma2=20.0)
    assert many.words.why_large(9).startswith("The reason: 9 answered queries with noise of σ₂ = 20 votes")


def test_what_to_do_instead_fits_the_federation() -> None:
    few = vary(TERMS, num_clients=4, least_clients=4).words.instead
    assert "8 teachers are too few" in few and "class-sums" in few
    assert "class-sums" not in vary(TERMS, num_clients=2, least_clients=2).words.instead
    assert "200 teachers can have" in make_terms(num_clients=200, epsilon=8.0).words.instead


def test_a_teacher_of_ones_own_is_named_by_its_noise_alone() -> None:
    assert THEIRS.name not in str(TERMS.words.settings("iid"))
    names = [name for name, value in TERMS.words.settings("iid") if value]
    assert names[:3] == ["Hospitals", "Teachers a hospital", "Private records"]
    no_check = dict(vary(TERMS, aggregator="gnmax").words.settings("iid"))
    assert no_check["Threshold T"] == no_check["Threshold noise σ₁"] == ""
