"""A hospital's records in the doctor's eyes: what they hold, and whether a teacher learns from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import make_label_terms

from pate_fed.cli.doctor.records import WantedRecords, try_teachers
from pate_fed.config.sections import Parties
from pate_fed.data import InputSpec, Rows
from pate_fed.identity import Authority, HospitalIdentity, make_request
from pate_fed.learning import TeacherSettings


def test_labels_of_a_study_of_private_labels(site: Any) -> None:
    terms = make_label_terms()
    authority = Authority.init(Path("labels"), address="127.0.0.1:9", terms=terms.to_json(), days=90)
    authority.admit(make_request(Path("own"), "north"), days=90).write(Path("north.admission"))
    HospitalIdentity.offered(Path("own"), Path("north.admission")).take()
    Path("labels.csv").write_text("index,label\n4,0\n7,2\n")
    found = site.hospital("--tls-dir", "own", "--data", "labels.csv")
    assert found["records"].text == "labels of 2 public inputs"
    Path("labels.csv").write_text("index,label\n4,0\n99,2\n")
    row = site.hospital("--tls-dir", "own", "--data", "labels.csv")["records"]
    assert row.exit_code == 2 and "from 0 to 49" in row.text


def _images(*, learnable: bool) -> Rows:
    stream = np.random.default_rng(4)
    labels = np.repeat(np.arange(3), 60)  # in the order of their classes, as folders are
    inputs = stream.integers(0, 60, size=(180, 16, 16, 1)).astype(np.uint8)
    shown = labels if learnable else stream.permutation(labels)
    for number, label in enumerate(shown):
        inputs[number, 5 * label : 5 * label + 5] += 150
    return Rows(inputs, labels.astype(np.int64), np.arange(180))


@pytest.mark.parametrize("teachers", [1, 3])
def test_teachers_are_worth_something_where_labels_and_records_belong_together(teachers: int) -> None:
    spec = InputSpec(classes=("a", "b", "c"), shape=(16, 16, 1))
    wanted = WantedRecords(
        spec=spec, parties=Parties(teachers_per_client=teachers), teacher=TeacherSettings()
    )
    assert not try_teachers(_images(learnable=True), wanted).warnings
    (words,) = try_teachers(_images(learnable=False), wanted).warnings
    assert "do labels and records belong together?" in words
    assert ("With fewer teachers" in words) == (teachers > 1)
