"""`pate-fed data`: a data set shown, and mistakes named."""

from __future__ import annotations

from pathlib import Path

import pytest

from pate_fed.cli.main import main


def test_data_shows_glyph(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATE_FED_CACHE", str(tmp_path / "cache"))
    sheet = tmp_path / "sheet.png"
    command = ["data", "glyph", "--classes", "4", "--private", "120", "--public", "40"]
    assert main([*command, "--preview", str(sheet)]) == 0
    assert "120 private, 40 public" in capsys.readouterr().out
    assert sheet.read_bytes().startswith(b"\x89PNG")
    assert main([*command, "--preview", str(tmp_path)]) == 2
    assert "--preview" in capsys.readouterr().err
    for name in ("glyf", "table"):  # the second is a study's, not a command's
        assert main(["data", name]) == 2
        assert f"{name}: one of glyph, " in capsys.readouterr().err
