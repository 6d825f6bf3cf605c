"""A study's authority at the coordinator: makes its keys, admits hospitals, revokes them.

The folder holds ca.key, server.key and ledger.key (mode 0600), ca.crt, server.crt, study.json (address and
signed terms), and a certificate a hospital in hospitals/ or revoked/. Admitting or revoking one touches no
other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

from pate_fed.disk import hold, read_json, write_result
from pate_fed.errors import InputError, IntegrityError
from pate_fed.identity import certificates as certs
from pate_fed.identity import keys
from pate_fed.identity.admission import Admission, SignedStudy, ledger_key_bytes, signed_bytes
from pate_fed.kinds.terms import Terms
from pate_fed.secure_sum import fingerprint as fingerprint_of
from pate_fed.secure_sum import spoken
from pate_fed.structure import to_plain

_LOCAL = ("localhost", "127.0.0.1")


@dataclass(frozen=True, slots=True)
class Authority:
    """A study's certificate authority, in one folder."""

    folder: Path

    @classmethod
    def init(cls, folder: Path, *, address: str, terms: str, days: int) -> Authority:
        """Make the authority and the coordinator's keys for hospitals that will connect to `address`.

        `terms` is the study's canonical JSON, signed here: a hospital refuses any other.

        Raises:
            InputError: there is one already, or the folder cannot be written.
        """
        ca_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
        ledger_key = Ed25519PrivateKey.generate()
        ca = certs.self_signed(ca_key, "pate_fed study authority", days=days)
        host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
        hosts = list(dict.fromkeys([host, *_LOCAL]))
        server = certs.issue(
            ca, ca_key, name="coordinator", public=server_key.public_key(), days=days, hosts=hosts
        )
        keys.write_new_private(folder / "ca.key", _pem(ca_key))
        keys.write_new_private(folder / "server.key", _pem(server_key))
        keys.write_new_private(folder / "ledger.key", _pem(ledger_key))
        write_result(folder / "ca.crt", certs.to_pem(ca), public=True)
        write_result(folder / "server.crt", certs.to_pem(server), public=True)
        public = ledger_key.public_key().public_bytes_raw().hex()
        study = SignedStudy(
            address=address,
            terms=terms,
            signature=keys.sign(ca_key, signed_bytes(terms)),
            ledger_key=public,
            ledger_signature=keys.sign(ca_key, ledger_key_bytes(terms, public)),
        )
        write_result(folder / "study.json", json.dumps(to_plain(study), indent=1).encode(), public=True)
        for name in ("hospitals", "revoked"):
            (folder / name).mkdir(exist_ok=True)
        return cls(folder)

    @property
    def certificate(self) -> certs.Certificate:
        """The authority's own certificate; InputError where the folder holds none."""
        if not (self.folder / "ca.crt").exists():
            raise InputError(f"{self.folder}: holds no study authority; make one with `pate-fed study init`")
        return certs.load_certificate(self.folder / "ca.crt")

    @property
    def study(self) -> SignedStudy:
        """Address and signed terms; InputError where the folder holds none."""
        return read_json(SignedStudy, self.folder / "study.json", what="a study of `pate-fed study init`")

    def admit(self, request: Path, *, days: int) -> Admission:
        """Sign a hospital's request, and return the admission that goes back to it (`admit_all`)."""
        [made] = self.admit_all([request], days=days)
        return made

    def admit_all(self, requests: Iterable[Path], *, days: int) -> list[Admission]:
        """Sign hospitals' requests, and return the admissions that go back; each names all who are admitted.

        Raises:
            InputError: no request, a hospital of that name with another key, or a clock that was set back.
            IntegrityError: a request was changed on its way.
        """
        asked = [keys.read_request(path) for path in requests]
        with hold(self.folder, what="the study's keys in"):
            certificates = [self._admit(each, days=days) for each in asked]
            known = {name: fingerprint_of(certs.sum_identity_of(held)) for name, held in self.admitted()}
        study, authority = asdict(self.study), certs.to_pem(self.certificate).decode()
        return [
            Admission(
                hospital=each.name,
                certificate=certs.to_pem(certificate).decode(),
                authority=authority,
                hospitals={name: words for name, words in known.items() if name != each.name},
                **study,
            )
            for each, certificate in zip(asked, certificates, strict=True)
        ]

    def _admit(self, asked: keys.AdmissionRequest, *, days: int) -> certs.Certificate:
        name = asked.name
        held = self.folder / "hospitals" / f"{name}.crt"
        if held.exists() and certs.load_certificate(held).public_key() != asked.public:
            raise InputError(
                f"{name} is admitted already with another key; revoke it first: pate-fed study revoke {name}"
            )
        certificate = certs.issue(
            self.certificate,
            self._ca_key(),
            name=name,
            public=asked.public,
            days=days,
            sum_identity=asked.sum_identity,
        )
        if self._was_revoked(name, certificate):
            raise InputError(f"{name}: what was revoked is of a later time; is this machine's clock right?")
        held.parent.mkdir(exist_ok=True)
        write_result(held, certs.to_pem(certificate), public=True)
        return certificate

    def revoke(self, name: str) -> None:
        """Shut one hospital out, also of a running study; InputError where no such one is admitted."""
        held = self.folder / "hospitals" / f"{keys.check_name(name)}.crt"
        with hold(self.folder, what="the study's keys in"):
            if not held.exists():
                known = ", ".join(sorted(each.stem for each in held.parent.glob("*.crt"))) or "none"
                raise InputError(f"{name}: no such hospital is admitted (admitted: {known})")
            (self.folder / "revoked").mkdir(exist_ok=True)
            certificate = certs.load_certificate(held)
            held.replace(self.folder / "revoked" / f"{name}-{certificate.serial_number:x}.crt")

    def admitted(self) -> Iterator[tuple[str, certs.Certificate]]:
        """Names and certificates of all hospitals that are admitted, by name; some may have expired.

        What was revoked stays so, even where an old copy of its certificate was put back into hospitals/.

        Raises:
            IntegrityError: a certificate is not the authority's, or not of that name.
        """
        for name in self.hospital_names():
            certificate = self.certificate_of(name)
            if certificate is not None:
                yield name, certificate

    def hospital_names(self) -> list[str]:
        """Names of the hospitals of which a certificate lies in hospitals/."""
        return sorted(path.stem for path in (self.folder / "hospitals").glob("*.crt"))

    def certificate_of(self, name: str) -> certs.Certificate | None:
        """The certificate with which a hospital is admitted, None where it is revoked.

        Raises:
            InputError: the file cannot be read.
            IntegrityError: the certificate is not the authority's, or not of that name.
        """
        path = self.folder / "hospitals" / f"{name}.crt"
        if not path.exists():
            return None
        certificate = certs.load_certificate(path)
        certs.require_issued(certificate, self.certificate, f"{name}'s")
        if certs.name_of(certificate) != name:
            raise IntegrityError(f"{path}: the certificate is of {certs.name_of(certificate)!r}")
        return None if self._was_revoked(name, certificate) else certificate

    def _was_revoked(self, name: str, certificate: certs.Certificate) -> bool:
        """Whether this very certificate, or one that was given out after it, is in revoked/."""
        for path in (self.folder / "revoked").glob(f"{name}-*.crt"):
            revoked = certs.load_certificate(path)
            if certs.name_of(revoked) == name and (
                certificate.serial_number == revoked.serial_number
                or certificate.not_valid_before_utc < revoked.not_valid_before_utc
            ):
                return True
        return False

    def check_server(self) -> list[str]:
        """Make sure that the coordinator's own identity can be used; returns warnings.

        Raises:
            InputError: a key that others can read or that is another one's, or a certificate that is not
                valid.
            IntegrityError: the certificate is not the authority's.
        """
        server = certs.load_certificate(self.folder / "server.crt")
        certs.require_issued(server, self.certificate, "the coordinator's")
        if self._load("server.key").public_key() != server.public_key():
            raise InputError(
                f"{self.folder}: server.key is not the key of server.crt; put the right one back"
            )
        warnings = []
        for whose, certificate in (("the authority's", self.certificate), ("the coordinator's", server)):
            certs.require_valid(certificate, whose)
            warnings += certs.expiry_warnings(certificate, whose)
        return warnings

    def require_terms(self, digest: str) -> None:
        """Make sure that the keys were made for these terms: hospitals were admitted to no other.

        Raises:
            InputError: the keys were made for other terms.
        """
        if Terms.from_json(self.study.terms).digest != digest:
            raise InputError(
                f"the study is not the one that {self.folder} was made for; its hospitals would refuse it: "
                "make the keys of this study in another folder"
            )

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the authority's certificate, hex; its `words` are for the telephone."""
        return certs.fingerprint(self.certificate)

    @property
    def words(self) -> str:
        """The authority's fingerprint, to tell by telephone."""
        return spoken(bytes.fromhex(self.fingerprint))

    def ledger_key(self) -> Ed25519PrivateKey:
        """The key that signs every row of the coordinator's ledger.

        Raises:
            InputError: others can read it, or it is no such key.
        """
        key = self._load("ledger.key")
        if isinstance(key, Ed25519PrivateKey):
            return key
        raise self._wrong_key("ledger.key")

    def _ca_key(self) -> ec.EllipticCurvePrivateKey:
        key = self._load("ca.key")
        if isinstance(key, ec.EllipticCurvePrivateKey):
            return key
        raise self._wrong_key("ca.key")

    def _load(self, name: str) -> PrivateKeyTypes:
        keys.check_private(self.folder / name)
        try:
            return serialization.load_pem_private_key((self.folder / name).read_bytes(), None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise self._wrong_key(name) from error

    def _wrong_key(self, name: str) -> InputError:
        return InputError(f"{self.folder / name}: not a key of `pate-fed study init`")


def _pem(key: ec.EllipticCurvePrivateKey | Ed25519PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
