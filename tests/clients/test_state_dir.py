"""Where a hospital's state lies: by study, absolute, and never forgotten where an older one is found."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from builders import make_label_terms, make_terms, vary

from clients.account import Account
from clients.state_dir import LOCAL_SITE, LocalSettings, default_state_dir, find_state_dir
from pate_fed.errors import InputError

TERMS = make_terms(study="Lungs / 2026")
OURS, THEIRS = "ab" * 32, "cd" * 32  # authorities


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home" / "pate_fed"


def test_a_study_has_its_own_from_wherever_it_is_started(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = find_state_dir(None, "north", TERMS, OURS)
    assert (found.parent.parent, found.name) == (home, "north") and found.parent.name.startswith(
        "Lungs-2026-"
    )
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path / "else")
    assert find_state_dir(None, "north", TERMS, OURS) == found
    assert find_state_dir(None, "north", vary(TERMS, labels=3), OURS) != found
    assert find_state_dir(None, "south", TERMS, OURS) == found.parent / "south"
    assert find_state_dir("mine", "north", TERMS, OURS) == tmp_path / "else" / "mine"


def test_two_authorities_studies_never_meet(home: Path, tmp_path: Path) -> None:
    """Neither where the folder is chosen here, nor where one is given, nor in one that lies here."""
    ours = find_state_dir(None, "north", TERMS, OURS)
    assert find_state_dir(None, "north", TERMS, THEIRS) != ours
    for folder in (ours, tmp_path / "hospital-north"):
        folder.mkdir(parents=True)
        _settings(folder, OURS)
    (tmp_path / "hospital-north" / "terms.json").write_text(TERMS.to_json())
    assert find_state_dir(None, "north", TERMS, OURS) == tmp_path / "hospital-north"
    assert find_state_dir(None, "north", TERMS, THEIRS).parent.parent == home
    assert find_state_dir(str(ours), "north", TERMS, OURS) == ours
    with pytest.raises(InputError, match=r"holds what was answered in another authority's study"):
        find_state_dir(str(ours), "north", TERMS, THEIRS)


def _settings(folder: Path, authority: str) -> None:
    LocalSettings(hospital="north", data="north.csv", state_dir=folder, authority=authority).write(
        folder / LOCAL_SITE
    )


def test_about_private_labels_there_is_one_for_all_terms(home: Path) -> None:
    terms = make_label_terms()
    found = default_state_dir("north", terms, OURS)
    assert found == home / "private-labels" / "north"
    assert default_state_dir("north", vary(terms, epsilon=2.0), THEIRS) == found


def test_without_an_admission_it_is_the_folder_here(tmp_path: Path) -> None:
    assert find_state_dir(None, "north", None, None) == tmp_path / "hospital-north"


@pytest.mark.parametrize(
    ("agreed", "used"),
    [
        (json.dumps({"study": TERMS.study, "pool_digest": TERMS.pool_digest}), True),
        (json.dumps({"study": "hearts", "pool_digest": TERMS.pool_digest}), False),
        ("{torn", True),
        ("[]", True),
        (json.dumps({"study": 3, "pool_digest": None}), True),
        (json.dumps({"study": "hearts"}), True),
        (None, False),
    ],
)
def test_an_old_one_here_is_used_where_it_may_be_this_studys(
    agreed: str | None, used: bool, tmp_path: Path
) -> None:
    old = tmp_path / "hospital-north"
    old.mkdir()
    if agreed is not None:
        (old / "terms.json").write_text(agreed)
    assert (find_state_dir(None, "north", TERMS, OURS) == old) is used


def test_an_old_answer_about_labels_is_never_forgotten(tmp_path: Path) -> None:
    own = tmp_path / "hospital-north"
    own.mkdir()
    assert find_state_dir(None, "north", make_label_terms(), OURS) != own
    for name in ("labels", "terms.json"):  # as release 0.1.0 left it, as today's does
        (own / name).mkdir() if name == "labels" else (own / name).write_text("{}")
        assert find_state_dir(None, "north", make_label_terms(), OURS) == own
        shutil.rmtree(own)
        own.mkdir()


@pytest.mark.parametrize("study", ["../../etc", "", "..", "a" * 100, "Ä"])
def test_no_name_of_a_study_leads_elsewhere(study: str, home: Path) -> None:
    found = default_state_dir("north", vary(TERMS, study=study), OURS)
    assert found.parent.parent == home and len(found.parent.name) <= 53
    assert not found.parent.name.startswith((".", "-"))


def test_a_user_without_a_home_is_asked_for_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setenv("XDG_STATE_HOME", "")
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(InputError, match="set XDG_STATE_HOME"):
        find_state_dir(None, "north", TERMS, OURS)
    with pytest.raises(InputError, match="set XDG_STATE_HOME"):  # also where --state-dir is given
        Account("north")
