"""A hospital's own privacy account: what all studies that it agreed to can cost its patients together.

One SQLite file a hospital, in its user's state home, across studies and restarts. A study is written down
with the most that it can cost before a teacher is trained or a label looked at, and stays so: what it
happened to spend depends on private votes, and is no bound. Another set of records is no new account: one
changed row would begin it anew.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from clients.policy import Policy
from clients.study_cost import COORDINATOR, PUBLIC, StudyCost, fits, target_of, total_epsilon
from pate_fed.disk import sync_folder, write_private
from pate_fed.errors import InputError, IntegrityError
from pate_fed.format import counted, delta_text, epsilon_text
from pate_fed.kinds.terms import Terms
from pate_fed.privacy import LedgerTerms
from pate_fed.protocol.refusals import Refusal
from pate_fed.runtime.state_home import state_home

_STATE_ID = "account.id"
_WAIT_S = 30.0
_TABLE = """CREATE TABLE IF NOT EXISTS studies (
    terms_digest TEXT NOT NULL, state TEXT NOT NULL, time REAL NOT NULL, study TEXT NOT NULL,
    data TEXT NOT NULL, stated TEXT NOT NULL, costs TEXT NOT NULL, asked INTEGER NOT NULL,
    PRIMARY KEY (terms_digest, state))"""
_BOOKED = "SELECT 1 FROM studies WHERE terms_digest = ? AND state = ?"
_ALIKE = "SELECT terms_digest FROM studies WHERE state = ? AND stated = ? ORDER BY time"


def account_folder() -> Path:
    """Where the accounts of this user's hospitals are.

    Raises:
        InputError: nothing says where this user's state lies.
    """
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

    Not `asked`: the hospital left it before anything of its votes or labels had left, so it costs nothing.
    """

    terms_digest: str
    state: str
    time: float
    study: str
    data: str
    cost: StudyCost
    asked: bool = True


class Account:
    """The account of one hospital, by its name.

    Raises:
        InputError: nothing says where this user's state lies.
    """

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
        self, terms: Terms, *, state: str, data: str, policy: Policy | None
    ) -> tuple[Refusal, str] | None:
        """Reserve the most that a study can cost, durably; why it is refused, with the figures, or None.

        A study that is on the account already is not booked twice, but held against the policy again.

        Raises:
            InputError: the file cannot be written, or terms that no mechanism has.
        """
        with self._transaction() as connection:
            own = _own_key(connection, terms, state)
            limited = policy is not None and policy.limits_total
            if not limited and connection.execute(f"{_BOOKED} AND asked", own).fetchall():
                return None
            cost, held = StudyCost.of(terms), _bookings(connection)
            others = [each.cost for each in held if each.asked and (each.terms_digest, each.state) != own]
            refused = None if policy is None else _beyond(policy, others, cost)
            if refused is None:
                costs = {target: made.to_dict() for target, made in cost.terms.items()}
                connection.execute(
                    "INSERT INTO studies VALUES (?, ?, ?, ?, ?, ?, ?, 1) "
                    "ON CONFLICT (terms_digest, state) DO UPDATE SET asked = 1",
                    (*own, time.time(), terms.study, data, cost.stated, json.dumps(costs)),
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
