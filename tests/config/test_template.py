"""A commented study.toml: it reads back, and every default in it is the one that holds."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

from pate_fed.config.study import Study, read_study
from pate_fed.config.template import study_template
from pate_fed.data import Schema


def test_a_template_is_the_default_study(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(study_template(name="ours"), encoding="utf-8")
    assert read_study(path) == Study(name="ours")


def test_a_default_with_its_mark_taken_away_is_the_same_study(tmp_path: Path) -> None:
    text = study_template(name="ours")
    path = tmp_path / "study.toml"
    path.write_text(re.sub(r"^# (\w+ = .+)$", r"\1", text, flags=re.MULTILINE), encoding="utf-8")
    assert path.read_text() != text
    assert read_study(path) == Study(name="ours")


def test_every_default_has_a_word_of_what_it_is() -> None:
    lines = study_template(name="ours").splitlines()
    bare = [
        line
        for before, line in pairwise(lines)
        if " =" in line and line.startswith("# ") and not before.startswith("## ")
    ]
    assert not bare
    assert "# delta = 1e-5" in lines


def test_a_table_and_its_columns_read_back(tmp_path: Path) -> None:
    schema = Schema(
        label='the "label"',
        classes=("ä", "b"),
        columns=(("age [years]", ()), ("sex", ("f", "m"))),
        patient="id",
        missing=("-9",),
    )
    data = {"dataset": "table", "pool": "pool.csv", "private": ["a.csv", "b.csv"]}
    path = tmp_path / "study.toml"
    text = study_template(data=data, schema=schema, num_clients=2, notes=("A sentence " * 30,))
    path.write_text(text, encoding="utf-8")
    study = read_study(path)
    assert study.data.table == schema
    assert study.data.private == (str(tmp_path / "a.csv"), str(tmp_path / "b.csv"))
    assert (study.teacher.name, study.student.name) == ("random-forest", "forest")
    assert max(map(len, text.splitlines())) <= 100
    assert not study.secrecy.secure_sum  # two are too few to be masked
    for count in (None, 4):
        path.write_text(study_template(data={**data, "private": []}, schema=schema, num_clients=count))
        assert read_study(path).secrecy.secure_sum
