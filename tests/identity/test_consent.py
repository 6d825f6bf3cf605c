"""The record of who accepted what: added to, never changed, on the disk before anything follows from it."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path
from typing import Any

import pytest

from pate_fed.errors import InputError
from pate_fed.identity.admission import CONSENT_FILE, Consent, consent_to, login_name, record_consent

GIVEN: dict[str, Any] = {
    "hospital": "north",
    "study": "lungs",
    "terms": "ab" * 32,
    "authority": "cd" * 32,
    "fingerprint_given": True,
    "answer": "--yes",
}


def test_each_consent_is_added_with_who_gave_it_and_when(tmp_path: Path) -> None:
    assert consent_to(tmp_path, terms=GIVEN["terms"], authority=GIVEN["authority"]) is None
    record_consent(tmp_path, made := Consent(**GIVEN))
    assert made.user == pwd.getpwuid(os.getuid()).pw_name and made.time.endswith("+00:00")
    first = (tmp_path / CONSENT_FILE).read_bytes()
    other = Consent(**{**GIVEN, "terms": "00" * 32, "answer": "asked at the terminal"})
    record_consent(tmp_path, other)
    assert (tmp_path / CONSENT_FILE).read_bytes().startswith(first)
    assert stat.S_IMODE((tmp_path / CONSENT_FILE).stat().st_mode) == 0o600
    assert consent_to(tmp_path, terms="00" * 32, authority=GIVEN["authority"]) == other
    assert consent_to(tmp_path, terms=GIVEN["terms"], authority=GIVEN["authority"]) == made
    assert consent_to(tmp_path, terms=GIVEN["terms"], authority="00" * 32) is None


def test_a_line_that_was_cut_is_no_consent(tmp_path: Path) -> None:
    record_consent(tmp_path, Consent(**GIVEN))
    path = tmp_path / CONSENT_FILE
    path.write_bytes(path.read_bytes()[:-20] + b"\n[1]\n")
    assert consent_to(tmp_path, terms=GIVEN["terms"], authority=GIVEN["authority"]) is None
    record_consent(tmp_path, made := Consent(**GIVEN))
    assert consent_to(tmp_path, terms=GIVEN["terms"], authority=GIVEN["authority"]) == made


def test_a_record_that_cannot_be_kept_is_said(tmp_path: Path) -> None:
    (tmp_path / CONSENT_FILE).mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        record_consent(tmp_path, Consent(**GIVEN))
    with pytest.raises(InputError, match="cannot be read"):
        consent_to(tmp_path, terms="", authority="")


def test_a_user_without_a_name_has_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(number: int) -> None:
        raise KeyError(number)

    monkeypatch.setattr("pwd.getpwuid", unknown)
    assert login_name() == f"user {os.getuid()}"
    assert Consent(time="", user="", **GIVEN).hospital == "north"
