"""Report on a ledger that passed every check: ε against each adversary, and the run that lies beside it.

`verify_run` also holds what lies beside the ledger against it (`beside`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError, IntegrityError
from pate_fed.format import counted, delta_text, epsilon_json, epsilon_text
from pate_fed.privacy.accounting import pld_epsilon, totals_pld_epsilon
from pate_fed.privacy.bounds.control import capped_cost_epsilon, checked_epsilon
from pate_fed.privacy.bounds.conversion import gaussian_dp_epsilon
from pate_fed.privacy.bounds.cost import Cost, epsilon_of
from pate_fed.privacy.bounds.intervals import Interval
from pate_fed.privacy.ledger.chain import Chain, coordinator_epsilon, read_chain
from pate_fed.privacy.ledger.rows import Entry, read_only
from pate_fed.privacy.ledger.run_files import NOT_HELD, check_labels, check_metrics
from pate_fed.privacy.ledger.seal import Rewritten, check_seal, read_seal
from pate_fed.privacy.ledger.terms import (
    LedgerTerms,
    checked_query,
    guarantee_text,
    guaranteed_coordinator_epsilon,
    guaranteed_cost,
    guaranteed_epsilon,
)
from pate_fed.privacy.mechanisms.class_sums import CLASS_SUM_MECHANISMS, SharedClassSums
from pate_fed.privacy.mechanisms.events import Mechanism, PrivacyEvent, hospital_noise, plain_noise
from pate_fed.privacy.mechanisms.own import OwnMechanism, check_claim
from pate_fed.structure.parts import entry_points

Named = Collection[str] | Mapping[str, Any] | None
"""Mechanisms whose code may be loaded: by name, or with the object itself; None: not even installed ones."""

_CONTINUOUS = "were the noise continuous, which it is not: stands beside and guarantees nothing"
_CHARGED = "what it released, and caps on both by optimal control of the privacy loss where that is less"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LedgerReport:
    """A ledger that passed every check, with each ε computed again from its rows.

    `beside` says what else of the run was held against it, or was not, a line each. `claims` says of each
    mechanism that is none of ours how its claim was held against its code, `unchecked` why that was not done:
    such an ε is added up right from a curve that nobody looked at. `sealed_by` is the public key of the run's
    seal; None where it has none, or the ledger alone was looked at.
    """

    path: Path
    chain: Chain
    beside: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    sealed_by: str | None = None

    @property
    def asked(self) -> int:
        """Queries put to the teachers."""
        return self.chain.asked

    @property
    def answered(self) -> int:
        """Queries that the teachers answered."""
        return self.chain.answered

    @property
    def epsilon(self) -> float:
        """ε against the student and the public at the terms' δ."""
        return self.chain.epsilon

    @property
    def coordinator_epsilon(self) -> float | None:
        """ε against the coordinator, None where no bound holds."""
        return coordinator_epsilon(self.chain.terms, self.events)

    @property
    def guaranteed(self) -> float | None:
        """ε against the student and the public that the terms fixed; None where nothing bounds it."""
        return guaranteed_epsilon(self.chain.terms)

    @property
    def events(self) -> tuple[PrivacyEvent, ...]:
        """All charged events, oldest first."""
        return tuple(entry.event for entry in self.chain.entries)

    def released(self) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64]]:
        """Everything that was released, in order: index, answered and label, each of shape (asked,)."""
        return self.chain.released()

    def __repr__(self) -> str:
        """Counts, and ε that was spent."""
        claimed = ", claimed, not proven" if self.chain.terms.assumptions else ""
        claimed += ", claim not checked" if self.unchecked else ""
        return (
            f"LedgerReport({str(self.path)!r}: {self.asked} queries, {self.answered} labels, spent "
            f"ε={epsilon_text(self.epsilon)} at δ={delta_text(self.chain.terms.delta)}{claimed})"
        )

    def require_checked(self) -> None:
        """Refuse a ledger of which a claim was not held against its code: InputError says what to do."""
        if self.unchecked:
            raise InputError("; ".join(self.unchecked))

    def require_sealed(self) -> None:
        """Refuse a run whose files no seal binds to its end: IntegrityError says what that means."""
        if self.sealed_by is None:
            raise IntegrityError(
                f"{self.path.parent}: no seal.json: the run was cut off, an earlier version made it, or the "
                "seal was taken away; its rows fit together, and whoever can write them can make others that "
                "do. --unsealed takes it as it is"
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        terms = self.chain.terms
        return {
            "status": "claim not checked" if self.unchecked else "intact",
            "rows": len(self.chain.entries) + 1,
            "queries_asked": self.asked,
            "queries_answered": self.answered,
            "terms": terms.to_dict(),
            "guaranteed": {
                "student": guaranteed_epsilon(terms),
                "coordinator": guaranteed_coordinator_epsilon(terms),
            },
            "claims": [each.warning for each in terms.assumptions.each],
            "claimed_by": terms.assumptions.sources,
            "claims_checked": list(self.claims),
            "claims_unchecked": list(self.unchecked),
            "caps": {each.name: each.epsilon for each in accountants(terms)},
            "spent": {"student": self.epsilon, "coordinator": self.coordinator_epsilon},
            "coordinator_sees": terms.coordinator.text(),
            "beside": list(self.beside),
            "head": self.chain.head,
            "public_key": self.chain.public_key,
            "sealed_by": self.sealed_by,
        }

    def releases(self) -> list[dict[str, Any]]:
        """Each charge in its order, as plain values for JSON; ε is that of all up to it."""
        return [
            {
                "row": entry.seq,
                "time": entry.time,
                "mechanism": entry.event.mechanism.name,
                "asked": entry.event.asked,
                "answered": entry.event.answered,
                "epsilon": epsilon_json(entry.epsilon),
                "round": None if entry.provenance is None else entry.provenance.round,
            }
            for entry in self.chain.entries
        ]

    def dp_accounting(self) -> dict[str, Any]:
        """The rows as events of dp-accounting, plain values for JSON, and every accountant's ε of the caps.

        Each row is charged by its noisy totals there, an upper bound on what its outcomes tell. A row with no
        such event says why.
        """
        terms, rows = self.chain.terms, []
        for entry in self.chain.entries:
            row: dict[str, Any] = {"row": entry.seq, "mechanism": entry.event.mechanism.name}
            try:
                row["events"] = [asdict(each) for each in plain_noise(entry.event)]
            except InputError as error:
                row |= {"events": None, "reason": str(error)}
            rows.append(row)
        return {
            "neighboring_relation": terms.protection.adjacency.replace("-", "_").upper(),
            "unit": terms.protection.unit,
            "delta": terms.delta,
            "rows": rows,
            "spent": epsilon_json(self.epsilon),
            "caps": [asdict(each) for each in [*accountants(terms), *second_opinions(terms)]],
        }

    def lines(self) -> list[str]:
        """What was checked and what came out, for a person."""
        rows = len(self.chain.entries) + 1
        signed = f"signed by {self.chain.public_key}" if self.chain.public_key else "not signed"
        return [
            f"{self.path}: intact, {counted(rows, 'row')}, {signed}",
            f"{_counts(self)}, every released label as it was written",
            *_bounds(self),
            *_by_accountant(accountants(self.chain.terms)),
            *self.beside,
            *self.claims,
            *(f"NOT CHECKED: {reason}" for reason in self.unchecked),
            f"last row's hash {self.chain.head}",
        ]


def verify(
    path: Path,
    *,
    public_key: str | None = None,
    head: str | None = None,
    aggregators: Named = (),
) -> LedgerReport:
    """Check a ledger and compute every ε again from its rows alone.

    `aggregators` are mechanisms that are none of ours and whose code may be loaded, to hold their claims
    against it: names, or objects of this process by name. None: none, not even one that is installed for it
    (`check_claims`).

    `public_key` (Ed25519, 64 hex digits) must have signed every row, `head` must be the hash of one; both
    come from elsewhere. Without the key a chain that was computed anew by somebody who can write the file is
    not noticed; without the head neither is an older copy of the file put back in its place.

    Raises:
        InputError: there is no ledger, or the key or head is not 64 hex digits.
        IntegrityError: it is not as it was written; the message names the first row that is not. Or a
            mechanism's code is another than it names, or claims a larger curve.
    """
    path = Path(path)
    public_key, head = _hex_digits("public key", public_key), _hex_digits("head", head)
    with closing(read_only(path)) as connection:
        chain = read_chain(connection, path, public_key=public_key, head=head)
    claims, unchecked = check_claims(chain.terms, aggregators)
    return LedgerReport(path=path, chain=chain, claims=claims, unchecked=unchecked)


def _hex_digits(what: str, given: str | None) -> str | None:
    """64 hex digits in small letters, as a ledger has them: one that was mistyped accuses no ledger."""
    if given is not None and re.fullmatch(r"[0-9a-fA-F]{64}", given.strip()) is None:
        raise InputError(f"{what} {given!r}: 64 hex digits are meant")
    return None if given is None else given.strip().lower()


def verify_run(
    run_dir: Path,
    *,
    public_key: str | None = None,
    head: str | None = None,
    aggregators: Named = (),
    rewritten: Rewritten | None = None,
) -> LedgerReport:
    """Check a run's ledger as `verify` does, hold what lies beside it against it, and all against the seal.

    `labels.npz` is held against the rows whole; of `metrics.json` every ε, δ and what the terms fix, and the
    counts of queries. The seal binds the rest too, where the run has one (`require_sealed`). `public_key`
    must have signed every row, or, of a ledger without signatures, the seal. Files of `rewritten` may also
    be what the program writes again from the sealed ones.

    Raises:
        InputError: the directory holds no ledger.
        IntegrityError: the ledger is not as it was written, what lies beside it is not from it, or a file is
            not the one that was sealed.
    """
    path, public_key = run_dir / "ledger.sqlite", _hex_digits("public key", public_key)
    if not path.is_file():
        raise InputError(f"{run_dir}: holds no ledger.sqlite; give the --run-dir of a run")
    seal = read_seal(run_dir)
    # What its seal names as the last row is signed, and so is every row before it.
    signs_rows = None if seal is not None and seal.public_key == public_key else public_key
    report = verify(path, public_key=signs_rows, head=head, aggregators=aggregators)
    found = []
    for name, check in (("labels.npz", check_labels), ("metrics.json", check_metrics)):
        beside = run_dir / name
        found.append(check(beside, report.chain) if beside.exists() else f"{name}: not there")
    if seal is None:
        return replace(report, beside=(*found, NOT_HELD))
    found += [*check_seal(path, seal, report.chain, rewritten or {}), seal.proves(known=public_key)]
    return replace(report, beside=tuple(found), sealed_by=seal.public_key)


def describe(path: Path) -> list[str]:
    """The ledger as text, line by line, after the checks of `verify`, for which no code is loaded."""
    report = verify(path, aggregators=None)
    chain, terms = report.chain, report.chain.terms
    budget = "none" if terms.epsilon is None else f"ε={epsilon_text(terms.epsilon)}, never passed"
    return [
        f"Ledger of the study {terms.study_digest[:16]}…, begun {chain.created}, pate_fed {chain.version}",
        *(f"Mechanism: {_mechanism(mechanism)}" for mechanism in terms.mechanisms),
        f"Noise: {terms.noise}",
        f"Budget: {budget}",
        f"Spent: {_counts(report)}, in {counted(len(chain.entries), 'release')}",
        *_bounds(report),
        *_by_accountant([*accountants(terms), *second_opinions(terms)]),
        *(_entry_line(entry, chain.entries) for entry in chain.entries),
    ]


def _counts(report: LedgerReport) -> str:
    """What was asked and answered; of sums nobody was asked about an input."""
    if any(mechanism.name in CLASS_SUM_MECHANISMS for mechanism in report.chain.terms.mechanisms):
        return f"sums of {counted(len(report.chain.entries), 'round')}, {report.answered} labels made of them"
    return f"{report.asked} queries asked, {report.answered} answered"


def _bounds(report: LedgerReport) -> list[str]:
    terms = report.chain.terms
    protected = f"for {terms.protects}"
    guaranteed, spent = guaranteed_epsilon(terms), f"spent so far ε={epsilon_text(report.epsilon)}"
    against = f"no bound beforehand, {spent}, {protected}"
    if guaranteed is not None:
        proven = f"({epsilon_text(guaranteed)}, {delta_text(terms.delta)})-differential privacy {protected}"
        against = f"{proven}, fixed before the first query by {guarantee_text(terms)}; {spent}"
    seen, most = report.coordinator_epsilon, guaranteed_coordinator_epsilon(terms)
    if seen is None:
        coordinator = f"no bound: it sees {terms.coordinator.text()}"
    elif terms.coordinator.sees_release:
        coordinator = f"as against the public: it sees {terms.coordinator.text()}"
    else:
        view = terms.coordinator
        colluders = f"{counted(view.colluders, 'hospital')} tell{'s' if view.colluders == 1 else ''}"
        coordinator = (
            f"({epsilon_text(seen if most is None else most)}, {delta_text(terms.delta)})-differential "
            f"privacy {protected}, while at most {colluders} it their noise: it "
            f"sees {view.text()}; spent so far ε={epsilon_text(seen)}"
        )
    of_labels = terms.protection.unit == "label"
    what = "sums" if terms.sums else "labels" if of_labels else "votes"
    own = any(isinstance(each, OwnMechanism) for each in terms.mechanisms)
    lines = [
        f"Against the student and anyone who gets it or its labels: {against}",
        f"Against another hospital, whatever it knows of its own {what}: {_other(terms)}",
        f"Against the coordinator: {coordinator}",
        "Every ε is independent of the votes: Rényi DP with the improved conversion, rounded up; each query "
        f"is charged as {'its mechanism claims' if own else _CHARGED}",
    ]
    if of_labels:
        lines[-1] = "Every ε follows from the mechanism's parameters, whatever the labels are, rounded up"
    elif terms.sums:
        lines[-1] = "Every ε is the exact one of the release's noise, whatever the records are, rounded up"
    lines += (f"NOT PROVEN: {each.warning}" for each in terms.assumptions.each)
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


def _by_accountant(found: Sequence[CapsEpsilon]) -> list[str]:
    """A line each, the least ε first; none where there are no caps."""
    lines = [each.line() for each in sorted(found, key=lambda each: each.epsilon)]
    return ["ε of the caps alone, by each accountant, and what it holds for:", *lines] if lines else []


def _other(terms: LedgerTerms) -> str:
    view = terms.coordinator
    [first, *_] = terms.mechanisms
    if isinstance(first, SharedClassSums):
        view = hospital_noise(
            sigma_party=first.sigma_party, survivors=first.survivors, colluders=first.colluders
        )
    if view.variance is None:
        return "as against the student"
    if view.colluders:
        together = " together" if view.colluders > 1 else ""
        return f"as against the student, also for {counted(view.colluders, 'hospital')}{together}"
    return "no bound is stated: it knows its own share of the noise, and no colluder was counted on"


def _mechanism(mechanism: Mechanism) -> str:
    if isinstance(mechanism, OwnMechanism):
        own = "".join(f", {name}={value}" for name, value in mechanism.claim.parameters)
        sizes = f"num_teachers={mechanism.num_teachers}, num_classes={mechanism.num_classes}"
        return f"{mechanism.claim.part.text} with {sizes}{own}; none of ours"
    unit = "votes" if mechanism.num_teachers else "labels"
    unit = "steps of the features" if mechanism.name in CLASS_SUM_MECHANISMS else unit
    parameters = {name: value for name, value in mechanism.parameters().items() if value is not None}
    values = ", ".join(f"{name}={value:g}" for name, value in parameters.items())
    return f"{mechanism.name} with {values}; noise and threshold in {unit}"


def _entry_line(entry: Entry, entries: Sequence[Entry]) -> str:
    event, chosen = entry.event, ""
    counts = f"{event.asked} asked, {event.answered} answered"
    if (student := entry.provenance) is not None:
        last = next(row.seq for row in entries if row.hash == student.learnt_to)
        chosen = f"; round {student.round}, {student.strategy}, by a student of rows up to {last}"
    line = f"  {entry.seq:>4}  {entry.time}  {event.mechanism.name}: {counts}"
    return f"{line}, then ε={epsilon_text(entry.epsilon)}{chosen}"


def check_claims(terms: LedgerTerms, named: Named) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Which claims were held against their code, and why others were not, a sentence each.

    Code is loaded where it is an installed entry point of the group pate_fed.aggregators, or in `named`. No
    other is, whatever a ledger names: the file may come from anyone.

    Raises:
        IntegrityError: the code is another than the ledger names, or claims a larger curve.
    """
    checked, unchecked = list[str](), list[str]()
    for mechanism in terms.mechanisms:
        if not isinstance(mechanism, OwnMechanism):
            continue
        name, whose = mechanism.name, mechanism.claim.part.text
        if named is None:
            unchecked.append(f"the curve of {whose} was not computed again: ledger verify does")
            continue
        if name not in named and name not in entry_points("aggregator").values():
            unchecked.append(
                f"the curve of {whose} was not computed again: a ledger may name any code, so it is loaded "
                f"only if you name it: --aggregator {name}, or in Python "
                f"Ledger.read(RUN_DIR, aggregators=[{name!r}])"
            )
            continue
        try:
            check_claim(mechanism, named.get(name) if isinstance(named, Mapping) else None)
        except InputError as error:
            unchecked.append(f"the code of {whose} cannot be used here: {error}")
            continue
        checked.append(f"{name}: its code, as it is here, claims no more than was charged")
    return tuple(checked), tuple(unchecked)


@dataclass(frozen=True, slots=True)
class CapsEpsilon:
    """ε that one accountant gives for a study's caps, rounded up, and what it holds for, as text."""

    name: str
    epsilon: float
    holds_for: str

    def line(self) -> str:
        """The figure in one line; those of another library, in floats, with ≈."""
        about = "≈" if self.name.startswith("PLD") else ""
        return f"{about + epsilon_text(self.epsilon):>8}  {self.name}: {self.holds_for}"


def accountants(terms: LedgerTerms) -> list[CapsEpsilon]:
    """ε of the caps by each accountant of this package that has one, the least first; empty without caps."""
    capped, delta = _capped(terms), terms.delta
    if capped is None:
        return []
    if capped.claimed:
        return _marked(terms, _of_claims(capped, delta))
    totals = capped.as_totals
    found = _of_sums(capped, delta) if terms.sums else _of_votes(terms, capped)
    if totals == Cost(rho=totals.rho):
        epsilon = gaussian_dp_epsilon(Interval.of(2 * totals.rho).root().up(), delta)
        found.append(CapsEpsilon("Gaussian DP of continuous totals", epsilon, _CONTINUOUS))
    return _marked(terms, found)


def _of_votes(terms: LedgerTerms, capped: Cost) -> list[CapsEpsilon]:
    delta = terms.delta
    found = [
        CapsEpsilon(
            "RDP of noisy totals",
            epsilon_of(capped.as_totals, delta),
            "the integer noise that runs, also against those who see noisy totals",
        ),
        CapsEpsilon(
            "RDP of outcomes",
            epsilon_of(capped, delta),
            "all who see labels; a budget's filter adds up the same curves",
        ),
        CapsEpsilon(
            "optimal control",
            capped_cost_epsilon(capped, delta),
            "all who see labels, any votes, order and stops; it or RDP is what is stated",
        ),
    ]
    if (query := checked_query(terms)) is not None and terms.most_asked is not None:
        epsilon = checked_epsilon(query, terms.most_asked, delta)
        whole = "the same, as each hospital's votes are checked to be votes; the least is what is stated"
        found.append(CapsEpsilon("control of whole queries", epsilon, whole))
    return found


def _of_claims(capped: Cost, delta: float) -> list[CapsEpsilon]:
    found = [CapsEpsilon("RDP as claimed", epsilon_of(capped, delta), "all who see labels")]
    if capped.is_pure:
        epsilon, whole = capped_cost_epsilon(capped, delta), "all who see labels; it or RDP is what is stated"
        found.append(CapsEpsilon("composition of pure DP as claimed", epsilon, whole))
    return found


def _marked(terms: LedgerTerms, found: list[CapsEpsilon]) -> list[CapsEpsilon]:
    """The least ε first, and of a mechanism that claims its cost on what condition."""
    if any(isinstance(each, OwnMechanism) for each in terms.mechanisms):
        kept = "if the mechanism keeps what it claims"
        found = [replace(each, holds_for=f"{each.holds_for}; {kept}") for each in found]
    return sorted(found, key=lambda each: each.epsilon)


def _of_sums(capped: Cost, delta: float) -> list[CapsEpsilon]:
    """Of class sums: nothing is voted on, and the noise of all rounds is one Gaussian."""
    seen = "all who see the noisy sums, or what is made of them"
    looser, stated = f"{seen}; a looser bound on the same noise", f"{seen}; this is what is stated"
    return [
        CapsEpsilon("RDP of the noise", epsilon_of(capped.as_totals, delta), looser),
        CapsEpsilon("exact law of the noise", epsilon_of(capped, delta), stated),
    ]


def second_opinions(terms: LedgerTerms) -> list[CapsEpsilon]:
    """ε of the caps by the library dp-accounting, where it is installed and knows the mechanism."""
    capped, found = _capped(terms), list[CapsEpsilon]()
    if capped is None or capped.claimed:
        return found
    discrete = "all who see labels, within the caps; by dp-accounting, each outcome as its noise"
    for name, accountant, holds_for in (
        ("PLD of the integer noise", pld_epsilon, discrete),
        ("PLD of continuous totals", totals_pld_epsilon, _CONTINUOUS),
    ):
        with suppress(InputError):  # no such distribution, or no library: the others stand
            found.append(CapsEpsilon(name, accountant(capped, terms.delta), holds_for))
    return _marked(terms, found)


def _capped(terms: LedgerTerms) -> Cost | None:
    """The most that the caps allow; None without caps, or where no accountant here adds it up."""
    capped = guaranteed_cost(terms)
    return None if capped is None or capped.epsilon or capped.delta else capped
