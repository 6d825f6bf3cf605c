"""The ledger in words and figures: who is protected against whom, by how much, and what was spent on what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pate_fed.format import epsilon_text
from pate_fed.privacy.ledger.guarantee import (
    guarantee_text,
    guaranteed_coordinator_epsilon,
    guaranteed_epsilon,
)
from pate_fed.privacy.ledger.rows import Entry
from pate_fed.privacy.ledger.verify import Chain, coordinator_epsilon, read_ledger
from pate_fed.privacy.mechanisms.events import CoordinatorView, Mechanism

__all__ = ["LedgerReport", "describe", "verify"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerReport:
    """A ledger that passed every check, with each ε computed again from its rows.

    `beside` says what else of the run was held against it, a line each.
    """

    path: Path
    chain: Chain
    beside: tuple[str, ...] = ()

    @property
    def asked(self) -> int:
        """Queries put to the teachers."""
        return sum(entry.event.asked for entry in self.chain.entries)

    @property
    def answered(self) -> int:
        """Queries that the teachers answered."""
        return sum(entry.event.answered for entry in self.chain.entries)

    @property
    def epsilon(self) -> float:
        """ε against the student and the public at the terms' δ."""
        return self.chain.epsilon

    @property
    def coordinator_epsilon(self) -> float | None:
        """ε against the coordinator, None where no bound holds."""
        events = [entry.event for entry in self.chain.entries]
        return coordinator_epsilon(self.chain.terms, events, self.chain.terms.delta)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        terms = self.chain.terms
        return {
            "status": "intact",
            "rows": len(self.chain.entries) + 1,
            "queries_asked": self.asked,
            "queries_answered": self.answered,
            "terms": terms.to_dict(),
            "promised": {
                "student": guaranteed_epsilon(terms),
                "coordinator": guaranteed_coordinator_epsilon(terms),
            },
            "spent": {"student": self.epsilon, "coordinator": self.coordinator_epsilon},
            "coordinator_sees": terms.coordinator.words(),
            "beside": list(self.beside),
            "head": self.chain.head,
            "public_key": self.chain.public_key,
        }

    def lines(self) -> list[str]:
        """What was checked and what came out, for a person."""
        rows = len(self.chain.entries) + 1
        signed = f"signed by {self.chain.public_key}" if self.chain.public_key else "not signed"
        return [
            f"{self.path}: intact, {_count(rows, 'row')}, {signed}",
            f"{self.asked} queries asked, {self.answered} answered, every released label as it was written",
            *_bounds(self),
            *self.beside,
            f"last row's hash {self.chain.head}",
        ]


def verify(path: Path, *, public_key: str | None = None, head: str | None = None) -> LedgerReport:
    """Check a ledger and compute every ε again from its rows alone.

    `public_key` (Ed25519, 64 hex digits) must have signed every row, `head` must be the hash of one; both
    come from elsewhere. Without the key a chain that was computed anew by somebody who can write the file is
    not noticed; without the head neither is an older copy of the file put back in its place.

    Raises:
        InputError: there is no ledger.
        IntegrityError: it is not as it was written; the message names the first row that is not.
    """
    return LedgerReport(path=Path(path), chain=read_ledger(Path(path), public_key=public_key, head=head))


def describe(path: Path) -> list[str]:
    """The ledger in words, line by line, after the checks of `verify`."""
    report = verify(path)
    chain, terms = report.chain, report.chain.terms
    budget = "none" if terms.epsilon is None else f"ε={terms.epsilon!r}, never passed"
    return [
        f"Ledger of the study {terms.study_digest[:16]}…, begun {chain.created}, pate_fed {chain.version}",
        *(f"Mechanism: {_mechanism(mechanism)}" for mechanism in terms.mechanisms),
        f"Noise: {terms.noise}",
        f"Budget: {budget}",
        f"Spent: {report.asked} queries asked, {report.answered} answered, in "
        f"{_count(len(chain.entries), 'release')}",
        *_bounds(report),
        *(_entry_line(entry, chain.entries) for entry in chain.entries),
    ]


def _bounds(report: LedgerReport) -> list[str]:
    terms = report.chain.terms
    protected = f"for {terms.protection.words()}"
    promised, spent = guaranteed_epsilon(terms), f"spent so far ε={epsilon_text(report.epsilon)}"
    against = f"no bound beforehand, {spent}, {protected}"
    if promised is not None:
        proven = f"({epsilon_text(promised)}, {terms.delta:g})-differential privacy {protected}"
        against = f"{proven}, fixed before the first query by {guarantee_text(terms)}; {spent}"
    seen, most = report.coordinator_epsilon, guaranteed_coordinator_epsilon(terms)
    if seen is None:
        coordinator = f"no bound: it sees {terms.coordinator.words()}"
    else:
        sight = terms.coordinator
        coordinator = (
            f"({epsilon_text(seen if most is None else most)}, {terms.delta:g})-differential privacy "
            f"{protected}, while at most {_hospitals(sight.colluders, 'tell', 'tells')} it their noise: it "
            f"sees {sight.words()}; spent so far ε={epsilon_text(seen)}"
        )
    lines = [
        f"Against the student and anyone who gets it or its labels: {against}",
        f"Against another hospital, whatever it knows of its own votes: {_other(terms.coordinator)}",
        f"Against the coordinator: {coordinator}",
        "Every ε is independent of the votes: Rényi DP with the improved conversion, rounded up",
    ]
    if terms.sanitise is not None:
        lines.append(
            "A data-dependent ε may be released too, once (smooth sensitivity, order "
            f"{terms.sanitise.order:g}): paid from the first row on, in every ε against the student"
        )
    if not terms.private:
        lines.insert(
            0, f"Nobody is protected ({terms.noise}): every ε is what noise without a seed would give"
        )
    return lines


def _hospitals(count: int, several: str = "", one: str = "") -> str:
    verb = one if count == 1 else several
    return _count(count, "hospital") + (f" {verb}" if verb else "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _other(sight: CoordinatorView) -> str:
    if sight.variance is None:
        return "as against the student"
    if sight.colluders:
        together = " together" if sight.colluders > 1 else ""
        return f"as against the student, also for {_hospitals(sight.colluders)}{together}"
    return "no bound is stated: it knows its own share of the noise, and no colluder was reckoned with"


def _mechanism(mechanism: Mechanism) -> str:
    parameters = {name: value for name, value in mechanism.parameters().items() if value is not None}
    values = ", ".join(f"{name}={value:g}" for name, value in parameters.items())
    return f"{mechanism.name} with {values}; noise and threshold in votes"


def _entry_line(entry: Entry, entries: Sequence[Entry]) -> str:
    event, chosen = entry.event, ""
    counts = f"{event.asked} asked, {event.answered} answered"
    if entry.basis is not None:
        last = next(row.seq for row in entries if row.hash == entry.basis.learnt_to)
        chosen = f"; round {entry.basis.round}, {entry.basis.strategy}, by a student of rows up to {last}"
    line = f"  {entry.seq:>4}  {entry.time}  {event.mechanism.name}: {counts}"
    return f"{line}, then ε={epsilon_text(entry.epsilon)}{chosen}"
