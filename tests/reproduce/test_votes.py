"""Teachers' totals: made once, checked when they are read, bound to their data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pate_fed.data import Dataset
from pate_fed.errors import InputError
from pate_fed.reproduce import Reproduction, votes

Change = Callable[[np.ndarray], np.ndarray]


@pytest.mark.parametrize("teacher", ["encoder-head", "small-cnn"])
def test_teachers_totals_are_made_once(
    teacher: str, small: Reproduction, loaded: dict[str, Dataset], tmp_path: Path
) -> None:
    path, data, said = tmp_path / "t.npz", loaded["mnist"], []
    found = votes.teachers_totals(small, data, path, teacher=teacher, log=said.append)
    assert found.shape == (200, 10) and np.all(found.sum(axis=1) == 5)
    assert said == [f"teacher {number} of 5" for number in (1, 2, 3, 4, 5)]
    assert votes.ensemble_size(found) == {"num_teachers": 5, "num_classes": 10}
    again = votes.teachers_totals(small, data, path, teacher="", log=lambda line: pytest.fail(line))
    assert np.array_equal(found, again)


def test_heads_with_moved_copies_are_the_studys_light_teachers(
    small: Reproduction, loaded: dict[str, Dataset]
) -> None:
    from pate_fed.learning import TeacherSettings
    from pate_fed.learning.networks.encoder import fit_encoder
    from pate_fed.learning.teachers.network import train_teacher

    data = loaded["mnist"]
    parts = [np.arange(0, 100), np.arange(100, 200)]
    batched = list(votes._votes(small, data, "encoder-head", parts))
    for part, said in zip(parts, batched, strict=True):
        teacher = train_teacher(
            data.private_images[part],
            data.private_labels[part],
            num_classes=10,
            settings=TeacherSettings(name="encoder-head"),
            seed=0,
            encoder=fit_encoder(data.public_images[:200]),
        )
        assert np.mean(teacher.predict(data.public_images[:200]) == said) > 0.98


def test_totals_of_other_data_are_refused(small: Reproduction, make_data: Callable[..., Dataset]) -> None:
    small.out_dir.mkdir()
    path = small.out_dir / "totals-mnist-4.npz"
    found = votes.ensemble_totals(small, make_data("mnist"), 4, lambda line: None)
    assert np.all(found.sum(axis=1) == 4) and path.exists()
    with pytest.raises(InputError, match=r"totals-mnist-4\.npz: totals of teachers of other data"):
        votes.ensemble_totals(small, make_data("mnist", seed=2), 4, lambda line: None)
    np.savez(path, totals=found)  # a file that says of no data that it is theirs
    assert len(votes.read_totals(path, data="0" * 64)) == 200


def test_quick_rows_are_not_the_papers(make_data: Callable[..., Dataset], tmp_path: Path) -> None:
    data, totals = [make_data("mnist"), make_data("fashion-mnist", seed=2)], {"totals": _whole()}
    found = [
        votes.inputs_of(Reproduction(data_dir=None, out_dir=tmp_path, paper=paper), data, totals)
        for paper in (False, True)
    ]
    assert [each.pop("scale") for each in found] == ["quick", "paper"]
    names = {"mnist images", "mnist labels", "fashion-mnist images", "fashion-mnist labels", "totals"}
    assert found[0] == found[1] and set(found[0]) == names
    assert len(set(found[0].values())) == 5


def _whole() -> np.ndarray:
    return np.tile([3, 2, 0], (6, 1))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: a[:, 0], r"shape \(6,\)"),
        (lambda a: a[:0], r"shape \(0, 3\)"),
        (lambda a: a + 0.5, "not whole"),
        (lambda a: np.where(a == 0, np.nan, a), "not whole"),
        (lambda a: a.astype(str), "not whole"),
        (lambda a: a * 0 - 1, "negative"),
        (lambda a: a + np.arange(6)[:, None], "5 to 20 votes"),
        (lambda a: a[:5], "5 rows, where at least 6"),
        (lambda a: np.hstack([a, a]), "6 columns, where the data set has 3"),
    ],
)
def test_totals_are_checked(tmp_path: Path, change: Change, words: str) -> None:
    np.save(tmp_path / "t.npy", change(_whole()))
    with pytest.raises(InputError, match=words):
        votes.read_totals(tmp_path / "t.npy", rows=6, classes=3)


def test_ready_totals_are_read(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", np.tile(_whole(), (2, 1)).astype(np.float64))
    found = votes.read_totals(tmp_path / "t.npy", rows=6, classes=3)
    assert found.dtype == np.int64 and np.array_equal(found, _whole())  # the rows after them are left out
    np.savez(tmp_path / "t.npz", totals=_whole().astype(np.uint8))
    assert np.array_equal(votes.read_totals(tmp_path / "t.npz"), _whole())
    (tmp_path / "other.npz").write_bytes(b"no")
    with pytest.raises(InputError, match="no totals"):
        votes.read_totals(tmp_path / "other.npz")
