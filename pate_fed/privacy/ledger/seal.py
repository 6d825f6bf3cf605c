"""The seal of a run: digests of its files and the ledger's head, signed at its end.

A simulation's key is made at its end, signs once and is forgotten, so that nobody can seal a changed run with
it again; a signed ledger's key signs the seal too. Whoever may write the directory can seal all of it anew
with a key of his own: who noted the run's public key (its outcome names it) notices, others do not. Digests
of files that may not be published tell nothing of them: each holds the run's times to the microsecond.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pate_fed.disk import MOST_TABLE, read_file, read_json, write_result
from pate_fed.errors import IntegrityError, naming_refusal
from pate_fed.privacy.ledger.chain import Chain

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SEAL = "seal.json"
LEDGER = "ledger.sqlite"
_VERIFIERS = "verify_independent.py", "verify_exact.py"
# What a run leaves; a folder may hold other files, which are nobody's business here.
_SEALED = (
    f"{LEDGER} study.toml labels.npz metrics.json log.jsonl report.html student.pt student.ts student.npz "
    "student.bundle predictions.npz round-*.npz noisy_rows.npy"
).split()
_PURPOSE = b"pate_fed/v1 seal of a run"
# SQLite's own counters and version in a file's header: a copy by `.backup` has others.
_COUNTERS = (slice(24, 28), slice(40, 44), slice(92, 100))

Rewritten = Mapping[str, Callable[[], bytes]]
"""By file: what the program writes from the other files when it is asked to write the file again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """What was sealed: the ledger's `head` and, by name, each file's SHA-256; all in hex.

    `public_key` and `signature` are Ed25519's.
    """

    head: str
    files: dict[str, str]
    public_key: str
    signature: str = ""

    def message(self) -> bytes:
        """What the signature is on."""
        told = {name: value for name, value in asdict(self).items() if name != "signature"}
        return _PURPOSE + json.dumps(told, sort_keys=True, separators=(",", ":")).encode()

    def text(self) -> str:
        """The one form in which it is written."""
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"

    def proves(self, *, known: str | None) -> str:
        """What the seal proves, in words, to whom another one told the `known` public key."""
        if known is not None:
            return f"sealed by {self.public_key}, the key that was given"
        return (
            f"sealed by {self.public_key}: compare it with the key that the run told at its end "
            "(--public-key); else this does not prove that nobody sealed the whole directory anew with "
            "another key"
        )


def new_key() -> Ed25519PrivateKey:
    """A key for one seal, of the operating system's random numbers."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.generate()


def public_hex(key: Ed25519PrivateKey) -> str:
    """The public key, 64 hex digits."""
    return key.public_key().public_bytes_raw().hex()


def seal_run(run_dir: Path, *, key: Ed25519PrivateKey, head: str, more: Mapping[str, bytes]) -> None:
    """Seal a run whose ledger ends with `head`; `more` are files that will be written now, by name.

    A verifier that needs nothing of this package is laid beside.

    Raises:
        InputError: a file cannot be read, or the seal not be written.
    """
    for name in _VERIFIERS:
        write_result(run_dir / name, Path(__file__).with_name(name).read_bytes())
    files = {name: _digest(run_dir / name) for name in _left(run_dir) - {*more}}
    files |= {name: hashlib.sha256(content).hexdigest() for name, content in more.items()}
    made = Seal(head=head, files=files, public_key=public_hex(key))
    signed = Seal(**{**asdict(made), "signature": key.sign(made.message()).hex()})
    write_result(run_dir / SEAL, signed.text().encode())


def read_seal(run_dir: Path) -> Seal | None:
    """The seal of a run, whose signature is its key's; None where there is none.

    Raises:
        IntegrityError: it was changed.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    path = run_dir / SEAL
    if not path.exists():
        return None
    seal = read_json(Seal, path, what="the seal of a run", error=IntegrityError)
    try:
        public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(seal.public_key))
        public.verify(signature := bytes.fromhex(seal.signature), seal.message())
        if signature.hex() != seal.signature or read_file(path) != seal.text().encode():
            raise ValueError("spelled otherwise than it was written")
    except (InvalidSignature, ValueError) as error:
        raise IntegrityError(f"{path}: the seal was changed: it is not signed by the key it names") from error
    return seal


def check_seal(ledger: Path, seal: Seal, chain: Chain, rewritten: Rewritten) -> list[str]:
    """Hold a run's files and its ledger's chain against its seal; what was found, in lines.

    A file of `rewritten` may also be what the program writes from the others.

    Raises:
        IntegrityError: a row or a file is not what was sealed; the message names it.
    """
    if seal.head != chain.head:
        raise IntegrityError(
            f"{ledger}: row {len(chain.entries)} is not the last one that was sealed: rows were changed, "
            "added or removed, and the chain computed anew"
        )
    if chain.public_key not in (None, seal.public_key):
        raise IntegrityError(f"{ledger}: its key {chain.public_key} did not sign the seal beside it")
    run_dir = ledger.parent
    again, absent = [], sorted(name for name in seal.files if not (run_dir / name).is_file())
    # The others first: the log is what a report is written from.
    names = {*_left(run_dir), *rewritten, *seal.files}
    for name in sorted(names, key=lambda each: (each in rewritten, each)):
        path = run_dir / name
        if path.parent != run_dir:
            raise IntegrityError(f"{run_dir / SEAL}: names {name!r}, which is no file of a run")
        if not path.is_file() or _digest(path) == seal.files.get(name):
            continue
        if name not in rewritten:
            raise IntegrityError(f"{path}: not the file that was sealed at the run's end")
        if "log.jsonl" not in seal.files or "log.jsonl" in absent:
            raise IntegrityError(f"{path}: not the file that was sealed, and no sealed log to write it from")
        if read_file(path, most=MOST_TABLE) != rewritten[name]():
            raise IntegrityError(
                f"{path}: neither the file that was sealed nor what this version writes from the sealed log; "
                "write it again: pate-fed report"
            )
        again.append(name)
    held = len(seal.files) - len(absent)
    return [
        f"seal: {held} of {len(seal.files)} files and the ledger's last row as at the run's end",
        *([f"as `pate-fed report` writes it from the sealed log: {', '.join(again)}"] if again else []),
        *([f"sealed, and not there: {', '.join(absent)}"] if absent else []),
    ]


def _left(run_dir: Path) -> set[str]:
    """Names of the files that a run left."""
    patterns = (*_SEALED, *_VERIFIERS)
    return {path.name for pattern in patterns for path in run_dir.glob(pattern) if path.is_file()}


def _digest(path: Path) -> str:
    with naming_refusal(f"{path}: cannot be read"):
        content = read_file(path, most=MOST_TABLE)
    if path.name == LEDGER:
        plain = bytearray(content)
        for part in _COUNTERS:
            plain[part] = bytes(len(plain[part]))
        content = bytes(plain)
    return hashlib.sha256(content).hexdigest()
