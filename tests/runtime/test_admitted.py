"""Who may connect to a running study: the authority's folder as it changes between two looks."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from pate_fed.identity import Authority, make_request
from pate_fed.runtime import admitted as room
from pate_fed.runtime.admitted import AdmittedHospitals


class Link:
    """Which key each node was registered with."""

    def __init__(self) -> None:
        self.keys: dict[int, bytes] = {}
        self._next = 1

    def register(self, public: bytes, name: str) -> int:
        self.keys[self._next] = public
        self._next += 1
        return self._next - 1

    def unregister(self, node: int) -> None:
        del self.keys[node]


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    monkeypatch.setattr(room, "_WATCH_S", 3600.0)  # looked at when the test says so
    return Authority.init(tmp_path / "ca", address="coordinator.example:9092", terms="{}", days=90)


def test_a_name_with_another_key_is_shut_out_and_let_in(authority: Authority, tmp_path: Path) -> None:
    said: list[str] = []
    link = Link()
    authority.admit(make_request(tmp_path / "old", "north"), days=9)
    roster = AdmittedHospitals(authority, cast(Any, link), report=said.append)
    [old] = link.keys.values()
    authority.revoke("north")
    authority.admit(make_request(tmp_path / "new", "north"), days=9)
    roster._update()
    roster.stop()
    assert said == ["north is revoked: shut out"]
    assert list(roster.names.values()) == ["north"]
    [new] = link.keys.values()
    assert new != old


def test_a_renewed_certificate_is_looked_at_again(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    request = make_request(tmp_path / "north", "north")
    with monkeypatch.context() as past:
        past.setattr("pate_fed.identity.authority.issue", _expired)
        authority.admit(request, days=9)
    roster = AdmittedHospitals(authority, cast(Any, Link()), report=print)
    assert not roster.names
    assert "it cannot connect" in capsys.readouterr().err
    authority.admit(request, days=9)
    roster._update()
    roster._update()
    roster.stop()
    assert list(roster.names.values()) == ["north"]


def _expired(ca: Any, key: Any, **terms: Any) -> Any:
    from pate_fed.identity.certificates import issue

    return issue(ca, key, **{**terms, "days": -1})
