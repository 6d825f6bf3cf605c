"""Data sets and partitions of the user's own: what they may give; a fault is a sentence that names them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from pate_fed.data import (
    Dataset,
    as_dataset,
    check_parts,
    from_partitions,
    from_torchvision,
    pool_digest,
)
from pate_fed.errors import InputError

IMAGES = np.arange(60 * 4 * 4, dtype=np.uint8).reshape(60, 4, 4)
LABELS = np.arange(60) % 3
GOOD: dict[str, Any] = {
    "private_images": IMAGES[:40],
    "private_labels": LABELS[:40],
    "public_images": IMAGES[40:],
    "public_labels": LABELS[40:],
}
ROWS = {**GOOD, "private_images": np.ones((40, 5)), "public_images": np.zeros((20, 5), dtype=np.float32)}


def read(given: Any) -> Dataset:
    return as_dataset(given, what="dataset 'm:load'", name="m:load")


def test_arrays_a_function_and_a_data_set_are_one() -> None:
    found = read(GOOD)
    assert found.private_images.shape == (40, 4, 4, 1) and found.public_images.dtype == np.uint8
    assert (found.num_classes, found.class_names, found.num_queries) == (3, ("0", "1", "2"), 18)
    assert found.pool_digest == pool_digest(found.public_images)
    for same in (read(lambda: GOOD), read(found), read(lambda: found)):
        assert same.pool_digest == found.pool_digest and same.num_queries == found.num_queries
    more = {"class_names": ["a", "b", "c", "d"], "num_queries": 5, "owners": LABELS[:40], "details": "ours"}
    more["patients"] = [f"p{number // 2}" for number in range(40)]
    found = read({**GOOD, **more})
    assert (found.num_classes, found.num_queries, found.details) == (4, 5, "ours")
    assert found.owners is not None and found.patients is not None and len(np.unique(found.patients)) == 20


def test_memory_maps_stay_on_the_disk(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", IMAGES[:40, :, :, None])
    held = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert read({**GOOD, "private_images": held}).private_images is held


def test_rows_are_numbers_with_nan_where_one_is_missing() -> None:
    rows = np.array(ROWS["private_images"])
    rows[3, 1] = np.nan
    found = read({**ROWS, "private_images": rows})
    assert found.public_images.dtype == np.float64 and np.isnan(found.private_images[3, 1])


@pytest.mark.parametrize(
    ("shape", "kind"),
    [((3, 4, 2, 2), np.float32), ((5,), np.float16), ((7, 3), np.int64), ((4, 4, 4), np.uint8)],
)
def test_other_arrays_are_rows_that_keep_their_shape(shape: tuple[int, ...], kind: Any) -> None:
    rng = np.random.default_rng(1)
    given = (rng.normal(size=(60, *shape)) * 9).astype(kind)
    found = read({**GOOD, "private_images": given[:40], "public_images": given[40:]})
    assert found.input_shape == shape and found.private_images.dtype == np.float64
    assert np.array_equal(found.private_images.reshape(40, *shape), given[:40])
    assert read(found).input_shape == shape


def test_without_true_labels_all_may_be_asked_about() -> None:
    found = read({key: value for key, value in GOOD.items() if key != "public_labels"})
    assert found.num_queries == 20 and (found.public_labels == -1).all()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"x": IMAGES}, "x is no part of a data set; its parts are .*private_images, private_labels"),
        ({"private_image": IMAGES}, r"private_image is no part of a data set; did you mean private_images\?"),
        ({"public_images": None}, "lacks public_images"),
        ({"private_images": IMAGES[:40] / 255}, r"private inputs are float64 \(16,\), public ones uint8"),
        ({"private_images": LABELS[:40]}, r"private_images is int64 \(40,\): images uint8"),
        (
            {"private_images": np.ones((40, 2, 3)), "public_images": np.ones((20, 3, 2))},
            r"private inputs are \(2, 3\), public ones \(3, 2\)",
        ),
        (
            {
                "private_images": np.ones((40, 2, 3)),
                "public_images": np.ones((20, 2, 3)),
                "shape": (3, 2),
            },
            r"private inputs are \(2, 3\), the shape given \(3, 2\)",
        ),
        *(({"shape": bad}, "the lengths of one input") for bad in (((1, 2), 3), 1.5, (-1, 4), "ab")),
        (
            {"private_images": np.ones((40, 6)), "public_images": np.ones((20, 6)), "shape": (2, 2)},
            r"shape \(2, 2\) for inputs of \(6,\)",
        ),
        ({"public_images": IMAGES[40:, :3]}, r"private inputs are uint8 \(4, 4, 1\), public ones"),
        ({"public_images": IMAGES[:0], "public_labels": LABELS[:0]}, "public_images holds nothing"),
        ({"private_labels": LABELS[:39]}, r"private_labels is int64 \(39,\): 40 whole numbers"),
        ({"private_labels": LABELS[:40] + np.nan}, "private_labels: holds numbers that are no classes"),
        ({"private_labels": LABELS[:40] + 0.5}, "private_labels: holds numbers that are no classes"),
        ({"private_labels": LABELS[:40] - 1}, "private_labels from -1 to 1: 0 to 2 is meant"),
        ({"class_names": ["a", "b"]}, "private_labels from 0 to 2: 0 to 1 is meant"),
        ({"class_names": ["a"]}, "num_classes 1: 2 or more"),
        ({"num_classes": 4, "class_names": ["a", "b", "c"]}, "3 class_names for 4 classes"),
        ({"num_queries": 21}, "num_queries 21: 1 to 20"),
        ({"owners": ["a"] * 40}, "owners is <U1"),
        ({"patients": LABELS[:3]}, "patients is int64"),
        ({"private_images": np.full((40, 5), np.inf), "public_images": np.ones((20, 5))}, "row 0, column 0"),
        ({"public_images": np.zeros((20, 5))}, "private inputs are uint8"),
        (
            {"public_images": np.repeat(IMAGES[40:], 15, axis=0), "public_labels": np.repeat([0, 1, 2], 100)},
            "is sorted, it seems",
        ),
    ],
)
def test_a_fault_is_one_sentence_that_names_the_part(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        read({**GOOD, **changed})
    assert str(refused.value).startswith("dataset 'm:load': ") and "\n" not in str(refused.value)


def test_what_is_no_data_set_at_all() -> None:
    def broken() -> None:
        raise OSError("no such disk")

    for given, said in (
        (3, "gives a int"),
        (lambda: None, "gives a NoneType"),
        (broken, r"fails when it is loaded \(OSError: no such disk, at .*, in broken\)"),
        (lambda needed: None, "fails when it is loaded"),
    ):
        with pytest.raises(InputError, match=said):
            read(given)


def test_parts_are_disjoint_and_together_every_record() -> None:
    def checked(parts: Any) -> list[list[int]]:
        found = check_parts(parts, num_records=5, num_parties=2, what="partitioner 'm:deal'")
        return [part.tolist() for part in found]

    assert checked([[4, 0], np.array([1, 3, 2])]) == [[0, 4], [1, 2, 3]]
    for parts, said in (
        ([[0, 1, 2, 3, 4]], "gives 1 parts for 2 parties"),
        ([[0, 1, 2, 3, 4], []], "part 1 is"),
        ([[0, 1], [1, 2, 3, 4]], "record 1 is dealt out twice; 1 in all"),
        ([[0, 1], [2, 3]], "record 4 is not dealt out; 1 in all"),
        ([[0, 1], [2, 3, 5]], "places 2 to 5: 0 to 4"),
        ([[0, 1], [2, 3, -1]], "places -1 to 3: 0 to 4"),
        ([[0.0, 1.0], [2.0, 3.0, 4.0]], "part 0 is float64"),
        ([[True, False], [2, 3, 4]], "part 0 is bool"),
        (3, "gives no list of index arrays"),
    ):
        with pytest.raises(InputError, match=said) as refused:
            checked(parts)
        assert str(refused.value).startswith("partitioner 'm:deal': ")


class Pictures:
    """As torchvision's data sets are."""

    classes = ("a", "b", "c")

    def __init__(self, images: Any) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, place: int) -> tuple[Any, int]:
        if place >= len(self):
            raise IndexError
        return self.images[place], place % 3


