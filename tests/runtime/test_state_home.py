from pathlib import Path

import pytest

from pate_fed.runtime.state_home import state_home


def test_state_lies_in_the_folder_that_xdg_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state_home() == tmp_path / "pate_fed"


@pytest.mark.parametrize("value", ["", "relative/folder"])
def test_without_an_absolute_one_it_lies_in_the_users_home(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", value)
    assert state_home() == tmp_path / ".local" / "state" / "pate_fed"
