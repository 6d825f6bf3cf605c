"""A hospital's own privacy account: what all studies that it agreed to can cost its patients together.

One SQLite file a hospital, in its user's state home, across studies and restarts. A study is written down
before a teacher is trained or a label looked at, and counts with the most that it can cost before its first
answer leaves, and stays so: what it happened to spend depends on private votes, and is no bound. Another set
of records is no new account: one changed row would begin it anew.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from clients.policy import Policy
from pate_fed.config.sections import Privacy
from pate_fed.disk import sync_folder, write_private
from pate_fed.errors import InputError, IntegrityError
from pate_fed.format import counted, delta_text, epsilon_text
from pate_fed.kinds.terms import Terms
from pate_fed.privacy import BudgetFilter, LedgerTerms, capped_cost_epsilon
from pate_fed.privacy.bounds.cost import Cost, epsilon_of
from pate_fed.privacy.ledger.terms import caps_epsilon, guaranteed_coordinator_cost, guaranteed_cost
from pate_fed.privacy.protection import ADJACENCIES, HOSPITAL_UNIT, PATIENT_UNIT, RECORD_UNIT, Protection
from pate_fed.protocol.messages import Refusal
from pate_fed.runtime.run_dir import state_home

# What studies cost a hospital together: RDP curves that were fixed beforehand add up, study by study.
#
# A study states its ε for one unit and adjacency. Its cost is kept for each of them, by its own mechanism,
# so that studies that state different ones compose. A bound for replaced records holds for replaced labels
# too; where labels alone are private, features count as known, so such a study bounds nothing for records.
# A patient's records are a hospital's, and a record is a patient's: where a study has no cost for the one,
# that of the other bounds it.

PUBLIC, COORDINATOR = "public", "coordinator"
_LABELS = "label, replace-one"
_RECORDS = f"{RECORD_UNIT}, replace-one"
_HOSPITALS = f"{HOSPITAL_UNIT}, replace-one"


def target_of(protection: Protection | Privacy) -> str:
    """The unit and the adjacency as one text, by which costs are kept apart."""
    return f"{protection.unit}, {protection.adjacency}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyCost:
    """What one study can cost at most: its ledger's terms for every unit and adjacency with a bound.

    `stated` is the target that the study itself states its ε for.
    """

    stated: str
    terms: dict[str, LedgerTerms]

    @classmethod
    def of(cls, agreed: Terms) -> StudyCost:
        """From the terms that a hospital agrees to; InputError where no mechanism has such."""
        private = agreed.seed is None
        stated = agreed.ledger_terms(noise="as agreed", private=private)
        found = {target_of(stated.protection): stated}
        # The noise of a sanitised ε is made for the stated target.
        by_patient = agreed.privacy.unit == PATIENT_UNIT
        others = (PATIENT_UNIT if by_patient else RECORD_UNIT, HOSPITAL_UNIT)
        for unit in () if agreed.privacy.sanitise else others:
            for adjacency in ADJACENCIES:
                try:
                    # The budget is one for the stated target alone; the caps bound the others too.
                    privacy = replace(
                        agreed.privacy,
                        unit=unit,
                        adjacency=adjacency,
                        epsilon=None,
                        hospitals_per_patient=agreed.privacy.hospitals_moved if unit == PATIENT_UNIT else 1,
                    )
                    varied = replace(agreed, privacy=privacy)
                    made = varied.ledger_terms(noise="as agreed", private=private)
                except InputError:  # there is none, such as for a hospital that takes its noise along
                    continue
                found.setdefault(target_of(made.protection), made)
        return cls(stated=target_of(stated.protection), terms=found)

    def bounds(self, target: str, against: str) -> list[Cost]:
        """Costs of which each is the most that the study can cost; empty where nothing bounds it.

        The first follows from the caps. A budget ε at δ is held by its filter at one order, and RDP grows
        with the order: so much is the RDP at every order below it, too. Where the caps alone keep the budget
        the filter is not asked, so only they bound the RDP.
        """
        terms, public = self._bounding(target, against)
        if terms is None:
            return []
        caps = guaranteed_cost(terms) if public else guaranteed_coordinator_cost(terms)
        found = [] if caps is None else [_as_rdp(caps)]
        budget = terms.budget
        if public and budget is not None and not terms.caps_keep_budget:
            found.append(Cost(flat=budget.room, most_order=Fraction(budget.order)))
        return found

    def alone(self, target: str, against: str, *, delta: float) -> list[float]:
        """ε at δ that the study itself states for a target by its caps, where nothing else was released."""
        terms, public = self._bounding(target, against)
        found = caps_epsilon(replace(terms, delta=delta)) if terms is not None and public else None
        return [] if found is None else [found]

    def _bounding(self, target: str, against: str) -> tuple[LedgerTerms | None, bool]:
        """Terms that bound what the target moves, if any do; whether labels alone are seen there."""
        terms = self._covering(_RECORDS if target == _LABELS and not self.about_labels else target)
        if terms is None or not terms.private:
            return None, False
        return terms, against == PUBLIC or terms.coordinator.sees_release

    def _covering(self, target: str) -> LedgerTerms | None:
        """Terms that bound what the target moves: its own, else those of what it is a part of.

        A record that comes or goes may be all that a patient has, or change what there is of one. A patient
        who does changes one hospital's answer, as another hospital in its place would. Class sums of earlier
        versions meant a patient by "record" where a table named these.
        """
        unit, _, adjacency = target.partition(", ")
        own, record = self.terms.get(target), self.terms.get(f"{RECORD_UNIT}, {adjacency}")
        if own is not None:
            return own
        if unit == PATIENT_UNIT:
            return record if record is not None and record.by_patient else self.terms.get(_HOSPITALS)
        if unit == RECORD_UNIT:
            replaced, comes = (self.terms.get(f"{PATIENT_UNIT}, {each}") for each in ADJACENCIES)
            if adjacency == ADJACENCIES[0] or replaced is None or comes is None:
                return replaced if adjacency == ADJACENCIES[0] else None
            return comes if comes.protection.votes_moved > replaced.protection.votes_moved else replaced
        return None

    @property
    def about_labels(self) -> bool:
        """Whether labels alone are private in it."""
        return self.stated == _LABELS

    def covers(self, target: str) -> bool:
        """Whether the study bears on what the target protects; where features are public it does not."""
        return target == _LABELS or not self.about_labels


def total_epsilon(studies: Sequence[StudyCost], target: str, against: str, *, delta: float) -> float | None:
    """ε at δ of all studies that cover the target, together, rounded up; None where nothing bounds it.

    Ordinary composition of costs that were fixed beforehand (Mironov 2017, Proposition 1), so it holds where
    no study's terms were chosen by what an earlier one released. One study alone is bounded by its caps.
    """
    counted = [study for study in studies if study.covers(target)]
    sums = _sums(counted, target, against, delta)
    if len(counted) != 1:
        return min((epsilon_of(each, delta) for each in sums), default=None)
    found = [capped_cost_epsilon(each, delta) for each in sums]
    return min([*found, *counted[0].alone(target, against, delta=delta)], default=None)


def fits(studies: Sequence[StudyCost], target: str, against: str, *, epsilon: float, delta: float) -> bool:
    """Whether all studies that cover the target stay within (ε, δ) together.

    A coordinator may choose its terms by what earlier studies released, so the limit is held at one order,
    which follows from ε and δ alone (Rényi filter: Feldman and Zrnic 2021), or by pure ε that add up to no
    more (Rogers et al. 2016). Either may hold, as on a course where pure ε add up to ε no loss passes it. The
    first study's terms were chosen by nothing, so its caps may bound it: none fits after it that this order
    has no room for.
    """
    counted = [study for study in studies if study.covers(target)]
    try:
        held = BudgetFilter(epsilon, delta)
    except InputError:  # ε or δ of 0: nothing fits but no study
        return not counted
    sums = _sums(counted, target, against, delta)
    if any(_holds(held, each) or _is_pure(each, epsilon) for each in sums):
        return True
    found = total_epsilon(counted, target, against, delta=delta) if len(counted) == 1 else None
    return found is not None and found <= epsilon


def _is_pure(cost: Cost, epsilon: float) -> bool:
    """Whether all of a cost is pure ε, and they add up to at most `epsilon`."""
    total = sum((each * times for each, times in cost.pure), Fraction(0))
    return cost == Cost(pure=cost.pure) and total <= Fraction(epsilon)


def _holds(held: BudgetFilter, cost: Cost) -> bool:
    try:
        return held.holds(cost)
    except InputError:  # a cost that is not known at the order
        return False


def _sums(studies: Sequence[StudyCost], target: str, against: str, delta: float) -> list[Cost]:
    """Sums of one bound of each study: of each the first, the last, and the one that is least alone."""
    found = [study.bounds(target, against) for study in studies]
    if not all(found):
        return []
    least = [min(bounds, key=lambda cost: epsilon_of(cost, delta)) for bounds in found]
    chosen = ([bounds[0] for bounds in found], [bounds[-1] for bounds in found], least)
    return [sum(costs, Cost()) for costs in chosen]


def _as_rdp(cost: Cost) -> Cost:
    """The cost with a pure (ε, 0) part known by its RDP (P17, Theorem 2); a part with a δ stays as it is."""
    if not cost.epsilon or cost.delta:
        return cost
    return replace(cost, epsilon=Fraction(0)) + Cost(pure=((cost.epsilon, 1),))


_STATE_ID = "account.id"
_WAIT_S = 30.0
_TABLE = """CREATE TABLE IF NOT EXISTS studies (
    terms_digest TEXT NOT NULL, state TEXT NOT NULL, time REAL NOT NULL, study TEXT NOT NULL,
    data TEXT NOT NULL, stated TEXT NOT NULL, costs TEXT NOT NULL, asked INTEGER NOT NULL,
    PRIMARY KEY (terms_digest, state))"""
_BOOKED = "SELECT 1 FROM studies WHERE terms_digest = ? AND state = ?"
_ALIKE = "SELECT terms_digest FROM studies WHERE state = ? AND stated = ? ORDER BY time"


def account_folder() -> Path:
    """Where the accounts of this user's hospitals are; InputError where nothing says where state lies."""
    return state_home() / "account"


