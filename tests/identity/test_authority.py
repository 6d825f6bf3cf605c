"""The study's authority: who is admitted, revoked and admitted again."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pate_fed.errors import InputError
from pate_fed.identity import (
    Authority,
    make_request,
)


def test_one_hospital_more_or_less_touches_no_other(authority: Authority, tmp_path: Path, admit: Any) -> None:
    first = admit(tmp_path / "north")
    before = (authority.folder / "hospitals" / "north.crt").read_bytes()
    admit(tmp_path / "south", "south")
    authority.revoke("south")
    assert (authority.folder / "hospitals" / "north.crt").read_bytes() == before
    assert first.check("north") == []
    assert [name for name, _ in authority.admitted()] == ["north"]
    with pytest.raises(InputError, match=r"south: no such hospital is admitted \(admitted: north\)"):
        authority.revoke("south")


def test_an_old_copy_of_a_certificate_does_not_undo_a_revocation(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, admit: Any
) -> None:
    admit(tmp_path / "north")
    admit(tmp_path / "north-east", "north-east")
    held = authority.folder / "hospitals" / "north.crt"
    copy = held.read_bytes()
    authority.revoke("north")
    held.write_bytes(copy)  # a folder from a backup, or from a cluster's secret
    assert [name for name, _ in authority.admitted()] == ["north-east"]
    held.unlink()
    with monkeypatch.context() as clock:
        clock.setattr("pate_fed.identity.certificates._EARLY", timedelta(days=2))  # as if a day earlier
        with pytest.raises(InputError, match="clock right"):
            authority.admit(tmp_path / "north" / "north.req", days=10)
    authority.admit(tmp_path / "north" / "north.req", days=10)  # admitted again on purpose
    assert {name for name, _ in authority.admitted()} == {"north", "north-east"}


def test_the_same_name_with_another_key_needs_a_revocation_first(
    authority: Authority, tmp_path: Path, admit: Any
) -> None:
    admit(tmp_path / "north")
    authority.admit(tmp_path / "north" / "north.req", days=10)  # a renewal
    other = make_request(tmp_path / "other", "north")
    with pytest.raises(InputError, match="revoke it first"):
        authority.admit(other, days=10)
    authority.revoke("north")
    assert authority.admit(other, days=10).hospital == "north"
