"""A hospital's side, checked as its client would: identity, terms, policy, records, disk, the coordinator."""

from __future__ import annotations

import argparse
import importlib
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pate_fed.cli.doctor.findings import Good, Row, look
from pate_fed.cli.doctor.machine import Load
from pate_fed.cli.doctor.records import Wanted, check_labels, try_teachers
from pate_fed.cli.health import hospital_runs
from pate_fed.errors import InputError, PolicyError
from pate_fed.flower.processes import split_address
from pate_fed.identity import HospitalIdentity, cost_text, read_terms
from pate_fed.identity.certificates import days_left, issued_at, read_certificate
from pate_fed.identity.keys import check_name
from pate_fed.protocol.label_terms import LabelTerms
from pate_fed.protocol.messages import Terms
from pate_fed.runtime.run_dir import check_writable

if TYPE_CHECKING:
    from pate_fed.data import Rows

__all__ = ["HospitalSide"]

_LATE_S = 300.0  # a hospital's clock may be so far behind the coordinator's
_MEMORY = 1.0e9  # client and SuperNode with torch
_FILES = 256


class HospitalSide:
    """One hospital, by the options that its client takes."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self._identity: HospitalIdentity | None = None
        self._terms: Terms | LabelTerms | None = None
        self._wanted: Wanted | None = None

    @property
    def load(self) -> Load:
        """What a hospital's processes take."""
        return Load(what="a hospital", bytes=_MEMORY, files=_FILES, places=lambda: (self._state,))

    @property
    def _name(self) -> str:
        known = self._identity.admission.hospital if self._identity is not None else "NAME"
        return self._given.hospital or known

    @property
    def _state(self) -> Path:
        return Path(self._given.state_dir or f"hospital-{self._name}")

    def rows(self) -> Iterator[Row]:
        """One check after another; later ones know what earlier ones have read."""
        given = self._given
        if given.tls_dir is not None or given.hospital is not None:
            yield from look("identity", self._check_identity)
        if self._identity is not None:
            yield from look("terms", self._check_terms)
        if given.policy is not None or self._terms is not None:
            yield from look("policy", self._check_policy)
        if given.data is not None:
            yield from look("data", self._check_data)
            yield from self._records()
        if given.pool is not None:
            yield from look("pool", self._check_pool)
        if (given.hospital, given.tls_dir, given.state_dir) != (None, None, None):
            yield from look("state", self._check_state)
        if given.server is not None:
            yield from self._way()

    def unseen(self) -> list[str]:
        """What was not looked at, and the option for it."""
        given, address = self._given, "HOST:PORT"
        if self._identity is not None:
            address = self._identity.admission.address
        return [
            words
            for value, words in (
                (given.tls_dir, "key and admission (--tls-dir DIR)"),
                (given.data, "the records (--data PATH)"),
                (given.server, f"the way to the coordinator (--server {address})"),
            )
            if value is None
        ]

    def _check_identity(self) -> Good:
        given = self._given
        if given.hospital is not None:
            check_name(given.hospital)
        if given.tls_dir is None:
            return Good(said=f"{given.hospital}, no key or admission given")
        self._identity = found = HospitalIdentity.open(
            Path(given.tls_dir)
        )  # its terms are read even where keys fail
        warnings = found.check(given.hospital or found.admission.hospital)
        certificate = read_certificate(found.admission.certificate.encode(), "the admission")
        behind = (issued_at(certificate) - datetime.now(UTC)).total_seconds()
        if behind > _LATE_S:
            raise InputError(
                f"this machine's clock is at least {behind / 60:.0f} minutes behind the one that "
                f"{found.admission.hospital} was admitted by: set the clocks"
            )
        return Good(
            said=f"{found.admission.hospital}'s keys and admission belong together, {days_left(certificate)} "
            f"days left; authority {found.admission.fingerprint[:16]}…",
            warnings=tuple(f"{words}: ask the coordinator to admit it again" for words in warnings),
        )

    def _check_terms(self) -> Good:
        assert self._identity is not None
        text = self._identity.admission.terms
        _ = self._identity.admission.terms_digest  # refuses what the authority did not sign
        words = cost_text(text)
        found = read_terms(text)
        assert isinstance(found, Terms | LabelTerms)
        self._terms = found
        return Good(said=f"signed by the authority: {words}")

    def _check_policy(self) -> Good:
        """Whether this hospital takes part under these terms, as its client would decide."""
        path = None if self._given.policy is None else Path(self._given.policy)
        policy: Any = importlib.import_module("clients.policy").Policy.load(path)
        what = "the default, without a file," if path is None else str(path)
        if self._terms is None:
            return Good(said=f"{what} can be read; with --tls-dir it is held against the study's terms")
        objection = policy.objection(self._terms)
        if objection is None and not isinstance(self._terms, Terms):
            objection = policy.refuses_more(answered=0, today=0, asked=self._terms.max_queries)
        if objection is not None:
            reason, sentence = objection
            raise PolicyError(
                f"{reason.value}: {sentence}; change {path or 'the study'}, or do not take part"
            )
        strangers = self._terms.num_clients - 1 - len(set(policy.trusted) - {self._name})
        words = (
            f"{path} trusts fewer hospitals than the study has, and refuses sums with others: add the "
            f"missing {strangers} to [trusted], or leave it out"
        )
        doubted = self._terms.secure_sum and policy.trusted and strangers > 0
        return Good(said=f"{what} allows the study", warnings=(words,) if doubted else ())

    def _check_data(self) -> Good:
        """Whether the records are there, and what says how they are read."""
        text, path = self._given.data, Path(self._given.data)
        if text.startswith("part:"):
            return Good(said=f"{text} rehearses with a simulated party's records")
        if not path.exists():
            raise InputError(f"--data {path}: there is no such file or folder")
        if isinstance(self._terms, Terms):
            self._wanted = Wanted.by(self._terms)
        elif self._terms is None and self._given.config is not None:
            self._wanted = Wanted.of(Path(self._given.config))
        elif self._terms is None:
            cure = "mend the identity" if self._given.tls_dir else "give --tls-dir or --config too"
            words = f"{path} is there, but nothing says how the study reads it: {cure}"
            return Good(said="", warnings=(words,))
        return Good(said=f"{path}, read as {'the terms say' if self._terms else self._given.config}")

    def _records(self) -> Iterator[Row]:
        """What is in the records, for the hospital's own terminal."""
        path, terms, wanted = Path(self._given.data), self._terms, self._wanted
        if path.exists() and isinstance(terms, LabelTerms):
            yield from look("records", partial(check_labels, path, terms), private=True)
        if wanted is None:
            return
        read: list[Rows] = []

        def check() -> Good:
            rows, found = wanted.read(path)
            read.append(rows)
            return found

        yield from look("records", check, private=True)
        for rows in read:
            yield from look("teachers", partial(try_teachers, rows, wanted), private=True)

    def _check_pool(self) -> Good:
        from pate_fed.data import pool_digest, read_pool

        path = Path(self._given.pool)
        if not isinstance(self._terms, Terms):
            raise InputError(f"--pool {path}: give --tls-dir too, whose terms say which pool is meant")
        kind = importlib.import_module("clients.local").kind_of(self._terms)
        found = pool_digest(read_pool(path, kind).inputs)
        if found != self._terms.pool_digest:
            raise InputError(
                f"--pool {path}: not the study's public pool; leave --pool out, and the coordinator sends it"
            )
        return Good(said=f"the study's public pool, SHA-256 {found[:16]}…")

    def _check_state(self) -> Good:
        state = self._state
        check_writable(state, option="--state-dir")
        if not state.exists():
            return Good(said=f"{state} can be made")
        if hospital_runs(str(state)):
            raise InputError(
                f"--state-dir {state}: another process of this hospital uses it; one at a time is meant"
            )
        mode = stat.S_IMODE(state.stat().st_mode)
        words = f"{state}: others can look into it (mode {mode:04o}): chmod 700 {state}"
        return Good(said=f"{state} is there, and free", warnings=(words,) if mode & 0o077 else ())

    def _way(self) -> Iterator[Row]:
        from pate_fed.cli.doctor.network import reach, shake_hands

        reached: list[tuple[str, int]] = []

        def try_port() -> Good:
            host, port = split_address(self._given.server, option="--server")
            if port is None:
                raise InputError(f"--server {host}: HOST:PORT is meant, as the coordinator shows it")
            found = reach(host, port)
            if not found.warnings:
                reached.append((host, port))
            return found

        yield from look("coordinator", try_port)
        if reached and self._identity is not None:
            (host, port), ca = reached[0], self._identity.ca_path
            yield from look("TLS", lambda: shake_hands(host, port, ca))
