"""A state directory by the study's name: also before the hospital has the study's terms."""

from __future__ import annotations

from pathlib import Path

import pytest

from clients.site_files import LocalSettings
from pate_fed.cli.state_dirs import identity_of, settings_of, state_dir_of
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


def test_damaged_terms_leave_a_study_to_its_folders_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    state = tmp_path / "pate_fed" / "lung-cancer-0123456789ab" / "north"
    state.mkdir(parents=True)
    (state / "hospital.json").touch()
    for text in ("", "[]", '{"study": 7}', "[" * 100_000):
        (state / "terms.json").write_text(text)
        assert state_dir_of("lung-cancer") == state


def test_an_identity_is_given_or_the_last_runs_or_none(tmp_path: Path) -> None:
    keys, other = tmp_path / "keys", str(tmp_path / "other")
    assert identity_of(tmp_path, None) is None  # no hospital ran there
    with pytest.raises(InputError, match="no hospital ran there; give the --state-dir"):
        settings_of(tmp_path)
    site = LocalSettings(hospital="north", data="n.csv", state_dir=tmp_path, sum_key=keys / "sum.key")
    site.write(tmp_path / "hospital.json")
    assert settings_of(tmp_path) == site
    assert identity_of(tmp_path, None) is None  # its keys are gone
    keys.mkdir()
    (keys / "sum.key").touch()
    assert identity_of(tmp_path, None) == keys and identity_of(tmp_path, other) == Path(other)
    (tmp_path / "hospital.json").write_text("[]")
    assert identity_of(tmp_path, other) == Path(other)
    with pytest.raises(InputError, match=r"hospital\.json: not a hospital's site file"):
        identity_of(tmp_path, None)
