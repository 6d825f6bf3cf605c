"""What a ledger's rows hold, their one canonical form, and the hash chain over it.

A row's hash covers every column but the hash and the signature, the previous row's hash among them, so that
no row can be changed, removed, put in or moved without a break in the chain.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError, IntegrityError
from pate_fed.privacy.bounds.sanitise import SanitiseSettings
from pate_fed.privacy.checks import check_count, check_delta, check_epsilon
from pate_fed.privacy.filter import BudgetFilter
from pate_fed.privacy.label_dp import LabelRelease, LabelResponse
from pate_fed.privacy.ledger.provenance import Provenance
from pate_fed.privacy.mechanisms.events import (
    PLAIN,
    CoordinatorView,
    Cost,
    Mechanism,
    PrivacyEvent,
    Protection,
)
from pate_fed.privacy.mechanisms.registry import mechanism_from_parameters

__all__ = [
    "COLUMNS",
    "FIRST_PREVIOUS",
    "Entry",
    "LedgerTerms",
    "Row",
    "canonical",
    "charge_row",
    "entry_from_row",
    "is_digest",
    "outputs_digest",
    "row_hash",
    "signed_bytes",
    "terms_row",
]

Row = dict[str, Any]

COLUMNS = (
    "seq",
    "time",
    "kind",
    "mechanism",
    "parameters",
    "protection",
    "coordinator",
    "asked",
    "answered",
    "batch_digest",
    "outputs_digest",
    "noise",
    "private",
    "version",
    "epsilon",
    "body",
    "previous",
    "hash",
    "signature",
)
FIRST_PREVIOUS = "0" * 64


def canonical(value: object) -> str:
    """JSON with sorted keys and no spaces, ASCII only: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def is_digest(value: object) -> bool:
    """Whether the value is a SHA-256 digest in lower-case hex."""
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerTerms:
    """What is fixed before the first vote: the ledger's first row, which every charge must keep to.

    `study_digest` is the SHA-256 hex of the study's terms, `epsilon` the budget or None, `mechanisms` those
    that may be charged, `noise` and `private` the noise source's, `coordinator` what the coordinator sees
    (with hospital noise `survivors` is the least number in a sum). With `sanitise` a data-dependent ε will be
    released too, once; it is paid here, before the first query, whether or not it is drawn in the end.
    `most_asked` and `most_answered` are the study's caps on queries and labels. Where all mechanisms respond
    label by label, no record is in two rows, δ may be 0, and rows compose in parallel.

    Raises:
        InputError: a value out of range.
    """

    study_digest: str
    delta: float
    epsilon: float | None = None
    mechanisms: tuple[Mechanism, ...]
    protection: Protection
    noise: str
    private: bool
    coordinator: CoordinatorView = PLAIN
    sanitise: SanitiseSettings | None = None
    most_asked: int | None = None
    most_answered: int | None = None

    def __post_init__(self) -> None:
        if not is_digest(self.study_digest):
            raise InputError(
                f"study_digest={self.study_digest!r}: must be a SHA-256 digest in lower-case hex"
            )
        if not self.mechanisms:
            raise InputError("mechanisms=(): a ledger needs at least one mechanism to charge")
        if self.delta != 0 or not self.each_once:
            check_delta(self.delta)
        if self.each_once and len({each.cost_asked(self.protection) for each in self.mechanisms}) > 1:
            raise InputError("mechanisms that respond label by label must have one ε")
        if self.epsilon is not None:
            check_epsilon(self.epsilon)
        if self.epsilon is not None:
            BudgetFilter(self.epsilon, self.delta, self.protection, self.reserved)
        for name in ("most_asked", "most_answered"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), least=1)
        for mechanism in self.mechanisms:
            mechanism.cost(1, 1, self.protection)  # refuses what it has no bound for
        self.coordinator.cost(1, self.protection, num_classes=self.mechanisms[0].num_classes)

    @property
    def reserved(self) -> Cost:
        """What is paid before the first query: the sanitised release, where the study has one."""
        return Cost() if self.sanitise is None else self.sanitise.cost()

    @property
    def budget(self) -> BudgetFilter | None:
        """The filter that never lets the budget be passed; None where there is no budget."""
        if self.epsilon is None:
            return None
        return BudgetFilter(self.epsilon, self.delta, self.protection, self.reserved)

    @property
    def each_once(self) -> bool:
        """Whether every release responds label by label, so that no record may be in two of them."""
        return all(isinstance(mechanism, LabelResponse) for mechanism in self.mechanisms)

    def plus(self, cost: Cost, event: PrivacyEvent) -> Cost:
        """The cost of all releases with one more: they add up, unless each is about other records' labels."""
        return self.reserved + event.cost() if self.each_once else cost + event.cost()

    def refuse_again(self, places: Sequence[NDArray[np.int64]]) -> None:
        """Refuse a record that is in two rows, or twice in one, where each may be there once.

        Shapes: `places` int64 (asked,) of each row.

        Raises:
            IntegrityError: there is one.
        """
        if not self.each_once:
            return
        every = np.concatenate(places)
        if len(np.unique(every)) != len(every):
            raise IntegrityError("a record's label is asked about a second time")

    def refuse(self, event: PrivacyEvent) -> None:
        """Refuse an event that is not what the terms fix.

        Raises:
            IntegrityError: another mechanism, parameter, protection, noise or coordinator.
        """
        for what, fixed, given in (
            ("protection", self.protection, event.protection),
            ("noise", (self.noise, self.private), (event.noise, event.private)),
        ):
            if fixed != given:
                raise IntegrityError(f"the {what} of a release is not the one in the ledger's terms: {given}")
        if event.mechanism not in self.mechanisms:
            raise IntegrityError(f"the ledger's terms allow no {event.mechanism}")
        if not _keeps_to(event.coordinator, self.coordinator):
            raise IntegrityError("the coordinator saw other than what the ledger's terms say")
        counts = isinstance(event.mechanism, LabelRelease) and not self.each_once
        if counts and event.asked != self.most_asked:
            raise IntegrityError("counts of labels are released once, about all records")

    def refuse_beyond_caps(self, *, asked: int, answered: int) -> None:
        """Refuse totals of queries and labels beyond the caps.

        Raises:
            IntegrityError: they are.
        """
        for what, most, total in (
            ("queries", self.most_asked, asked),
            ("labels", self.most_answered, answered),
        ):
            if most is not None and total > most:
                raise IntegrityError(f"{total} {what} in all: the ledger's terms allow {most}")

    def to_dict(self) -> dict[str, Any]:
        """Plain values by name."""
        return {
            "study_digest": self.study_digest,
            "delta": float(self.delta),
            "epsilon": None if self.epsilon is None else float(self.epsilon),
            "mechanisms": [_mechanism_dict(mechanism) for mechanism in self.mechanisms],
            "protection": asdict(self.protection),
            "noise": self.noise,
            "private": bool(self.private),
            "coordinator": asdict(self.coordinator),
            "sanitise": None if self.sanitise is None else asdict(self.sanitise),
            "most_asked": self.most_asked,
            "most_answered": self.most_answered,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LedgerTerms:
        """Terms from plain values.

        Raises:
            KeyError, TypeError, InputError: they are no terms.
        """
        made = [mechanism_from_parameters(m["name"], m["parameters"]) for m in values["mechanisms"]]
        return cls(
            **{
                **values,
                "mechanisms": tuple(made),
                "protection": Protection(**values["protection"]),
                "coordinator": CoordinatorView(**values["coordinator"]),
                "sanitise": None if values["sanitise"] is None else SanitiseSettings(**values["sanitise"]),
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One charge as it stands in the ledger; `epsilon` is the student's ε at the terms' δ after it.

    `basis` is None where nothing that was learnt had a part in the batch.
    """

    seq: int
    time: str
    event: PrivacyEvent
    batch_digest: str
    outputs_digest: str
    version: str
    epsilon: float
    previous: str
    hash: str
    signature: str | None
    basis: Provenance | None = None


def outputs_digest(index: NDArray[Any], answered: NDArray[Any], label: NDArray[Any]) -> str:
    """SHA-256 hex over the released outputs of one batch, in order; all of shape (asked,)."""
    state = hashlib.sha256(b"pate_fed/v1 outputs")
    for part in (index, answered, label):
        state.update(len(part).to_bytes(8, "big"))
        state.update(np.asarray(part).astype("<i8").tobytes())
    return state.hexdigest()


def row_hash(row: Row) -> str:
    """SHA-256 hex over the row's canonical form, all columns but the hash and the signature."""
    covered = {name: row[name] for name in COLUMNS if name not in ("hash", "signature")}
    # A damaged row may hold bytes where text was: any spelling will do, as its hash fits nothing.
    covered = {name: repr(value) if isinstance(value, bytes) else value for name, value in covered.items()}
    return hashlib.sha256(b"pate_fed/v1 ledger row" + canonical(covered).encode()).hexdigest()


def signed_bytes(digest: str) -> bytes:
    """What is signed of a row."""
    return b"pate_fed/v1 ledger signature" + bytes.fromhex(digest)


def terms_row(terms: LedgerTerms, *, time: str, version: str, public_key: str | None) -> Row:
    """The first row, without hash and signature."""
    body = canonical({"terms": terms.to_dict(), "public_key": public_key})
    filled = {"seq": 0, "time": time, "kind": "terms", "version": version, "body": body}
    return {**dict.fromkeys(COLUMNS), **filled, "previous": FIRST_PREVIOUS}


def charge_row(
    event: PrivacyEvent,
    *,
    seq: int,
    time: str,
    version: str,
    batch_digest: str,
    outputs: str,
    epsilon: float,
    previous: str,
    basis: Provenance | None = None,
) -> Row:
    """The row of one charge, without hash and signature."""
    return {
        **dict.fromkeys(COLUMNS),
        "seq": seq,
        "time": time,
        "kind": "charge",
        "mechanism": event.mechanism.name,
        "parameters": canonical(event.mechanism.parameters()),
        "protection": canonical(asdict(event.protection)),
        "coordinator": canonical(asdict(event.coordinator)),
        "asked": event.asked,
        "answered": event.answered,
        "batch_digest": batch_digest,
        "outputs_digest": outputs,
        "noise": event.noise,
        "private": int(event.private),
        "version": version,
        "epsilon": epsilon,
        "body": None if basis is None else canonical({"basis": asdict(basis)}),
        "previous": previous,
    }


def entry_from_row(row: Row) -> Entry:
    """The charge in a row.

    Raises:
        KeyError, TypeError, ValueError: the row holds no charge that the program could have written.
    """
    if row["kind"] != "charge" or not is_digest(row["batch_digest"]) or row["private"] not in (0, 1):
        raise ValueError("not a charge")
    if not isinstance(row["epsilon"], float):
        raise TypeError("an ε is a number")
    event = PrivacyEvent(
        mechanism=mechanism_from_parameters(row["mechanism"], json.loads(row["parameters"])),
        asked=row["asked"],
        answered=row["answered"],
        protection=Protection(**json.loads(row["protection"])),
        noise=row["noise"],
        private=bool(row["private"]),
        coordinator=CoordinatorView(**json.loads(row["coordinator"])),
    )
    kept = (
        "seq",
        "time",
        "batch_digest",
        "outputs_digest",
        "version",
        "epsilon",
        "previous",
        "hash",
        "signature",
    )
    basis = None if row["body"] is None else Provenance(**json.loads(row["body"])["basis"])
    return Entry(event=event, basis=basis, **{name: row[name] for name in kept})


def _mechanism_dict(mechanism: Mechanism) -> dict[str, Any]:
    return {"name": mechanism.name, "parameters": mechanism.parameters()}


def _keeps_to(seen: CoordinatorView, fixed: CoordinatorView) -> bool:
    if fixed.survivors is None or seen.survivors is None:
        return seen == fixed
    same = (seen.kind, seen.sigma_party, seen.colluders) == (fixed.kind, fixed.sigma_party, fixed.colluders)
    return same and seen.survivors >= fixed.survivors