def state_id(state_dir: Path) -> str:
    """What names a state directory for good, made with it: without its memory a study is answered anew.

    Raises:
        OSError: it cannot be written.
    """
    path = state_dir / _STATE_ID
    if not path.exists():
        write_private(path, secrets.token_hex(16).encode())
    return path.read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Booking:
    """One study on the account. `time` is in seconds since 1970, `data` the name of the records for show.

    Not `asked`: nothing of its votes or labels has left, so it costs nothing.
    """

    terms_digest: str
    state: str
    time: float
    study: str
    data: str
    cost: StudyCost
    asked: bool = True


class Account:
    """The account of one hospital, by its name; InputError where nothing says where its state lies."""

    def __init__(self, hospital: str, *, folder: Path | None = None) -> None:
        self.path = (folder or account_folder()) / f"{hospital}.sqlite"

    def bookings(self) -> list[Booking]:
        """All studies on the account, by the time they were agreed to; empty where there is none yet.

        Raises:
            InputError: the file cannot be read.
        """
        if not self.path.exists():
            return []
        with self._open() as connection:
            return _bookings(connection)

    def check(self) -> None:
        """Make sure that a study can be booked, before one is connected to.

        Raises:
            InputError: the file cannot be written.
        """
        with self._transaction() as connection:
            connection.execute("PRAGMA user_version = 0")  # a write, which changes nothing

    def book(
        self, terms: Terms, *, state: str, data: str, policy: Policy | None, asked: bool = True
    ) -> tuple[Refusal, str] | None:
        """Book the most that a study can cost, durably; why it is refused, with the figures, or None.

        A study that is on the account already is not booked twice, but held against the policy again. Not
        `asked` it is written down, and costs nothing yet.

        Raises:
            InputError: the file cannot be written, or terms that no mechanism has.
        """
        with self._transaction() as connection:
            own = _own_key(connection, terms, state)
            limited = policy is not None and policy.limits_total
            done = f"{_BOOKED} AND asked >= {asked:d}"
            if not limited and connection.execute(done, own).fetchall():
                return None
            cost, held = StudyCost.of(terms), _bookings(connection)
            others = [each.cost for each in held if each.asked and (each.terms_digest, each.state) != own]
            refused = None if policy is None else _beyond(policy, others, cost)
            if refused is None:
                costs = {target: made.to_dict() for target, made in cost.terms.items()}
                connection.execute(
                    "INSERT INTO studies VALUES (?, ?, ?, ?, ?, ?, ?, ?) "
                    "ON CONFLICT (terms_digest, state) DO UPDATE SET asked = max(asked, excluded.asked)",
                    (*own, time.time(), terms.study, data, cost.stated, json.dumps(costs), asked),
                )
        return refused

    def objection(self, terms: Terms, *, policy: Policy) -> tuple[Refusal, str] | None:
        """Why the policy's limits over all studies refuse these terms, or None. Nothing is booked.

        What is on the account under the same terms is taken for this very study.

        Raises:
            InputError: the file cannot be read, or terms that no mechanism has.
        """
        if not policy.limits_total:
            return None
        others = [each.cost for each in self.bookings() if each.asked and each.terms_digest != terms.digest]
        return _beyond(policy, others, StudyCost.of(terms))

    def strike(self, terms: Terms, *, state: str) -> None:
        """Note that nothing of a study's votes or labels left, nor ever will.

        Raises:
            InputError: the file cannot be written.
        """
        with self._transaction() as connection:
            own = _own_key(connection, terms, state)
            connection.execute("UPDATE studies SET asked = 0 WHERE terms_digest = ? AND state = ?", own)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """The file, with all that is done to it on the disk at the end, or nothing of it."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self.path.exists():
                os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
                sync_folder(self.path.parent)
        except OSError as error:
            raise self._unusable(error.strerror or "") from error
        with self._open() as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(_TABLE)
                yield connection
                connection.execute("COMMIT")
            except sqlite3.Error as error:
                raise self._unusable(str(error)) from error

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self.path, timeout=_WAIT_S, isolation_level=None)) as connection:
                connection.execute("PRAGMA synchronous = FULL")
                yield connection
        except sqlite3.Error as error:
            raise self._unusable(str(error)) from error

    def _unusable(self, why: str) -> InputError:
        return InputError(
            f"{self.path}: this hospital's privacy account cannot be used ({why}), and without it no study "
            "begins; XDG_STATE_HOME names the folder that it lies under"
        )


def _own_key(connection: sqlite3.Connection, terms: Terms, state: str) -> tuple[str, str]:
    """The digest and the state that a study is booked under: the first digest, if one answer serves all."""
    first = None
    if terms.asks.once_for_all:
        first = connection.execute(_ALIKE, (state, target_of(terms.privacy))).fetchone()
    return (terms.digest if first is None else first[0], state)


def _bookings(connection: sqlite3.Connection) -> list[Booking]:
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'studies'").fetchall():
        return []
    rows = connection.execute(
        "SELECT terms_digest, state, time, study, data, stated, costs, asked FROM studies ORDER BY time"
    )
    found = []
    for digest, state, when, study, data, stated, costs, asked in rows.fetchall():
        try:
            made = {name: LedgerTerms.from_dict(values) for name, values in json.loads(costs).items()}
        except (ValueError, KeyError, TypeError, AttributeError, IntegrityError) as error:
            raise InputError(f"the study {study!r} on this hospital's account is not readable") from error
        found.append(
            Booking(
                terms_digest=digest,
                state=state,
                time=when,
                study=study,
                data=data,
                cost=StudyCost(stated=stated, terms=made),
                asked=bool(asked),
            )
        )
    return found


def _beyond(policy: Policy, others: Sequence[StudyCost], new: StudyCost) -> tuple[Refusal, str] | None:
    """Why one more study would pass what the policy allows over all of them."""
    together = [*others, new]
    # All that any study states and this one bears on: each of these sums is shown, so each is held.
    targets = [each for each in dict.fromkeys(study.stated for study in together) if new.covers(each)]
    for against, most in (
        (PUBLIC, policy.epsilon_public_total),
        (COORDINATOR, policy.epsilon_coordinator_total),
    ):
        for target in targets if most is not None else ():
            if most is None or fits(together, target, against, epsilon=most, delta=policy.delta):
                continue
            total = total_epsilon(together, target, against, delta=policy.delta)
            shown = "without a bound" if total is None else epsilon_text(total)
            if total is not None and total <= most:
                shown += " (more at the order that the limit is held at)"
            before = counted(len(others), "study")
            sentence = (
                f"with the {before} before it ε against the {against} would be {shown} at "
                f"δ={delta_text(policy.delta)} for one {target}; the policy allows {most:g} over all studies "
                f"(epsilon_{against}_total)"
            )
            return Refusal.POLICY_TOTAL, sentence
    return None
