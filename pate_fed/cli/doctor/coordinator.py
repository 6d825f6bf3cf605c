"""The coordinator's side, checked as its command would: study, keys, hospitals, quorum, port, run."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pate_fed.cli.doctor.findings import Good, Row, look
from pate_fed.cli.doctor.machine import Load
from pate_fed.config.study import Study
from pate_fed.errors import InputError, QuorumError
from pate_fed.flower.processes import check_port, split_address
from pate_fed.identity import Authority, cost_text
from pate_fed.identity.certificates import days_left, require_valid
from pate_fed.protocol.messages import Terms
from pate_fed.runtime.admitted import WARN_DAYS
from pate_fed.runtime.run_dir import fresh_run_dir, unfinished_run

__all__ = ["CoordinatorSide"]

_MEMORY = 1.5e9  # server and SuperLink with torch
_FILES = 256  # and one a hospital


class CoordinatorSide:
    """One coordinator, by the options that its command takes."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self._study: Study | None = None
        self._terms: Terms | None = None
        self._authority: Authority | None = None
        self._able: int | None = None  # hospitals that may connect

    @property
    def load(self) -> Load:
        """What the coordinator's processes take."""
        count = 0 if self._study is None else self._study.parties.num_clients
        what = f"a coordinator of {count} hospitals" if count else "a coordinator"
        place = Path(self._given.run_dir or "runs")
        return Load(what=what, bytes=_MEMORY, files=_FILES + count, places=lambda: (place,))

    def rows(self) -> Iterator[Row]:
        """One check after another; later ones know what earlier ones have read."""
        given = self._given
        if given.config is not None:
            yield from look("study", self._check_study)
        if self._study is not None and self._study.data.from_files:
            yield from look("pool", self._check_pool)
        if given.tls_dir is not None:
            yield from look("keys", self._check_keys)
        if self._authority is not None:
            yield from look("hospitals", self._check_hospitals)
        if self._study is not None:
            yield from look("quorum", self._check_quorum)
        if given.address is not None or self._authority is not None:
            yield from look("address", self._check_address)
        if self._study is not None:
            yield from look("run", self._check_run_dir)

    def unseen(self) -> list[str]:
        """What was not looked at, and the option for it."""
        given = self._given
        return [
            words
            for value, words in (
                (given.config, "the study (--config study.toml)"),
                (given.tls_dir, "the study's keys and hospitals (--tls-dir DIR)"),
                (given.address or given.tls_dir, "the port (--address HOST:PORT)"),
            )
            if value is None
        ]

    def _check_study(self) -> Good:
        from server.process import study_to_run

        self._study = study = study_to_run(Path(self._given.config), num_hospitals=self._given.num_hospitals)
        parties = study.parties
        said = (
            f"{study.name!r}: {parties.num_clients} hospitals, {parties.teachers_per_client} teachers each, "
            f"{study.aggregation.aggregator}, student {study.student.name}"
        )
        words = "study.seed repeats the noise, so it protects nobody: take it out of study.toml"
        return Good(said=said, warnings=(words,) if study.seed is not None else ())

    def _check_pool(self) -> Good:
        """The public pool, the terms over it, and whether the budget affords a query."""
        from pate_fed.config.data import load_study_data
        from pate_fed.privacy import noise_from_seed
        from pate_fed.protocol.cost import make_ledger_terms

        assert self._study is not None
        made: Any = importlib.import_module("pate_fed.protocol.make_terms")
        data = load_study_data(self._study)
        made.check_against_data(self._study, data)
        terms = made.make_terms(self._study, data)
        noise = noise_from_seed(self._study.seed)
        make_ledger_terms(terms, noise=noise.kind, private=noise.private)
        self._terms = terms
        return Good(said=f"{terms.pool_size} public inputs; {cost_text(terms.to_json())}")

    def _check_keys(self) -> Good:
        authority = Authority(Path(self._given.tls_dir))
        warnings = authority.check_server()
        authority.ledger_key()
        if self._terms is not None:
            authority.require_terms(self._terms.digest)
        self._authority = authority
        return Good(
            said=f"the authority's, the coordinator's and the ledger's are there and belong together, "
            f"{days_left(authority.certificate)} days left; fingerprint {authority.fingerprint[:16]}…",
            warnings=tuple(f"{words}: plan a new study init" for words in warnings),
        )

    def _check_hospitals(self) -> Good:
        assert self._authority is not None
        able, warnings = [], []
        for name, certificate in self._authority.admitted():
            try:
                require_valid(certificate, f"{name}'s")
            except InputError as error:
                warnings.append(f"{error}; until then it cannot connect")
                continue
            able.append(name)
            if days_left(certificate) < WARN_DAYS:
                warnings.append(
                    f"{name}'s certificate expires in {days_left(certificate)} days: admit it again"
                )
        self._able = len(able)
        if not able and not warnings:
            warnings.append("nobody is admitted yet: pate-fed study admit NAME.req")
        return Good(said=f"{len(able)} admitted: {', '.join(able)}", warnings=tuple(warnings))

    def _check_quorum(self) -> Good:
        assert self._study is not None
        study, least = self._study, self._study.least_clients
        count, able = study.parties.num_clients, self._able
        said = f"{least} of {count} hospitals must answer each batch"
        if study.secrecy.secure_sum:
            said += ", and under masks stay to its end"
        if study.secrecy.at_hospitals:
            honest = study.secrecy.shares(count, least).honest
            said += f"; the noise of {honest} of them is counted on"
        if able is not None and able < least:
            raise QuorumError(f"{said}, but {able} can connect: admit {least - able} more before the study")
        if able is None or able >= count:
            return Good(said=said)
        spare = f"so {able - least} of these may fail" if able > least else "so none of these may fail"
        return Good(said=said, warnings=(f"{said}; {able} can connect so far, {spare}: admit the others",))

    def _check_address(self) -> Good:
        known = None if self._authority is None else str(self._authority.study["address"])
        host, port = split_address(self._given.address or known or "", option="--address")
        if port is None:
            check_port(host, 0, option="--address")
            return Good(said=f"{host}, on a port that is free then")
        check_port(host, port, option="--address")
        said = f"port {port} is free on {host}"
        told = None if known is None else split_address(known, option="study.json")[1]
        words = f"{said}, but hospitals were told {known}: that port must lead here"
        return Good(said=said, warnings=(words,) if told not in (None, port) else ())

    def _check_run_dir(self) -> Good:
        assert self._study is not None
        given = self._given.run_dir
        if given is not None and unfinished_run(Path(given), self._study):
            return Good(said=f"{given} holds this study, cut off: it goes on from its ledger")
        return Good(said=f"{fresh_run_dir(given, self._study.name)} is free for it")
