"""`pate-fed reproduce`: its options reach the reproduction, and a wrong name lists all."""

from __future__ import annotations

from pathlib import Path

import pytest

from pate_fed import reproduce as reproduction
from pate_fed.cli.main import main
from pate_fed.cli.reproduce import _REPRODUCTIONS


def test_reproduce_is_wired_and_names_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tuple(_REPRODUCTIONS) == reproduction.REPRODUCTIONS
    assert main(["reproduce", "pate", "--out", str(tmp_path)]) == 2
    assert "pate++-fashion-mnist" in capsys.readouterr().err
    seen: list[reproduction.Reproduction] = []

    def record(name: str, plan: reproduction.Reproduction, *, on_progress: object) -> list[str]:
        seen.append(plan)
        return ["a line"]

    monkeypatch.setattr(reproduction, "reproduce", record)
    monkeypatch.setattr("pate_fed.reproduce.cores", lambda: 4)
    command = ["reproduce", "pate++-fashion-mnist", "--paper", "--seeds", "2", "--tables", "I", "steps"]
    assert main([*command, "--out", str(tmp_path), "--data-dir", "here"]) == 0
    assert seen == [
        reproduction.Reproduction(
            data_dir=Path("here"), out_dir=tmp_path, paper=True, seeds=2, tables=("I", "steps"), workers=4
        )
    ]
    assert "a line" in capsys.readouterr().out
    assert main([*command, "--quick"]) == 2
