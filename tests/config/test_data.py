"""The data of a study: its own files where it names some, else a known data set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate_fed.config.data import deal_records, load_study_data, records_digest
from pate_fed.config.sections import Data, Parties
from pate_fed.config.study import Study
from pate_fed.data import Dataset, GlyphSettings, Schema, as_dataset
from pate_fed.errors import InputError
from pate_fed.learning import StudentSettings, TeacherSettings
from pate_fed.structure.parts import hold_part, release_parts

ARRAYS = {
    "private_images": np.arange(12, dtype=np.uint8).reshape(12, 1, 1),
    "private_labels": np.arange(12) % 2,
    "public_images": np.arange(10, dtype=np.uint8).reshape(10, 1, 1),
}


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
    small = as_dataset(ARRAYS, what="small", name="small")

    def load(name: str, **options: object) -> Dataset:
        given.update(options, name=name)
        return small

    monkeypatch.setattr("pate_fed.data.load_dataset", load)
    glyph = GlyphSettings(classes=3, private=40, public=10)
    assert load_study_data(replace(Study(), data=Data(glyph=glyph))) is small
    assert (given["glyph"], given["data_dir"], given["download"]) == (glyph, None, False)
    load_study_data(replace(Study(), data=Data(dataset="mnist", data_dir=str(tmp_path))))
    assert (given["name"], given["data_dir"]) == ("mnist", tmp_path)


@pytest.fixture
def held() -> Iterator[Callable[[Any, str], str]]:
    """Holds an object as a part of a kind; its name."""
    yield lambda part, kind: hold_part(part, kind)[0]
    release_parts()


def test_a_data_set_of_one_s_own(held: Callable[[Any, str], str]) -> None:
    own = Data(dataset=held(lambda: ARRAYS, "dataset"))
    found = load_study_data(Study(data=own))
    assert own.own and found.name == own.dataset and found.num_queries == 10
    assert load_study_data(Study(data=replace(own, num_queries=4))).num_queries == 4
    assert Study(data=own).resolve().name == "in_memory-250"


def test_a_partitioner_of_one_s_own(held: Callable[[Any, str], str]) -> None:
    def study(part: Any) -> Study:
        return Study(parties=Parties(num_clients=2, partition=held(part, "partitioner")))

    def by_label(labels: Any, num_parties: int, seed: int) -> list[Any]:
        assert seed == Study().seed_for("partition")
        return [np.flatnonzero(labels == party) for party in range(num_parties)]

    dataset = as_dataset(ARRAYS, what="small", name="small")
    assert [part.tolist() for part in deal_records(study(by_label), dataset)] == [
        [0, 2, 4, 6, 8, 10],
        [1, 3, 5, 7, 9, 11],
    ]
    dealt = records_digest(study(by_label), dataset)
    assert dealt == records_digest(study(by_label), dataset)
    assert dealt != records_digest(study(lambda *_: [range(6), range(6, 12)]), dataset)
    relabelled = replace(dataset, private_labels=1 - dataset.private_labels)
    halves = study(lambda *_: [range(6), range(6, 12)])
    assert records_digest(halves, relabelled) != records_digest(halves, dataset)
    turns = iter(range(1, 12))
    for part, said in (
        (3, "is a int; a function is meant"),
        (lambda labels: [], r"fails \(TypeError"),
        (lambda *_: [[0, 1], [1, 2]], "record 1 is dealt out twice"),
        (lambda *_: None, "gives no list of index arrays"),
        (lambda *_: np.split(np.arange(12), [next(turns)]), "other parts each time"),
    ):
        with pytest.raises(InputError, match=said) as refused:
            deal_records(study(part), dataset)
        assert str(refused.value).startswith("partitioner 'in_memory:partitioner_")
    owned = replace(dataset, owners=dataset.private_labels)
    assert [len(part) for part in deal_records(Study(parties=Parties(num_clients=2)), owned)] == [6, 6]
    with pytest.raises(InputError, match="would have no effect"):
        deal_records(study(by_label), owned)
    with pytest.raises(InputError, match="owners: part 2 is"):
        deal_records(Study(parties=Parties(num_clients=3)), owned)
