"""A hospital's admission, the one small file that it gets back, its identity, and its consent to terms."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from pate_fed.disk import read_file, read_json, sync_folder, write_result
from pate_fed.errors import InputError, IntegrityError, naming_refusal
from pate_fed.identity import certificates as certs
from pate_fed.identity.keys import KEY_FILE, SUM_KEY_FILE, is_signed, load_key, load_sum_key
from pate_fed.kinds.terms import Terms
from pate_fed.secure_sum import read_fingerprint, spoken
from pate_fed.structure import to_plain

ADMISSION_FILE = "admission.json"
CA_FILE = "ca.crt"


def signed_bytes(terms_json: str) -> bytes:
    """What the authority signs for a study's terms: their purpose and their canonical JSON."""
    return b"pate_fed/v1 terms of a study\n" + terms_json.encode()


def ledger_key_bytes(terms_json: str, public_key: str) -> bytes:
    """What the authority signs for the coordinator's ledger key, hex: it is this very study's."""
    return b"pate_fed/v1 ledger key of a study\n" + public_key.encode() + b"\n" + terms_json.encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedStudy:
    """Where hospitals connect to, the study's canonical terms, and the authority's signature on them, hex.

    The authority signs the key of the coordinator's ledger and receipts, too, hex; a folder of an earlier
    release names none, and its hospitals get no receipts.
    """

    address: str
    terms: str
    signature: str
    ledger_key: str = ""
    ledger_signature: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission(SignedStudy):
    """What the coordinator gives an admitted hospital; nothing in it is secret.

    `certificate` and `authority` are PEM. `hospitals` are the others that were admitted by then, with their
    fingerprints: what the coordinator says of them, for each hospital to confirm by telephone.
    """

    hospital: str
    certificate: str
    authority: str
    hospitals: Mapping[str, str] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write the file; InputError where it cannot be written."""
        write_result(path, json.dumps(to_plain(self), indent=1).encode(), public=True)

    @classmethod
    def read(cls, path: Path) -> Admission:
        """Read the file; InputError where it cannot be read, or is no admission."""
        return read_json(cls, path, what="an admission of `pate-fed study admit`")

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the authority's certificate, hex; its `words` are for the telephone."""
        return certs.fingerprint(certs.read_certificate(self.authority.encode(), "the admission"))

    @property
    def words(self) -> str:
        """The authority's fingerprint, to compare by telephone."""
        return spoken(bytes.fromhex(self.fingerprint))

    @property
    def study_terms(self) -> Terms:
        """The study's terms; `terms_digest` checks whose they are; IntegrityError where they are none."""
        return Terms.from_json(self.terms)

    @property
    def terms_digest(self) -> str:
        """SHA-256 of the terms, once the authority's signature on them is checked.

        Raises:
            IntegrityError: they are none, or the signature is not the authority's.
        """
        self._require_signed(self.signature, signed_bytes(self.terms), "the terms in the admission are")
        return self.study_terms.digest

    @property
    def receipt_key(self) -> Ed25519PublicKey | None:
        """The key of the coordinator's receipts, once the authority's signature on it is checked.

        None: the admission names none.

        Raises:
            IntegrityError: the signature is not the authority's, or it is no key.
        """
        if not self.ledger_key:
            return None
        signed = ledger_key_bytes(self.terms, self.ledger_key)
        self._require_signed(self.ledger_signature, signed, "the ledger key in the admission is")
        try:
            return Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.ledger_key))
        except ValueError as error:
            raise IntegrityError("the ledger key in the admission is no key") from error

    def _require_signed(self, signature: str, content: bytes, what: str) -> None:
        public = certs.read_certificate(self.authority.encode(), "the admission").public_key()
        if not is_signed(public, signature, content):
            raise IntegrityError(f"{what} not signed by the study's authority; have it sent again")


