"""The coordinator's side, checked as its command would: study, keys, hospitals, quorum, port, run."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from pate_fed.cli.doctor.machine import CheckResult, Finding, Requirements, run_check
from pate_fed.cli.terms import cost_text
from pate_fed.config.data import load_study_data
from pate_fed.config.study import Study, read_study
from pate_fed.errors import InputError, QuorumError
from pate_fed.identity import Authority
from pate_fed.identity.certificates import days_left, expiry_warnings, require_valid
from pate_fed.kinds.make import check_against_data, make_terms
from pate_fed.kinds.terms import Terms, require_meaningful
from pate_fed.privacy import noise_from_seed
from pate_fed.runtime.addresses import check_port, split_address
from pate_fed.runtime.run_dir import choose_run_dir

_MEMORY = 1.5e9  # server and SuperLink with torch
_FILES = 256  # and one a hospital


class CoordinatorSide:
    """The checks of one coordinator, by the options that its command takes."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self._study: Study | None = None
        self._terms: Terms | None = None
        self._authority: Authority | None = None
        self._able: int | None = None  # hospitals that may connect

    @property
    def requirements(self) -> Requirements:
        """What the coordinator's processes take."""
        count = 0 if self._study is None else self._study.parties.num_clients
        what = f"a coordinator of {count} hospitals" if count else "a coordinator"
        folder = Path(self._given.run_dir or "runs")
        return Requirements(
            what=what, memory=_MEMORY, files=_FILES + count, folders=lambda: (folder,), deploys=True
        )

    def findings(self) -> Iterator[Finding]:
        """Findings of one check after another; later checks know what earlier ones have read."""
        given = self._given
        if given.config is not None:
            yield from run_check("study", self._check_study)
        if self._study is not None and self._study.data.from_files:
            yield from run_check("pool", self._check_pool)
        if given.tls_dir is not None:
            yield from run_check("keys", self._check_keys)
        if self._authority is not None:
            yield from run_check("hospitals", self._check_hospitals)
        if self._study is not None:
            yield from run_check("quorum", self._check_quorum)
        if given.address is not None or self._authority is not None:
            yield from run_check("address", self._check_address)
        if self._study is not None:
            yield from run_check("run", self._check_run_dir)

    def not_checked(self) -> list[str]:
        """What was not looked at, and the option for it."""
        given = self._given
        options = {
            "the study (--config study.toml)": given.config,
            "the study's keys and hospitals (--tls-dir DIR)": given.tls_dir,
            "the port (--address HOST:PORT)": given.address or given.tls_dir,
        }
        return [text for text, value in options.items() if value is None]

    def _check_study(self) -> CheckResult:
        from server.process import study_to_run

        self._study = study = study_to_run(Path(self._given.config), num_hospitals=self._given.num_clients)
        parties = study.parties
        teachers = f"{parties.teachers_per_client} teachers each, "
        text = (
            f"{study.name!r}: {parties.num_clients} hospitals, {teachers if study.aggregation.votes else ''}"
            f"{study.aggregation.kind or study.aggregation.aggregator}, student {study.student.said}"
        )
        seeded = "study.seed repeats the noise, so it protects nobody: take it out of study.toml"
        return CheckResult(text, () if study.seed is None else (seeded,))

    def _check_pool(self) -> CheckResult:
        """The public pool, the terms over it, and whether the budget affords a query."""
        assert self._study is not None
        data = load_study_data(self._study)
        check_against_data(self._study, data)
        terms = make_terms(self._study, data)
        noise = noise_from_seed(self._study.seed)
        require_meaningful(terms, terms.ledger_terms(noise=noise.kind, private=noise.private))
        self._terms = terms
        return CheckResult(f"{terms.pool_size} public inputs; {cost_text(terms.to_json())}")

    def _check_keys(self) -> CheckResult:
        authority = Authority(Path(self._given.tls_dir))
        warnings = authority.check_server()
        authority.ledger_key()
        if self._terms is not None:
            authority.require_terms(self._terms.digest)
        self._authority = authority
        return CheckResult(
            "the authority's, the coordinator's and the ledger's are there and belong together, "
            f"{days_left(authority.certificate)} days left; fingerprint {authority.words}",
            tuple(f"{text}: plan a new study init" for text in warnings),
        )

    def _check_hospitals(self) -> CheckResult:
        assert self._authority is not None
        able, warnings = [], []
        for name, certificate in self._authority.admitted():
            try:
                require_valid(certificate, f"{name}'s")
            except InputError as error:
                warnings.append(f"{error}; until then it cannot connect")
                continue
            able.append(name)
            warnings += [f"{text}: admit it again" for text in expiry_warnings(certificate, f"{name}'s")]
        self._able = len(able)
        if not able and not warnings:
            warnings.append("nobody is admitted yet: pate-fed study admit NAME.req")
        return CheckResult(f"{len(able)} admitted: {', '.join(able)}", tuple(warnings))

    def _check_quorum(self) -> CheckResult:
        assert self._study is not None
        study, least = self._study, self._study.least_clients
        count, able = study.parties.num_clients, self._able
        text = f"{least} of {count} hospitals must answer each batch"
        if study.secrecy.secure_sum:
            text += ", and under masks stay to its end"
        if study.secrecy.at_hospitals:
            honest = study.secrecy.shares(count, least).honest
            text += f"; the noise of {honest} of them is counted on"
        if able is None or able >= count:
            return CheckResult(text)
        if able < least:
            raise QuorumError(f"{text}, but {able} can connect: admit {least - able} more before the study")
        spare = f"so {able - least} of these may fail" if able > least else "so none of these may fail"
        return CheckResult(warnings=(f"{text}; {able} can connect so far, {spare}: admit the others",))

    def _check_address(self) -> CheckResult:
        known = None if self._authority is None else str(self._authority.study.address)
        host, port = split_address(self._given.address or known or "", option="--address")
        check_port(host, port or 0, option="--address")
        if port is None:
            return CheckResult(f"{host}, on a port that is free then")
        text = f"port {port} is free on {host}"
        if known is None or split_address(known, option="study.json")[1] in (None, port):
            return CheckResult(text)
        return CheckResult(warnings=(f"{text}, but hospitals were told {known}: that port must lead here",))

    def _check_run_dir(self) -> CheckResult:
        assert self._study is not None
        study = self._study
        path, begun = choose_run_dir(self._given.run_dir, study.name, lambda held: read_study(held) == study)
        told = "holds this study, cut off: it goes on from its ledger" if begun else "is free for it"
        return CheckResult(f"{path} {told}")
