"""What a hospital would gain: its own model by cross-validation, and the labels that may be expected."""

from __future__ import annotations

import numpy as np
import pytest
from builders import make_terms, vary

from pate_fed.cli.gain import expect_labels, gain_lines
from pate_fed.data import Rows, Schema
from pate_fed.learning import TeacherSettings
from pate_fed.privacy.planning.vote_model import VoteModel, assumed_votes

SCHEMA = Schema(label="ill", classes=("no", "yes"), columns=(("age", ()), ("dose", ())))
TERMS = make_terms(
    num_classes=2,
    image_shape=(2,),
    table=SCHEMA,
    classes=SCHEMA.classes,
    teachers_per_client=2,
    teacher=TeacherSettings(name="random-forest", trees=5),
    sigma2=4.0,
)


def _rows(count: int, patients: int) -> Rows:
    stream = np.random.default_rng(0)
    labels = np.arange(count) % 2
    inputs = stream.normal(size=(count, 2)) + 3 * labels[:, None]
    return Rows(inputs=inputs, labels=labels, patients=np.arange(count) % patients)


def test_its_own_model_is_tested_on_every_record_once() -> None:
    rows = _rows(60, 60)
    lines = list(gain_lines(TERMS, rows, [np.arange(30), np.arange(30, 60)]))
    assert lines[0].startswith("  alone") and " of 60 right (" in lines[0] and "majority 50 %)" in lines[0]
    assert int(lines[0].split(" of 60")[0].split()[-1]) > 54  # 3 deviations apart
    assert lines[2].startswith("  a teacher") and " right of 60: " in lines[2]
    assert lines[3].startswith("  together") and "no more than that guess" not in "".join(lines)


def test_records_of_too_few_patients_are_not_tried() -> None:
    [line] = gain_lines(TERMS, _rows(60, 4), [np.arange(60)])
    assert "4 patients are too few" in line


def test_labels_by_chance_promise_nothing() -> None:
    rows = _rows(200, 200)
    shuffled = Rows(
        inputs=np.random.default_rng(1).normal(size=(200, 2)), labels=rows.labels, patients=rows.patients
    )
    lines = list(gain_lines(TERMS, shuffled, [np.arange(200)]))
    alone = float(lines[0].split("%")[0].split()[-1])
    assert 30 < alone < 70 and "no more than that guess" in lines[2]
    assert not any(line.startswith("  a teacher") for line in lines)  # one teacher is the own model


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