@dataclass(frozen=True, slots=True)
class HospitalIdentity:
    """A hospital's identity in its own folder: the keys that it made, and its admission."""

    folder: Path
    admission: Admission

    @classmethod
    def offered(cls, folder: Path, admission: Path, *, expected: str | None = None) -> HospitalIdentity:
        """The identity that an admission would make of the key in the folder, checked; nothing is written.

        `expected` is the authority's fingerprint, in words, as the coordinator told it another way.

        Raises:
            InputError: another hospital's admission, or no key in the folder.
            IntegrityError: another authority's fingerprint, or parts that do not belong together.
        """
        given = Admission.read(admission)
        if not (folder / KEY_FILE).exists():
            raise InputError(
                f"{folder}: holds no {KEY_FILE}; give the folder that `pate-fed hospital request` made it in"
            )
        if expected is not None and read_fingerprint(expected) != given.words:
            raise IntegrityError(
                f"{admission}: the authority's fingerprint is {given.words}, not the expected "
                "one: do not join, call the coordinator"
            )
        identity = cls(folder, given)
        identity.check(given.hospital)
        return identity

    def take(self) -> HospitalIdentity:
        """Write the admission into the folder; InputError where it cannot be written."""
        self.admission.write(self.folder / ADMISSION_FILE)
        write_result(self.ca_path, self.admission.authority.encode(), public=True)
        return self

    @classmethod
    def open(cls, folder: Path) -> HospitalIdentity:
        """The identity in a folder.

        Raises:
            InputError: the folder holds none, or files of it are missing.
            IntegrityError: its authority is not the admission's.
        """
        if not (folder / KEY_FILE).exists():
            raise InputError(f"{folder}: holds no {KEY_FILE}; make one with `pate-fed hospital request`")
        if not (folder / ADMISSION_FILE).exists():
            raise InputError(
                f"{folder}: was not admitted yet; take the admission with `pate-fed hospital accept`"
            )
        found = cls(folder, Admission.read(folder / ADMISSION_FILE))
        authority = certs.read_certificate(found.admission.authority.encode(), f"{folder}: the admission")
        if certs.load_certificate(found.ca_path) != authority:
            raise IntegrityError(
                f"{found.ca_path}: not the authority of the admission; take the admission again with "
                "`pate-fed hospital accept`"
            )
        return found

    def check(self, hospital: str) -> list[str]:
        """Make sure that key, certificate, authority, name and clock go together; returns warnings.

        Raises:
            InputError: a key that others can read or that is another hospital's, or a certificate that has
                expired or is another hospital's.
            IntegrityError: the certificate or the terms are not the authority's.
        """
        certificate = certs.read_certificate(
            self.admission.certificate.encode(), f"{self.folder}: the admission"
        )
        authority = certs.read_certificate(self.admission.authority.encode(), f"{self.folder}: the admission")
        key = load_key(self.folder / KEY_FILE)
        if certs.name_of(certificate) != hospital or self.admission.hospital != hospital:
            raise InputError(
                f"{self.folder}: this identity is {certs.name_of(certificate)}'s, not {hospital}'s; every "
                "hospital has its own"
            )
        certs.require_issued(certificate, authority, f"{hospital}'s")
        if certificate.public_key() != key.public_key():
            raise InputError(f"{self.folder}: {KEY_FILE} is not the key that was admitted as {hospital}")
        if certs.sum_identity_of(certificate) != load_sum_key(self.sum_key_path).public:
            raise InputError(f"{self.folder}: {SUM_KEY_FILE} is not the key that was admitted as {hospital}")
        certs.require_valid(authority, "the study authority's")
        certs.require_valid(certificate, f"{hospital}'s")
        _ = self.admission.terms_digest, self.admission.receipt_key
        return certs.expiry_warnings(certificate, f"{hospital}'s")

    @property
    def key_path(self) -> Path:
        """The key's file."""
        return self.folder / KEY_FILE

    @property
    def sum_key_path(self) -> Path:
        """The file of the key for secure sums."""
        return self.folder / SUM_KEY_FILE

    @property
    def ca_path(self) -> Path:
        """The authority's certificate's file."""
        return self.folder / CA_FILE


# A hospital's own record of who accepted which terms when; it is only ever added to.

CONSENT_FILE = "consent.jsonl"  # beside the hospital's keys


def login_name() -> str:
    """The login name of who runs this process; its number where the system knows no name."""
    number = os.getuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Consent:
    """One acceptance: `user` (login name) accepted the terms with this digest at `time` (ISO 8601, UTC).

    They are who runs this process and now, unless others are given. `answer` says how: asked at the terminal,
    or by an option. `fingerprint_given`: the command was told the authority's fingerprint, and compared it.
    """

    time: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    user: str = field(default_factory=login_name)
    hospital: str
    study: str
    terms: str
    authority: str
    fingerprint_given: bool
    answer: str


def record_consent(folder: Path, made: Consent) -> None:
    """Add a consent to the record in a folder, on the disk then; InputError where it cannot be written."""
    path = folder / CONSENT_FILE
    with naming_refusal(f"{path}: cannot be written"):
        handle = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        with os.fdopen(handle, "ab") as file:
            file.write(json.dumps(asdict(made)).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        sync_folder(folder)


def consent_to(folder: Path, *, terms: str, authority: str) -> Consent | None:
    """The last consent to the terms with this digest, of this authority; None where there is none.

    Raises:
        InputError: the record cannot be read.
    """
    path = folder / CONSENT_FILE
    try:
        lines = read_file(path).decode().splitlines()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read") from error
    found = [
        each for each in map(_read, lines) if each and (each.terms, each.authority) == (terms, authority)
    ]
    return found[-1] if found else None


def _read(line: str) -> Consent | None:
    """The consent in a line; None in one that a crash or a full disk cut."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    whole = isinstance(values, dict) and set(values) == {each.name for each in fields(Consent)}
    return Consent(**values) if whole else None
