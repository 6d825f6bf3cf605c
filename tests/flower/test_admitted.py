"""Who may connect to a running study: the authority's folder as it changes between two looks."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from pate_fed.flower import host as room
from pate_fed.flower.host import AdmittedHospitals
from pate_fed.identity import Authority, make_request
from pate_fed.identity.certificates import issue


class Link:
    """Which key each node was registered with."""

    def __init__(self) -> None:
        self.keys: dict[int, bytes] = {}
        self.lines: list[str] = []
        self._next = 1

    def register(self, public: bytes, name: str) -> int:
        self.keys[self._next] = public
        self._next += 1
        return self._next - 1

    def unregister(self, node: int) -> None:
        del self.keys[node]

    def new_lines(self) -> list[str]:
        found, self.lines = self.lines, []
        return found


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
        past.setattr("pate_fed.identity.certificates.issue", _expired)
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
    return issue(ca, key, **{**terms, "days": -1})


def test_revoked_and_admitted_again_with_the_same_key_is_let_in(authority: Authority, tmp_path: Path) -> None:
    said: list[str] = []
    link = Link()
    request = make_request(tmp_path / "north", "north")
    authority.admit(request, days=60)
    roster = AdmittedHospitals(authority, cast(Any, link), report=said.append)
    [key] = link.keys.values()
    authority.revoke("north")
    roster._update()
    assert (roster.names, roster.sum_identities, link.keys) == ({}, {}, {})
    authority.admit(request, days=60)
    roster._update()
    roster.stop()
    assert list(roster.names.values()) == ["north"]
    assert list(roster.sum_identities) == ["north"]
    assert list(link.keys.values()) == [key]
    assert said == ["north is revoked: shut out"]


class _Refusing(Link):
    """A SuperLink that does not do what is asked of it for some names or nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: set[str | int] = set()

    def register(self, public: bytes, name: str) -> int:
        if name in self.refused:
            raise RuntimeError("Public key already in use")
        return super().register(public, name)

    def unregister(self, node: int) -> None:
        if node in self.refused:
            raise RuntimeError("no such node")
        super().unregister(node)


def test_one_hospitals_failure_is_said_once_and_keeps_no_other_out(
    authority: Authority, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link = _Refusing()
    link.refused = {"east"}
    for name in ("east", "north"):
        authority.admit(make_request(tmp_path / name, name), days=60)
    roster = AdmittedHospitals(authority, cast(Any, link), report=print)
    for _ in range(3):
        roster._update()
    assert list(roster.names.values()) == ["north"]
    assert capsys.readouterr().err == "warning: east could not be let in (RuntimeError); it is tried again\n"
    link.refused = set()
    roster._update()
    roster.stop()
    assert sorted(roster.names.values()) == ["east", "north"]
    assert capsys.readouterr().err == ""


def test_who_is_revoked_counts_no_more_even_where_it_cannot_be_cut_off_yet(
    authority: Authority, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link = _Refusing()
    for name in ("east", "north"):
        authority.admit(make_request(tmp_path / name, name), days=60)
    roster = AdmittedHospitals(authority, cast(Any, link), report=lambda text: None)
    [east] = [node for node, name in roster.names.items() if name == "east"]
    link.refused = {east}
    authority.revoke("east")
    for _ in range(3):
        roster._update()
    assert list(roster.names.values()) == ["north"]
    assert capsys.readouterr().err.count("could not be cut off") == 1
    link.refused = set()
    roster._update()
    roster.stop()
    assert east not in link.keys


def test_a_damaged_certificate_is_its_own_hospitals_alone(
    authority: Authority, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link = Link()
    for name in ("east", "north", "west"):
        authority.admit(make_request(tmp_path / name, name), days=60)
    roster = AdmittedHospitals(authority, cast(Any, link), report=lambda text: None)
    (authority.folder / "hospitals" / "east.crt").write_bytes(b"half a certif")
    authority.revoke("west")
    roster._update()
    roster._update()
    roster.stop()
    assert list(roster.names.values()) == ["north"]
    assert capsys.readouterr().err.count("east") == 1


def test_an_unchanged_folder_is_not_read_again(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority.admit(make_request(tmp_path / "north", "north"), days=60)
    roster = AdmittedHospitals(authority, cast(Any, Link()), report=print)
    monkeypatch.setattr(Authority, "certificate_of", lambda *given: pytest.fail("read again"))
    roster._update()
    monkeypatch.undo()
    authority.admit(make_request(tmp_path / "south", "south"), days=60)
    roster._update()
    roster.stop()
    assert sorted(roster.names.values()) == ["north", "south"]


class _Deaf(Link):
    """A SuperLink that cuts a node off, but whose answer is lost; a key is always the same node's."""

    def register(self, public: bytes, name: str) -> int:
        self.keys[1] = public
        return 1

    def unregister(self, node: int) -> None:
        super().unregister(node)
        raise TimeoutError


def test_who_is_admitted_again_is_not_cut_off_late(authority: Authority, tmp_path: Path) -> None:
    link = _Deaf()
    request = make_request(tmp_path / "north", "north")
    authority.admit(request, days=60)
    roster = AdmittedHospitals(authority, cast(Any, link), report=lambda text: None)
    authority.revoke("north")
    roster._update()
    assert link.keys == {}
    authority.admit(request, days=60)
    for _ in range(3):
        roster._update()
    roster.stop()
    assert roster.names == {1: "north"}
    assert list(link.keys) == [1]


def test_whose_clock_is_another_is_told_once(authority: Authority) -> None:
    said: list[str] = []
    link = Link()
    roster = AdmittedHospitals(authority, cast(Any, link), report=said.append)
    for seconds in (86_400, 86_400, -90_061):
        link.lines = ["INFO: a line of Flower's", f"pate_fed: another clock: north {seconds}"]
        roster._tell_clocks()
    roster.stop()
    [sentence] = said
    assert sentence.startswith(
        "north cannot connect: its clock is 24 h 00 min ahead of this machine's, which"
    )
