"""A state directory by the study's name: also before the hospital has the study's terms."""

from __future__ import annotations

from pathlib import Path

import pytest

from pate_fed.cli.state_dirs import state_dir_of
from pate_fed.errors import InputError


def test_a_hospital_that_only_waits_is_found_by_its_folders_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    waiting = tmp_path / "pate_fed" / "lung-cancer-0123456789ab" / "north"
    waiting.mkdir(parents=True)
    (waiting / "hospital.json").write_text("{}")
    assert state_dir_of("lung-cancer") == waiting
    (waiting / "terms.json").write_text('{"study": "lungs & hearts"}')
    assert state_dir_of("lungs & hearts") == waiting
    with pytest.raises(InputError, match="known: lungs & hearts"):
        state_dir_of("lung-cancer")
