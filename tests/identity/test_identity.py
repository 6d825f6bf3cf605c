"""Who may join: keys that stay, requests that are signed, and every identity that must be refused."""

from __future__ import annotations

import json
import ssl
import stat
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from builders import make_terms, vary
from cryptography import x509

from pate_fed.errors import InputError, IntegrityError
from pate_fed.identity import (
    Admission,
    Authority,
    HospitalIdentity,
    certificates,
    make_request,
    read_request,
    sum_fingerprint,
)
from pate_fed.protocol.messages import Terms
from pate_fed.secure_sum import fingerprint

TERMS = make_terms(
    num_classes=2,
    image_shape=(3,),
    pool_size=10,
    num_clients=3,
    least_clients=2,
    aggregator="gnmax",
    labels=5,
    max_queries=5,
).to_json()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.init(tmp_path / "ca", address="coordinator.example:9092", terms=TERMS, days=90)


def _admit(authority: Authority, folder: Path, name: str = "north", days: int = 60) -> HospitalIdentity:
    admission = authority.admit(make_request(folder, name), days=days)
    admission.write(folder / f"{name}.admission")
    return HospitalIdentity.accept(folder, folder / f"{name}.admission")


def test_a_hospital_is_admitted_and_keeps_its_key(authority: Authority, tmp_path: Path) -> None:
    identity = _admit(authority, tmp_path / "north")
    assert identity.check("north") == []
    assert identity.admission.address == "coordinator.example:9092"
    assert identity.admission.terms_digest == Terms.from_json(TERMS).digest
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


def test_the_server_is_known_by_its_address_and_on_its_own_machine(authority: Authority) -> None:
    certificate = certificates.load_certificate(authority.folder / "server.crt")
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["coordinator.example", "localhost"]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    assert authority.check_server() == []


def test_one_hospital_more_or_less_touches_no_other(authority: Authority, tmp_path: Path) -> None:
    first = _admit(authority, tmp_path / "north")
    before = (authority.folder / "hospitals" / "north.crt").read_bytes()
    _admit(authority, tmp_path / "south", "south")
    authority.revoke("south")
    assert (authority.folder / "hospitals" / "north.crt").read_bytes() == before
    assert first.check("north") == []
    assert [name for name, _ in authority.admitted()] == ["north"]
    with pytest.raises(InputError, match=r"south: no such hospital is admitted \(admitted: north\)"):
        authority.revoke("south")


def test_an_old_copy_of_a_certificate_does_not_undo_a_revocation(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _admit(authority, tmp_path / "north")
    _admit(authority, tmp_path / "north-east", "north-east")
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
    authority: Authority, tmp_path: Path
) -> None:
    _admit(authority, tmp_path / "north")
    authority.admit(tmp_path / "north" / "north.req", days=10)  # a renewal
    other = make_request(tmp_path / "other", "north")
    with pytest.raises(InputError, match="revoke it first"):
        authority.admit(other, days=10)
    authority.revoke("north")
    assert authority.admit(other, days=10).hospital == "north"


def test_a_changed_request_is_refused(tmp_path: Path) -> None:
    request = make_request(tmp_path, "north")
    values = json.loads(request.read_text())
    for change in ({"hospital": "south"}, {"sum_identity": "ab" * 32}):
        request.write_text(json.dumps({**values, **change}))
        with pytest.raises(IntegrityError, match="changed on its way"):
            read_request(request)
    for bad in (
        {},
        {**values, "public_key": "x"},
        {**values, "signature": "zz"},
        {**values, "sum_identity": 3},
        [],
    ):
        request.write_text(json.dumps(bad))
        with pytest.raises(InputError, match="not a request"):
            read_request(request)
    with pytest.raises(InputError, match="there is a key already"):
        make_request(tmp_path, "north")
    with pytest.raises(InputError, match="hospital's name"):
        make_request(tmp_path / "x", "../north")


def test_swapped_and_foreign_identities_are_refused(authority: Authority, tmp_path: Path) -> None:
    north = _admit(authority, tmp_path / "north")
    south = _admit(authority, tmp_path / "south", "south")
    with pytest.raises(InputError, match="is north's, not south's"):
        north.check("south")
    swapped = HospitalIdentity(south.folder, north.admission)
    with pytest.raises(InputError, match="not the key that was admitted as north"):
        swapped.check("north")
    foreign = Authority.init(tmp_path / "other", address="h:1", terms=TERMS, days=9)
    forged = replace(north.admission, authority=foreign.folder.joinpath("ca.crt").read_text())
    with pytest.raises(IntegrityError, match="not from this study's authority"):
        HospitalIdentity(north.folder, forged).check("north")
    with pytest.raises(IntegrityError, match="not the expected one"):
        forged.write(tmp_path / "forged.admission")
        HospitalIdentity.accept(north.folder, tmp_path / "forged.admission", expected=authority.fingerprint)
    (authority.folder / "hospitals" / "west.crt").write_text(north.admission.certificate)
    with pytest.raises(IntegrityError, match="of 'north'"):
        list(authority.admitted())


def test_the_key_of_secure_sums_is_bound_to_the_name(authority: Authority, tmp_path: Path) -> None:
    north, south = _admit(authority, tmp_path / "north"), _admit(authority, tmp_path / "south", "south")
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


def test_changed_terms_are_refused(authority: Authority, tmp_path: Path) -> None:
    north = _admit(authority, tmp_path / "north")
    louder = vary(Terms.from_json(TERMS), sigma2=0.1).to_json()
    changed = replace(north.admission, terms=louder)
    with pytest.raises(IntegrityError, match="not signed"):
        HospitalIdentity(north.folder, changed).check("north")


def test_a_key_that_others_can_read_is_refused(authority: Authority, tmp_path: Path) -> None:
    north = _admit(authority, tmp_path / "north")
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
    shift: float, words: str | None, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    north = _admit(authority, tmp_path / "north")

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
    for text in ("", "{}", "[]", '{"hospital": 3}'):
        path.write_text(text)
        with pytest.raises(InputError, match="not an admission"):
            Admission.read(path)
    with pytest.raises(InputError, match="cannot be read"):
        Admission.read(tmp_path / "none")
    with pytest.raises(InputError, match="hospital request"):
        HospitalIdentity.open(tmp_path)


def test_certificates_pass_the_strict_check_that_python_3_13_makes_by_default(authority: Authority) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(authority.folder / "server.crt", authority.folder / "server.key")
    client = ssl.create_default_context(cafile=str(authority.folder / "ca.crt"))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(back, there, server_hostname="coordinator.example")
    other = server.wrap_bio(there, back, server_side=True)
    for side in (one, other, one, other):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    assert one.version() == "TLSv1.3"
    assert one.getpeercert()
