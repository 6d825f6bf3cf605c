"""Key files, made and read with mode 0600 only, a signed request to be admitted, and a signed receipt."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict, dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from pate_fed.disk import read_json, write_result
from pate_fed.errors import InputError, IntegrityError, naming_refusal
from pate_fed.secure_sum import Identity, fingerprint
from pate_fed.secure_sum.keys import verify
from pate_fed.structure import PARTY_NAME, PARTY_NAME_IS, from_plain, to_plain

KEY_FILE = "hospital.key"
SUM_KEY_FILE = "sum.key"
_PURPOSE = b"pate_fed/v1 request to be admitted\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRequest:
    """A hospital's request to be admitted: its name and two public keys, the second for secure sums.

    Both keys signed it, so that the second one's fingerprint tells whose the first is, too.
    """

    name: str
    public: ec.EllipticCurvePublicKey
    sum_identity: bytes

    @property
    def fingerprint(self) -> str:
        """The hospital's, in words: for the coordinator and all other hospitals, by telephone."""
        return fingerprint(self.sum_identity)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RequestFile:
    """A request as it is written: the key in PEM, the secure-sum key and both signatures in hex."""

    hospital: str
    public_key: str
    sum_identity: str
    signature: str
    sum_signature: str


def check_name(name: str) -> str:
    """The hospital's name, once it is checked: it is also a file's.

    Raises:
        InputError: not 1 to 64 letters, digits, dots, dashes or underscores.
    """
    if not PARTY_NAME.fullmatch(name):
        raise InputError(f"the hospital's name {name!r}: {PARTY_NAME_IS}")
    return name


def check_private(path: Path) -> None:
    """Refuse a secret that others can read, or that is not there, by an InputError."""
    with naming_refusal(f"{path}: cannot be read"):
        mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise InputError(
            f"{path}: others can read this key (mode {mode:04o}): chmod 600 {path}, and think of a new key"
        )


def load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """The key in a file that only its owner can read.

    Raises:
        InputError: others can read it, or it is no such key. Never with anything of its content.
    """
    check_private(path)
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), None)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InputError(f"{path}: not a private key of `pate-fed`")
    return key


def sign(key: ec.EllipticCurvePrivateKey | Ed25519PrivateKey, message: bytes) -> str:
    """Signature of a message, which begins with its purpose, in hex: Ed25519, or ECDSA with SHA-384."""
    if isinstance(key, Ed25519PrivateKey):
        return key.sign(message).hex()
    return key.sign(message, ec.ECDSA(hashes.SHA384())).hex()


def is_signed(public: object, signature: str, message: bytes) -> bool:
    """Whether `signature` is what `sign` gives with the private key of `public`."""
    try:
        given = bytes.fromhex(signature)
        if isinstance(public, Ed25519PublicKey):
            public.verify(given, message)
        elif isinstance(public, ec.EllipticCurvePublicKey):
            public.verify(given, message, ec.ECDSA(hashes.SHA384()))
        else:
            return False
    except (InvalidSignature, ValueError):
        return False
    return True


def load_sum_key(path: Path) -> Identity:
    """A hospital's signing key in secure summation; its file is its owner's alone.

    Raises:
        InputError: others can read it, or it is no such key. Never with anything of its content.
    """
    check_private(path)
    return Identity(path.read_bytes())


def sum_fingerprint(folder: Path) -> str:
    """A hospital's fingerprint, of the secure-sum key in a folder: others hear it by telephone.

    Raises:
        InputError: there is no such key, or others can read it.
    """
    return fingerprint(load_sum_key(folder / SUM_KEY_FILE).public)


def write_new_private(path: Path, content: bytes) -> None:
    """Write a new file with mode 0600; InputError where it is there already, or cannot be written."""
    with naming_refusal(f"{path}: cannot be written"):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except FileExistsError as error:
            raise InputError(f"{path}: there is a key already, and it stays; give a new folder") from error
        with os.fdopen(handle, "wb") as file:
            file.write(content)


def make_request(folder: Path, name: str) -> Path:
    """Make a hospital's keys in `folder`, and the request NAME.req that goes to the coordinator.

    Raises:
        InputError: a wrong name, a key that is there already, or a folder that cannot be written.
    """
    check_name(name)
    key, sums = ec.generate_private_key(ec.SECP384R1()), Identity.generate()
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    write_new_private(folder / KEY_FILE, pem)  # in OpenSSH's format, as Flower reads it
    write_new_private(folder / SUM_KEY_FILE, sums.to_bytes())
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    signed = _signed(name, public, sums.public)
    path = folder / f"{name}.req"
    request = _RequestFile(
        hospital=name,
        public_key=public.decode(),
        sum_identity=sums.public.hex(),
        signature=sign(key, signed),
        sum_signature=sums.sign(signed).hex(),
    )
    write_result(path, json.dumps(to_plain(request), indent=1).encode(), public=True)
    return path


def read_request(path: Path) -> AdmissionRequest:
    """The request in a file, whose sender has shown to hold both keys.

    Raises:
        InputError: the file cannot be read, or is no request.
        IntegrityError: a signature is not its key's.
    """
    meant = "a request of `pate-fed hospital request`"
    given = read_json(_RequestFile, path, what=meant)
    name, public = given.hospital, given.public_key.encode()
    try:
        sums, sum_signature = bytes.fromhex(given.sum_identity), bytes.fromhex(given.sum_signature)
        key = serialization.load_pem_public_key(public)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InputError(f"{path}: not {meant}") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp384r1":
        raise InputError(f"{path}: not {meant}")
    signed = _signed(name, public, sums)
    if not is_signed(key, given.signature, signed) or not verify(sums, sum_signature, signed):
        raise IntegrityError(f"{path}: the request was changed on its way: a signature is not its key's")
    return AdmissionRequest(name=check_name(name), public=key, sum_identity=sums)


def _signed(name: str, public: bytes, sums: bytes) -> bytes:
    return _PURPOSE + name.encode() + b"\n" + sums.hex().encode() + b"\n" + public


# The coordinator's receipt for one hospital: digests of all that came from it, signed by its ledger key.

_RECEIPT_PURPOSE = b"pate_fed/v1 receipt of a coordinator\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What a coordinator received from one hospital in a study.

    `received` are digests of messages (`pate_fed.protocol.messages`), in the order in which they came; a
    message that came twice is there twice.
    """

    hospital: str
    terms_digest: str
    received: tuple[str, ...]

    def signed(self, key: Ed25519PrivateKey) -> str:
        """The receipt with its signature, as text."""
        return json.dumps({**asdict(self), "signature": sign(key, self._message())})

    @classmethod
    def read(cls, text: str, public: Ed25519PublicKey) -> Receipt:
        """The receipt in a text, once its signature is checked.

        Raises:
            IntegrityError: it is none, or another key signed it.
        """
        try:
            values = json.loads(text)
            signature = str(values.pop("signature"))
            found = from_plain(cls, values, where="the receipt")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, InputError) as error:
            raise IntegrityError("the receipt is not readable") from error
        if not is_signed(public, signature, found._message()):
            raise IntegrityError("the receipt is not signed by the study's coordinator")
        return found

    def _message(self) -> bytes:
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return _RECEIPT_PURPOSE + text.encode()
