"""The data of a study: its own files where it names some, else a known data set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pate_fed.config import data
from pate_fed.config.data import load_study_data
from pate_fed.config.sections import Data, Parties
from pate_fed.config.study import Study
from pate_fed.data import GlyphSettings, Schema
from pate_fed.errors import InputError
from pate_fed.learning import StudentSettings, TeacherSettings


def test_files_that_the_study_names_are_read(tmp_path: Path) -> None:
    (tmp_path / "pool.csv").write_text("x,y\n1,no\n2,yes\n3,no\n", encoding="utf-8")
    for name, rows in (("a", "4,yes\n"), ("b", "5,no\n6,yes\n")):
        (tmp_path / f"{name}.csv").write_text(f"x,y\n{rows}", encoding="utf-8")
    named = Data(
        dataset="table",
        pool=str(tmp_path / "pool.csv"),
        private=(str(tmp_path / "a.csv"), str(tmp_path / "b.csv")),
        num_queries=2,
        table=Schema(label="y", classes=("no", "yes"), columns=(("x", ()),)),
    )
    study = Study(
        parties=Parties(num_clients=2),
        data=named,
        teacher=TeacherSettings(name="random-forest"),
        student=StudentSettings(name="forest"),
    )
    found = load_study_data(study)
    assert (found.name, found.num_queries, found.num_classes) == ("pool", 2, 2)
    assert found.private_labels.tolist() == [1, 0, 1]
    assert found.owners is not None and found.owners.tolist() == [0, 1, 1]
    (tmp_path / "b.csv").unlink()
    with pytest.raises(InputError, match=r"b\.csv"):
        load_study_data(study)


def test_a_known_data_set_is_made_as_the_study_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, object] = {}
    monkeypatch.setattr(data, "load_dataset", lambda name, **options: given.update(options, name=name))
    glyph = GlyphSettings(classes=3, private=40, public=10)
    load_study_data(replace(Study(), data=Data(glyph=glyph)))
    assert (given["glyph"], given["data_dir"], given["download"]) == (glyph, None, False)
    load_study_data(replace(Study(), data=Data(dataset="mnist", data_dir=str(tmp_path))))
    assert (given["name"], given["data_dir"]) == ("mnist", tmp_path)
