"""What a coordinator kept to go on is gone at a study's end, or its user is told."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from server.app import KEPT_TO_GO_ON, Coordinator


def test_what_was_kept_is_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in KEPT_TO_GO_ON[:2]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "votes").write_bytes(b"1")
    Coordinator._remove_kept(SimpleNamespace(_run_dir=tmp_path))  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err == ""


def test_what_cannot_be_removed_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(shutil, "rmtree", refuse)
    Coordinator._remove_kept(SimpleNamespace(_run_dir=tmp_path))  # type: ignore[arg-type]
    said = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[1] for line in said] == [str(tmp_path / name) for name in KEPT_TO_GO_ON]
    assert all("remove it by hand" in line for line in said)
