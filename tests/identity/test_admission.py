"""A hospital's identity: keys that stay, and every identity that must be refused."""

from __future__ import annotations

import json
import stat
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from builders import vary

from pate_fed.errors import InputError, IntegrityError
from pate_fed.identity import (
    Admission,
    Authority,
    HospitalIdentity,
    certificates,
    make_request,
    sum_fingerprint,
)
from pate_fed.kinds.terms import Terms
from pate_fed.secure_sum import fingerprint


def test_a_hospital_is_admitted_and_keeps_its_key(
    authority: Authority, tmp_path: Path, admit: Any, terms: Terms
) -> None:
    identity = admit(tmp_path / "north")
    assert identity.check("north") == []
    assert identity.admission.address == "coordinator.example:9092"
    assert identity.admission.terms_digest == terms.digest
    assert identity.admission.fingerprint == authority.fingerprint
    assert [name for name, _ in authority.admitted()] == ["north"]
    assert HospitalIdentity.open(tmp_path / "north").check("north") == []
    secrets = list(tmp_path.rglob("*.key"))
    assert {path.name for path in secrets} == {
        "ca.key",
        "server.key",
        "ledger.key",
        "hospital.key",
        "sum.key",
    }
    assert {stat.S_IMODE(path.stat().st_mode) for path in secrets} == {0o600}
    others = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "sum.key"]
    raw = (tmp_path / "north" / "sum.key").read_bytes()
    assert not any(raw in path.read_bytes() or raw.hex() in path.read_text("utf-8") for path in others)
    for secret in (path for path in secrets if path.name != "sum.key"):
        for line in secret.read_text(encoding="utf-8").splitlines()[1:-1]:
            # Headers of one format may be alike; a whole line of key material is not.
            held = [path for path in others if path != secret and line in path.read_text("utf-8")]
            assert len(line) < 60 or not held


def test_swapped_and_foreign_identities_are_refused(
    authority: Authority, tmp_path: Path, admit: Any, terms: Terms
) -> None:
    north = admit(tmp_path / "north")
    south = admit(tmp_path / "south", "south")
    with pytest.raises(InputError, match="is north's, not south's"):
        north.check("south")
    swapped = HospitalIdentity(south.folder, north.admission)
    with pytest.raises(InputError, match="not the key that was admitted as north"):
        swapped.check("north")
    foreign = Authority.init(tmp_path / "other", address="h:1", terms=terms.to_json(), days=9)
    forged = replace(north.admission, authority=foreign.folder.joinpath("ca.crt").read_text())
    with pytest.raises(IntegrityError, match="not from this study's authority"):
        HospitalIdentity(north.folder, forged).check("north")
    with pytest.raises(IntegrityError, match="not the expected one"):
        forged.write(tmp_path / "forged.admission")
        HospitalIdentity.offered(north.folder, tmp_path / "forged.admission", expected=authority.words).take()
    (authority.folder / "hospitals" / "west.crt").write_text(north.admission.certificate)
    with pytest.raises(IntegrityError, match="of 'north'"):
        list(authority.admitted())


def test_changed_terms_are_refused(tmp_path: Path, admit: Any, terms: Terms) -> None:
    north = admit(tmp_path / "north")
    louder = vary(terms, sigma2=0.1).to_json()
    changed = replace(north.admission, terms=louder)
    with pytest.raises(IntegrityError, match="not signed"):
        HospitalIdentity(north.folder, changed).check("north")


def test_a_key_that_others_can_read_is_refused(authority: Authority, tmp_path: Path, admit: Any) -> None:
    north = admit(tmp_path / "north")
    north.key_path.chmod(0o640)
    with pytest.raises(InputError, match="others can read this key"):
        north.check("north")
    (authority.folder / "server.key").chmod(0o604)
    with pytest.raises(InputError, match="others can read this key"):
        authority.check_server()
    (authority.folder / "ledger.key").chmod(0o644)
    with pytest.raises(InputError, match="others can read this key"):
        authority.ledger_key()
    (authority.folder / "ca.key").chmod(0o666)
    with pytest.raises(InputError, match="others can read this key"):
        authority.admit(tmp_path / "north" / "north.req", days=1)


@pytest.mark.parametrize(
    ("shift", "words"), [(100, "expired on"), (-2, "clock"), (-1 / 2, None), (40, "expires in"), (0, None)]
)
def test_the_clock(
    shift: float, words: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, admit: Any
) -> None:
    north = admit(tmp_path / "north")

    class Clock(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:
            return datetime.now(UTC) + timedelta(days=shift)

    monkeypatch.setattr(certificates, "datetime", Clock)
    if words in (None, "expires in"):
        warnings = north.check("north")
        assert len(warnings) == (words is not None)
        assert all(str(words) in warning for warning in warnings)
    else:
        with pytest.raises(InputError, match=words):
            north.check("north")


def test_a_damaged_admission_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.admission"
    whole: dict[str, Any] = dict.fromkeys((each.name for each in fields(Admission)), "x") | {
        "hospitals": {"north": "x"}
    }
    for text in ("", "{}", "[]", json.dumps(whole | {"terms": 3}), json.dumps(whole | {"more": "x"})):
        path.write_text(text)
        with pytest.raises(InputError, match="not an admission"):
            Admission.read(path)
    path.write_text(json.dumps(whole))
    assert Admission.read(path) == Admission(**whole)
    with pytest.raises(InputError, match="cannot be read"):
        Admission.read(tmp_path / "none")
    with pytest.raises(InputError, match="hospital request"):
        HospitalIdentity.open(tmp_path)


def test_an_admission_names_all_the_others(authority: Authority, tmp_path: Path) -> None:
    requests = [make_request(tmp_path / name, name) for name in ("north", "south", "west")]
    prints = {name: sum_fingerprint(tmp_path / name) for name in ("north", "south", "west")}
    for made in authority.admit_all(requests, days=9):
        assert made.hospitals == {name: text for name, text in prints.items() if name != made.hospital}
    authority.revoke("west")
    late = authority.admit(make_request(tmp_path / "east", "east"), days=9)
    assert set(late.hospitals) == {"north", "south"}


def test_the_key_of_secure_sums_is_bound_to_the_name(
    authority: Authority, tmp_path: Path, admit: Any
) -> None:
    north, south = admit(tmp_path / "north"), admit(tmp_path / "south", "south")
    [held, _] = [certificates.sum_identity_of(certificate) for _, certificate in authority.admitted()]
    assert fingerprint(held) == sum_fingerprint(north.folder)
    assert sum_fingerprint(north.folder) != sum_fingerprint(south.folder)
    assert certificates.sum_identity_of(certificates.load_certificate(authority.folder / "server.crt")) == b""
    north.sum_key_path.write_bytes(south.sum_key_path.read_bytes())
    with pytest.raises(InputError, match=r"sum\.key is not the key that was admitted as north"):
        north.check("north")
    north.sum_key_path.chmod(0o644)
    with pytest.raises(InputError, match="others can read this key"):
        north.check("north")
