"""The student as hospitals get it: one file of facts and plain arrays, signed by the study's coordinator.

    pate-fed student 1 LENGTH KEY SIGNATURE     LENGTH of what follows in bytes; Ed25519, both in hex
    {the facts as JSON, in one line}
    the arrays as a safetensors file

The signature is on all that follows the first line. No code is in it, and none is run on reading. A student
of class sums or a forest is read without torch.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from numpy.typing import NDArray

from pate_fed.data import Schema
from pate_fed.errors import InputError, IntegrityError
from pate_fed.identity.keys import is_signed, sign
from pate_fed.protocol.messages import MOST_STUDENT
from pate_fed.structure import from_plain, setting, to_plain

BUNDLE_FILE = "student.bundle"
"""Its name in a run's directory, and in a hospital's state directory."""
_BEGINS, _FORMAT = b"pate-fed student ", 1
_LINE = 400  # bytes of the first line
_PURPOSE = b"pate_fed/v1 student of a study\n"
_NOTICE_PURPOSE = b"pate_fed/v1 notice that a student is withdrawn\n"
_OF_STUDENT, _COVERED = "student/", "covered"
_SUMS, _FOREST, _NETWORK = "class-sums", "forest", "network"  # the students' own `kind`


@dataclass(frozen=True, slots=True, kw_only=True)
class StudentFacts:
    """What a bundle says of its student.

    `epsilon` at `delta` is what the study guarantees against all who see the student, for what `protects`
    says, None: no bound; `claimed` is what it rests on beside proofs. `ledger_head` names the ledger's last
    row. So many `hospitals` took part, None: not known. `licence` says who may use it, `purpose` and
    `retention` are the study's own. `shape` is one input's, `table` what a row's columns mean, `window` what
    is black and white in DICOM images.
    """

    study: str
    terms_digest: str
    ledger_head: str
    epsilon: float | None
    delta: float
    protects: str
    private: bool
    hospitals: int | None
    licence: str
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    claimed: str = ""
    purpose: str = ""
    retention: str = ""
    table: Schema | None = None
    window: tuple[float, float] | None = None
    kind: str = setting(_SUMS, choices=(_SUMS, _FOREST, _NETWORK))


def covered_by(pool: NDArray[Any]) -> NDArray[np.float64]:
    """Least and greatest of each feature in a public pool float64 (n, features); float64 (2, features).

    NaN where the pool has none. Of a category's features the greatest is 0 where no row has the value.
    """
    known = np.isfinite(pool)
    least, most = np.where(known, pool, np.inf).min(axis=0), np.where(known, pool, -np.inf).max(axis=0)
    return np.where(known.any(axis=0), np.stack([least, most]), np.nan)


def pack_student(
    student: Any, facts: StudentFacts, key: Ed25519PrivateKey, *, covered: NDArray[np.float64] | None = None
) -> bytes:
    """The bundle of a student, signed. `covered` is of the public pool, of a table (`covered_by`).

    Raises:
        InputError: the student needs code of the user's own, or is larger than a bundle may be.
    """
    from safetensors.numpy import save

    if not hasattr(student, "to_arrays") or _has_own_part(student):
        raise InputError("the student needs code of your own, and a bundle holds no code")
    arrays = {f"{_OF_STUDENT}{name}": np.array(each, order="C") for name, each in student.to_arrays().items()}
    if covered is not None:
        arrays[_COVERED] = covered
    told = json.dumps(to_plain(replace(facts, kind=student.kind)), sort_keys=True)
    rest = told.encode() + b"\n" + save(arrays)
    line = f"{_FORMAT} {len(rest)} {_hex(key.public_key())} {sign(key, _PURPOSE + rest)}\n"
    found = _BEGINS + line.encode() + rest
    if len(found) > MOST_STUDENT:
        raise InputError(
            f"the student takes {len(found) / 2**20:.0f} MiB, and at most {MOST_STUDENT // 2**20} are sent"
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bundle:
    """A bundle whose signature is that of `signer`, a public key in hex; `digest` is the file's SHA-256."""

    facts: StudentFacts
    signer: str
    digest: str
    covered: NDArray[np.float64] | None
    _arrays: dict[str, NDArray[Any]]

    @classmethod
    def read(
        cls,
        content: bytes,
        *,
        where: str,
        public: Ed25519PublicKey | None = None,
        terms_digest: str | None = None,
    ) -> Bundle:
        """The bundle in a file's bytes, which `where` names in errors.

        `public` is the key of the study's coordinator, `terms_digest` names the study; None: any.

        Raises:
            IntegrityError: it is cut, changed, none, another coordinator's or study's, or a newer release's.
        """
        head, _, rest = content.partition(b"\n")
        signer, signature = _read_head(head, len(rest), where)
        if public is not None and signer != _hex(public):
            raise IntegrityError(
                f"{where}: signed by another key ({signer[:16]}…) than that of this study's coordinator "
                f"({_hex(public)[:16]}…), which the authority signed in this hospital's admission"
            )
        try:
            key = public or Ed25519PublicKey.from_public_bytes(bytes.fromhex(signer))
        except ValueError as error:
            raise IntegrityError(f"{where}: is damaged: its key is none; have it sent again") from error
        if not is_signed(key, signature, _PURPOSE + rest):
            raise IntegrityError(f"{where}: was changed: its signature does not fit; have it sent again")
        facts, arrays = _read_rest(rest, where)
        if terms_digest is not None and facts.terms_digest != terms_digest:
            raise IntegrityError(
                f"{where}: is of another study (terms {facts.terms_digest[:16]}…) than this hospital's "
                f"(terms {terms_digest[:16]}…)"
            )
        own = {
            name.removeprefix(_OF_STUDENT): each
            for name, each in arrays.items()
            if name.startswith(_OF_STUDENT)
        }
        return cls(
            facts=facts,
            signer=signer,
            digest=hashlib.sha256(content).hexdigest(),
            covered=arrays.get(_COVERED),
            _arrays=own,
        )

    def student(self, where: str, *, device: str = "cpu") -> Any:
        """The student, a network on `device`; it has `predict_proba`.

        Raises:
            IntegrityError: its arrays do not fit together.
        """
        try:
            if self.facts.kind == _FOREST:
                from pate_fed.learning.teachers.forests import Forest

                return Forest.of_arrays(self._arrays, where=where)
            if self.facts.kind == _SUMS:
                from pate_fed.learning.students.class_sums import SumsStudent

                return SumsStudent.of_arrays(self._arrays, where=where)
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise IntegrityError(f"{where}: its arrays are not those of a student") from error
        from pate_fed.learning.students.student import Student

        return Student.of_arrays(self._arrays, where=where, device=device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawal:
    """A coordinator's notice that the bundle of SHA-256 `student` is not to be used from a `day` on."""

    study: str
    student: str
    reason: str
    day: str

    @staticmethod
    def name(student: str) -> str:
        """The name of the file of the notice on the bundle with this SHA-256."""
        return f"withdrawn-{student[:16]}.json"

    def signed(self, key: Ed25519PrivateKey) -> bytes:
        """The notice's file."""
        return json.dumps({"notice": to_plain(self), "signature": sign(key, self._message())}).encode()

    @classmethod
    def read(cls, content: bytes, bundle: Bundle, *, where: str) -> Withdrawal:
        """The notice in a file's bytes, which `where` names in errors.

        Raises:
            IntegrityError: it is damaged, another coordinator's, or about another student than the bundle's.
        """
        try:
            told = json.loads(content)
            found, signature = from_plain(cls, told["notice"], where="the notice"), str(told["signature"])
        except (ValueError, TypeError, KeyError, RecursionError, InputError) as error:
            raise IntegrityError(f"{where}: no notice of `pate-fed study withdraw`, or damaged") from error
        if not is_signed(
            Ed25519PublicKey.from_public_bytes(bytes.fromhex(bundle.signer)), signature, found._message()
        ):
            raise IntegrityError(f"{where}: was changed, or is not of the coordinator who signed the student")
        if found.student != bundle.digest:
            raise IntegrityError(
                f"{where}: is about another student ({found.student[:16]}…), and changes nothing here"
            )
        return found

    def _message(self) -> bytes:
        return _NOTICE_PURPOSE + json.dumps(to_plain(self), sort_keys=True).encode()


def _has_own_part(student: Any) -> bool:
    if student.kind == _SUMS:
        return bool(student.feature_map.settings.own)
    return student.kind == _NETWORK and student.settings.code is not None


def _hex(public: Ed25519PublicKey) -> str:
    return public.public_bytes_raw().hex()


def _read_head(head: bytes, length: int, where: str) -> tuple[str, str]:
    """Who signed, and the signature, both in hex, of a first line that fits what follows."""
    words = head.removeprefix(_BEGINS)[:_LINE].decode("ascii", "replace").split(" ")
    if not head.startswith(_BEGINS) or len(head) > _LINE or not words[0].isdecimal():
        what = "is no student's bundle" if head or length else "is empty"
        raise IntegrityError(f"{where}: {what}; what a coordinator sends at its study's end is meant")
    if int(words[0]) != _FORMAT:
        raise IntegrityError(
            f"{where}: has format {words[0]}, and this release of pate_fed reads format {_FORMAT}; install "
            "the release that wrote it"
        )
    if len(words) != 4 or not words[1].isdecimal():
        raise IntegrityError(f"{where}: is cut, or was changed, in its first line; have it sent again")
    if length != int(words[1]):
        told = "is cut" if length < int(words[1]) else "was changed"
        raise IntegrityError(
            f"{where}: {told}: {length:,} bytes follow its first line, which says {int(words[1]):,}; have it "
            "sent again"
        )
    return words[2], words[3]


def _read_rest(rest: bytes, where: str) -> tuple[StudentFacts, dict[str, NDArray[Any]]]:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    told, _, packed = rest.partition(b"\n")
    try:
        facts, arrays = from_plain(StudentFacts, json.loads(told), where="the facts"), load(packed)
        covered = arrays.get(_COVERED)
        if covered is not None and covered.shape != (2, *facts.shape):
            raise InputError("what is covered is of other columns")
        return facts, arrays
    except (ValueError, TypeError, KeyError, RecursionError, InputError, SafetensorError) as error:
        raise IntegrityError(f"{where}: signed, but not written as this release writes a bundle") from error
