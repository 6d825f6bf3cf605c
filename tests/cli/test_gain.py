"""What a hospital would gain: its own model by cross-validation, and the labels that may be expected."""

from __future__ import annotations

import numpy as np
from builders import make_terms

from pate_fed.cli.gain import gain_lines
from pate_fed.data import Rows, Schema
from pate_fed.learning import TeacherSettings

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