def test_torchvision_s_data_sets_as_arrays() -> None:
    found = read(lambda: from_torchvision(Pictures(IMAGES[:40]), Pictures(IMAGES[40:])))
    assert np.array_equal(found.private_images[..., 0], IMAGES[:40]) and found.class_names == ("a", "b", "c")
    assert found.public_labels[:4].tolist() == [0, 1, 2, 0]
    datasets = pytest.importorskip("torchvision.datasets")
    fake = read(
        lambda: from_torchvision(*[datasets.FakeData(5, (3, 8, 8), 2, random_offset=9 * k) for k in (0, 1)])
    )
    assert fake.private_images.shape == (5, 8, 8, 3) and fake.private_images.dtype == np.uint8
    assert not np.array_equal(fake.private_images, fake.public_images)
    with pytest.raises(
        InputError, match=r"dataset 'm:load': fails when it is loaded \(private images: 2 different shapes"
    ):
        read(lambda: from_torchvision(Pictures([IMAGES[0], IMAGES[0][:2]]), Pictures(IMAGES[40:])))


class Features:
    names = ("a", "b", "c")


class Columns(dict[str, Any]):
    """As a Hugging Face data set gives its columns."""

    features: ClassVar = {"label": Features}


def test_partitions_as_flwr_datasets_gives_them() -> None:
    parts = [Columns(image=list(IMAGES[start::4][:10]), label=LABELS[start::4][:10]) for start in range(4)]
    public = Columns(image=list(IMAGES[40:]), label=list(LABELS[40:]))
    found = read(lambda: from_partitions(parts, public))
    assert found.owners is not None and np.bincount(found.owners).tolist() == [10] * 4
    assert found.class_names == ("a", "b", "c") and found.private_images.shape == (40, 4, 4, 1)
    rows = [Columns(x=[[1.0, 2.0]], label=[0]), Columns(x=[[1.0, 3.0]], label=[1])]
    assert read(from_partitions(rows, rows[0], inputs="x")).private_images.tolist() == [[1, 2], [1, 3]]
    for wrong, said in (
        (lambda: from_partitions(rows, public), "partition 0: has no columns image and label"),
        (lambda: from_partitions([], public), "no partition"),
        (
            lambda: from_partitions([*parts, Columns(image=[IMAGES[0, :2]], label=[0])], public),
            "several shapes",
        ),
    ):
        with pytest.raises(InputError, match=said):
            wrong()
