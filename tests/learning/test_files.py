"""Models on disk: no code in them is run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pate_fed.errors import IntegrityError
from pate_fed.learning.teachers.network import Teacher


def test_a_file_cannot_run_code(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (tmp_path / "ran",))  # type: ignore[return-value]

    path = tmp_path / "teacher.pt"
    torch.save({"kind": "teacher", "weights": Evil()}, path)
    with pytest.raises(IntegrityError):
        Teacher.load(path)
    assert not (tmp_path / "ran").exists()
