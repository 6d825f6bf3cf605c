"""Hospitals' own files: archives, folders of images, idx files, and data sets made of them."""

from __future__ import annotations

import struct
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pate_fed.data import (
    InputSpec,
    Schema,
    dataset_from_files,
    read_pool,
    read_records,
)
from pate_fed.errors import InputError

IMAGES = InputSpec(classes=("cat", "dog"))


SCHEMA = Schema(label="y", classes=("a", "b"), columns=(("x", ()),), patient="p")


TABLE = InputSpec(classes=("a", "b"), schema=SCHEMA)


def _pictures(count: int) -> np.ndarray:
    return np.arange(count * 6 * 5, dtype=np.uint8).reshape(count, 6, 5)


def test_an_archive_of_images(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=_pictures(3), y=np.array([0, 1, 1]))
    rows = read_records(tmp_path / "a.npz", IMAGES)
    assert rows.inputs.shape == (3, 6, 5, 1)
    assert rows.labels.tolist() == [0, 1, 1]
    np.savez(tmp_path / "pool.npz", x=_pictures(2))
    assert read_pool(tmp_path / "pool.npz", IMAGES).labels.tolist() == [-1, -1]


def test_an_archive_of_rows(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([[1.0], [np.nan]]), y=np.array([0, 1]))
    assert read_records(tmp_path / "a.npz", TABLE).inputs.dtype == np.float64


def test_a_folder_by_class(tmp_path: Path) -> None:
    for name, count in (("cat", 2), ("dog", 1)):
        (tmp_path / name).mkdir()
        for number, picture in enumerate(_pictures(count)):
            Image.fromarray(picture).save(tmp_path / name / f"{number}.png")
    rows = read_records(tmp_path, IMAGES)
    assert rows.labels.tolist() == [0, 0, 1]
    np.testing.assert_array_equal(rows.inputs[:2, ..., 0], _pictures(2))
    (tmp_path / "horse").mkdir()
    with pytest.raises(InputError, match="no class of the study: cat, dog"):
        read_records(tmp_path, IMAGES)


def test_a_pool_of_pictures_is_not_sorted_by_class_and_has_one_order_everywhere(tmp_path: Path) -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (60, 6, 5), dtype=np.uint8)
    for number, picture in enumerate(pictures):
        for root, name in (("pool", f"{number}.png"), ("elsewhere", f"copy-{60 - number}.png")):
            folder = tmp_path / root / ("cat" if number < 30 else "dog")
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture).save(folder / name)
    rows = read_pool(tmp_path / "pool", IMAGES)
    first = {picture.tobytes() for picture in pictures[:30]}
    assert [picture.tobytes() in first for picture in rows.inputs[..., 0]] == (rows.labels == 0).tolist()
    assert 5 < (rows.labels[:30] == 0).sum() < 25
    np.testing.assert_array_equal(rows.inputs, read_pool(tmp_path / "elsewhere", IMAGES).inputs)


def test_a_sorted_pool_that_would_test_the_student_on_one_class_is_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, labels in (("sorted", np.repeat([0, 1], 100)), ("mixed", rng.permutation([0, 1] * 100))):
        np.savez(tmp_path / f"{name}.npz", x=rng.random((200, 1)), y=labels)

    def load(name: str, num_queries: int | None) -> int:
        path = tmp_path / f"{name}.npz"
        return dataset_from_files("t", pool=path, private=[], spec=TABLE, num_queries=num_queries).num_queries

    assert load("mixed", None) == load("sorted", 180) == 180
    with pytest.raises(
        InputError, match=r"sorted\.npz: is sorted.* 20 inputs to test the student none is 'a'"
    ):
        load("sorted", None)


@pytest.mark.parametrize(("rows", "kept"), [(30, 10), (150, 50), (450, 100), (1500, 150)])
def test_of_a_small_pool_more_than_a_tenth_is_kept_where_nothing_else_tests(
    tmp_path: Path, rows: int, kept: int
) -> None:
    """30 rows kept 3 to test a student that is long to train."""
    labels = np.random.default_rng(1).integers(0, 2, rows)
    np.savez(tmp_path / "p.npz", x=np.random.default_rng(0).random((rows, 1)), y=labels)
    load = partial(dataset_from_files, "t", pool=tmp_path / "p.npz", private=[], spec=TABLE)
    assert load(num_queries=None, keep_more=True).num_queries == rows - kept
    assert load(num_queries=None).num_queries == rows * 9 // 10
    assert load(num_queries=20, keep_more=True).num_queries == 20


def test_a_folder_of_idx_files(tmp_path: Path) -> None:
    images, labels = _pictures(3), np.array([1, 0, 1], dtype=np.uint8)
    header = struct.pack(">HBB3I", 0, 8, 3, 3, 6, 5)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(header + images.tobytes())
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(struct.pack(">HBBI", 0, 8, 1, 3) + labels.tobytes())
    rows = read_records(tmp_path, IMAGES)
    np.testing.assert_array_equal(rows.inputs[..., 0], images)
    assert rows.labels.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": np.zeros((2, 4, 4))}, "uint8"),
        ({"y": np.zeros(2, dtype=int)}, "x (and y) are meant"),
        ({"x": _pictures(2), "y": np.zeros(3, dtype=int)}, "2 whole numbers"),
        ({"x": _pictures(2), "y": np.array([0, 2])}, "row 1: label 2"),
        ({"x": _pictures(2)}, "without a label"),
        ({"x": _pictures(0), "y": np.zeros(0, dtype=int)}, "no records"),
    ],
)
def test_a_wrong_archive_is_named(arrays: dict[str, np.ndarray], words: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(InputError) as caught:
        read_records(tmp_path / "a.npz", IMAGES)
    assert words in str(caught.value)
    assert "a.npz" in str(caught.value)


def test_images_of_another_shape_than_the_studys(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=_pictures(3), y=np.array([0, 1, 1]))
    with pytest.raises(InputError, match=r"the study's are \(8, 8, 1\)"):
        read_records(tmp_path / "a.npz", InputSpec(classes=("a", "b"), shape=(8, 8, 1)))


def test_a_pickle_is_not_opened(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([{}], dtype=object), y=np.array([0]))
    with pytest.raises(InputError, match="can be read"):
        read_records(tmp_path / "a.npz", IMAGES)


def test_a_data_set_of_parties_files(tmp_path: Path) -> None:
    for name, rows in (
        ("pool", "p,x,y\n" + "1,1,a\n" * 20),
        ("n", "p,x,y\n1,1,a\n1,2,b\n"),
        ("s", "p,x,y\n1,5,b\n"),
    ):
        (tmp_path / f"{name}.csv").write_text(rows, encoding="utf-8")
    private = [tmp_path / "n.csv", tmp_path / "s.csv"]
    dataset = dataset_from_files(
        "t", pool=tmp_path / "pool.csv", private=private, spec=TABLE, num_queries=None
    )
    assert dataset.num_queries == 18
    parts = [np.flatnonzero(dataset.owners == party) for party in range(2)]
    assert [part.tolist() for part in parts] == [[0, 1], [2]]
    with pytest.raises(InputError, match="has 20 inputs"):
        dataset_from_files("t", pool=tmp_path / "pool.csv", private=[], spec=TABLE, num_queries=21)
