"""The public pool in a few lines: a table's first rows, images in shades; never another pool."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from builders import make_label_terms, make_terms, vary

from pate_fed.cli.pool_preview import open_pool, preview
from pate_fed.data import Schema, pool_digest
from pate_fed.errors import InputError
from pate_fed.learning import TeacherSettings

SCHEMA = Schema(label="ill", classes=("no", "yes"), columns=(("age", ()), ("sex", ("f", "m"))))
TABLE = make_terms(
    num_classes=2, image_shape=(3,), table=SCHEMA, teacher=TeacherSettings(name="random-forest")
)


def test_rows_of_a_table(tmp_path: Path) -> None:
    path = tmp_path / "public.csv"
    path.write_text("age,sex,ill\n40,f,no\n,m,\n7.25,?,yes\n8,f,no\n")
    rows = np.array([[40, 1, 0], [np.nan, 0, 1], [7.25, 0, 0], [8, 1, 0]])
    terms = vary(TABLE, pool_size=4, pool_digest=pool_digest(rows))
    lines = preview(path, terms).splitlines()
    assert lines[0].endswith("Its first 3:")
    assert lines[1:] == ["age 40, sex f", "age missing, sex m", "age 7.25, sex missing"]
    np.save(tmp_path / "pool.npy", rows)  # as the coordinator sends it
    assert preview(tmp_path / "pool.npy", terms).splitlines()[1:] == lines[1:]


def test_images_in_shades(tmp_path: Path) -> None:
    images = np.zeros((3, 8, 8, 1), dtype=np.uint8)
    images[:, :, 4:] = 255
    np.save(tmp_path / "pool.npy", images)
    lines = preview(tmp_path / "pool.npy", make_terms(pool_digest=pool_digest(images))).splitlines()
    assert len(lines) == 11
    assert set(lines[1:]) == {"  ".join([" " * 10 + "@" * 10] * 3)}
    assert len(lines[1]) == 64


def test_another_pool_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "public.csv"
    path.write_text("age,sex,ill\n40,f,no\n")
    with pytest.raises(InputError, match="not the study's pool"):
        open_pool(path, TABLE)
    (tmp_path / "pool.npy").write_bytes(b"junk")
    with pytest.raises(InputError, match="cannot be read as an array"):
        open_pool(tmp_path / "pool.npy", TABLE)
    with pytest.raises(InputError, match="private labels"):
        preview(path, make_label_terms())
