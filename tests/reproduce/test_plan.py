"""What a reproduction is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from pate_fed.errors import InputError
from pate_fed.reproduce import Reproduction


def test_only_what_is_chosen_is_an_option(tmp_path: Path) -> None:
    assert not list(Reproduction(data_dir=tmp_path, out_dir=tmp_path, device="auto").chosen())
    chosen = Reproduction(data_dir=None, out_dir=tmp_path, paper=True, seeds=2, tables=(1,), workers=2)
    assert list(chosen.chosen()) == ["--paper", "--seeds", "--tables", "--workers"]


def test_scales_have_files_of_their_own(tmp_path: Path) -> None:
    names = [
        Reproduction(data_dir=None, out_dir=tmp_path, paper=paper).file("runs", "csv").name
        for paper in (False, True)
    ]
    assert names == ["runs-quick.csv", "runs-paper.csv"]


def test_what_cannot_be_meant_is_refused(tmp_path: Path) -> None:
    for change, words in (({"seeds": 0}, "seeds is 0"), ({"workers": 0}, "--workers 0")):
        with pytest.raises(InputError, match=words):
            Reproduction(data_dir=None, out_dir=tmp_path, **change)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no such file"):
        Reproduction(data_dir=None, out_dir=tmp_path, totals=tmp_path / "t.npz")


def test_published_files_that_are_not_there_are_named(small: Reproduction, tmp_path: Path) -> None:
    assert small.published("mnist_250_teachers.npy").is_file()
    for folder in (None, tmp_path / "out"):
        with pytest.raises(InputError, match=r"mnist_250_teachers\.npy is not there"):
            Reproduction(data_dir=folder, out_dir=tmp_path).published("mnist_250_teachers.npy")
