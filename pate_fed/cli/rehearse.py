"""`pate-fed hospital rehearse`: all that a study asks of this hospital, up to the wire, and then thrown away.

What teachers say of records, and how well they learn, is shown on this hospital's own terminal only.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clients.account import Account
from clients.kinds import side_of
from clients.local import POOL_FILE, LocalSite, check_records, kind_of, study_of
from clients.log import HospitalLog
from clients.policy import Policy, find_policy
from clients.site_files import LocalSettings
from pate_fed.cli.consent import read_offer
from pate_fed.cli.gain import gain_lines
from pate_fed.cli.message_preview import masked_lines, plain_lines
from pate_fed.cli.parser import print_lines
from pate_fed.cli.pool_preview import open_pool
from pate_fed.config.study import Study
from pate_fed.data import Rows
from pate_fed.errors import InputError
from pate_fed.format import printable
from pate_fed.kinds.terms import Terms
from pate_fed.protocol.messages import Question
from pate_fed.runtime.signals import hangup_interrupts

_NOBODY = "this-hospital"  # where terms alone are rehearsed, nobody was admitted
_WITHHELD = (
    "what would leave and what you would gain are shown on a terminal only, as they tell of your records: "
    "run this without a pipe"
)

Ints = NDArray[np.int64]


def rehearse(arguments: argparse.Namespace) -> int:
    """Read, train, vote and show; nothing is kept, claimed or sent."""
    from pate_fed.flower.transport import require_transport

    require_transport("what is rehearsed")
    terms, admission = read_offer(Path(arguments.offer))
    if not terms.asks.reads_inputs:
        raise InputError(
            f"{arguments.offer}: a study of {terms.words.kind} trains nothing; `pate-fed hospital terms` "
            "says what leaves"
        )
    if arguments.sample < 1:
        raise InputError(f"--sample {arguments.sample}: a whole number of at least 1 is meant")
    name = _NOBODY if admission is None else admission.hospital
    print(printable(f"rehearsal of the study {terms.study} for {name}: nothing is sent, nothing is kept"))
    path = find_policy(arguments.policy, arguments.offer if Path(arguments.offer).is_dir() else None)
    policy = Policy.load(path)
    _show(("policy", _policy_text(policy, path, terms, name)))
    if (unlisted := policy.refuses_code(terms)) is not None:
        raise InputError(f"{unlisted[0].value}: {unlisted[1]}; nothing was rehearsed, as its code would run")
    with _private_folder() as folder:
        _rehearse_in(folder, arguments, terms, name)
    _show(("end", "all that this rehearsal made is erased"))
    return 0


def _rehearse_in(folder: Path, arguments: argparse.Namespace, terms: Terms, name: str) -> None:
    own_terminal, started = sys.stdout.isatty(), time.monotonic()
    rows = _read(arguments, terms)
    _show(("records", f"{len(rows.labels)} can be read" if own_terminal else "can be read"))
    inputs, of = rows.inputs, "your own records, for want of a copy of the pool (--pool FILE)"
    if arguments.pool is not None:
        inputs, of = open_pool(Path(arguments.pool), terms), "the pool"
    np.save(folder / POOL_FILE, inputs)  # as a copy that the coordinator sends
    site = LocalSite(
        party=name,
        number=0,
        study=Study(),
        state_dir=folder,
        simulated=False,
        settings=LocalSettings(
            hospital=name,
            data=str(Path(arguments.data).absolute()),
            state_dir=folder,
            decimal=arguments.decimal,
        ),
    ).under(terms)
    side = side_of(site, terms, HospitalLog(folder))
    index, told = side.rehearse(inputs, of_pool=arguments.pool is not None, sample=arguments.sample)
    question = Question(terms_digest=terms.digest, batch=0, index=index)
    answer = side.answer(question)
    *first, (what, count) = told
    took = f"{time.monotonic() - started:.1f} s in all"
    for row in (*first, (what, f"{count} of {of}; {took}")):
        _show(row)
    if not own_terminal:
        _show(("withheld", _WITHHELD))
        return
    parts = site.teacher_parts() if terms.asks.trains else []
    leaving = plain_lines(terms, name, question, answer)
    if terms.secure_sum:
        noisy = side.add_noise(answer, site.noise(0)) if terms.adds_noise else answer
        leaving = masked_lines(terms, name, question, answer, noisy)
    print_lines(["", "WHAT WOULD LEAVE", *leaving], indent=2)
    print_lines(["", "WHAT YOU WOULD GAIN", *gain_lines(terms, rows, parts)], indent=14)
    print()


def _read(arguments: argparse.Namespace, terms: Terms) -> Rows:
    kind = replace(kind_of(terms), decimal=arguments.decimal)
    rows = check_records(Path(arguments.data), kind, parties=study_of(terms).parties)
    if rows.read_as:
        _show(("read as", rows.read_as))
    return rows


def _policy_text(policy: Policy, path: Path | None, terms: Terms, name: str) -> str:
    """Whether this hospital would take part at all."""
    found = policy.objection(terms) or Account(name).objection(terms, policy=policy)
    what = "the default" if path is None else str(path)
    if found is None:
        return f"{what} allows the study"
    reason, sentence = found
    return f"{what} does not allow it: {reason.value}: {sentence}"


def _show(row: tuple[str, str]) -> None:
    name, text = row
    print_lines([f"{name:<12}  {printable(text)}"], indent=14)


@contextmanager
def _private_folder() -> Iterator[Path]:
    """A new folder of this user's alone; gone at the end, however that comes."""
    folder = Path(tempfile.mkdtemp(prefix="pate-fed-rehearsal-"))  # mode 0700
    try:
        with hangup_interrupts():
            yield folder
    finally:
        shutil.rmtree(folder)
