"""Rows on disk: what they are bound to, and that they come back as they were."""

from __future__ import annotations

import json
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

import pytest

from pate_fed.errors import InputError
from pate_fed.reproduce import columns


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    threshold: float | None
    seed: int
    _: KW_ONLY
    accuracy: float
    kept: int | None = None


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    assert columns.read_rows(path, Row) == []
    written = [Row("a, b", None, 0, accuracy=1 / 3), Row("c", 0.1, 1, accuracy=0.5, kept=7)]
    for row in written:
        columns.append_row(path, row)
    assert columns.read_rows(path, Row) == written
    assert path.read_text(encoding="utf-8").splitlines()[0] == "name,threshold,seed,accuracy,kept"
    assert columns.task_of(written[0]) == ("a, b", None, 0)


@pytest.mark.parametrize("text", ["something else\n1\n", "name,threshold,seed,accuracy,kept\na,x,0,1,\n"])
def test_what_is_no_row_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "rows.csv").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="remove it"):
        columns.read_rows(tmp_path / "rows.csv", Row)


def test_inputs_bind_rows_and_nothing_else(tmp_path: Path) -> None:
    path, beside = tmp_path / "x.csv", tmp_path / "x-inputs.json"
    columns.bind_rows(path, {"images": "a" * 64, "totals": "b" * 64})
    columns.bind_rows(path, {"images": "c" * 64, "totals": "d" * 64})  # no rows yet: nothing to hold to
    assert json.loads(beside.read_text(encoding="utf-8")) == {"images": "c" * 64, "totals": "d" * 64}
    path.write_text("a\n1\n", encoding="utf-8")
    columns.bind_rows(path, {"images": "c" * 64, "totals": "d" * 64})
    with pytest.raises(InputError, match=r"other totals \(dddddddddddd, this call's are eeeeeeeeeeee\)"):
        columns.bind_rows(path, {"images": "c" * 64, "totals": "e" * 64})
    with pytest.raises(InputError, match=r"other votes \(unknown, this"):
        columns.bind_rows(path, {"votes": "c" * 64})
    for broken in ("no", "[]", '{"images": 1}', "[" * 100_000):
        beside.write_text(broken, encoding="utf-8")
        with pytest.raises(InputError, match=r"x-inputs\.json"):
            columns.bind_rows(path, {"images": "c" * 64})
    beside.unlink()
    with pytest.raises(InputError, match=r"x-inputs\.json"):
        columns.bind_rows(path, {"images": "c" * 64})
