"""`pate-fed hospital rehearse` and `join`: all that a study asks, thrown away or, with consent, for good.

A rehearsal goes up to the wire. What teachers say of records, and how well they learn, is shown on this
hospital's own terminal only.
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
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clients.account import Account
from clients.kinds import side_of
from clients.local import POOL_FILE, LocalSite, check_records, kind_of, look_at_records
from clients.log import HospitalLog
from clients.policy import Policy, find_policy
from clients.state_dir import LocalSettings
from pate_fed.cli.consent import ask_consent, go_on, policy_of, read_confirmed
from pate_fed.cli.doctor.command import show_findings
from pate_fed.cli.doctor.hospital import HospitalSide
from pate_fed.cli.doctor.machine import PROBLEM, Finding, enrolled, machine_findings
from pate_fed.cli.doctor.records import QUICK, WantedRecords, predict_by_teacher
from pate_fed.cli.parser import print_lines
from pate_fed.cli.terms import open_pool, own_pool, read_offer
from pate_fed.client import main as run_client
from pate_fed.config.study import Study
from pate_fed.data import Rows, split_by_patient
from pate_fed.disk import check_there
from pate_fed.errors import InputError
from pate_fed.flower.records import wire_parts
from pate_fed.flower.transport import require_transport
from pate_fed.format import accuracy_text, printable, share_text, wilson_interval
from pate_fed.identity import HospitalIdentity
from pate_fed.identity.admission import consent_to
from pate_fed.kinds.terms import Terms
from pate_fed.protocol.messages import AnswerReply, Question, Record, SumReply
from pate_fed.runtime.signals import hangup_interrupts
from pate_fed.secure_sum import SumRange
from pate_fed.secure_sum.messages import BatchReply, MaskedVector

# The bytes that would leave a hospital with its votes on a few questions, and what is in them, as text.


_LINE = 16  # bytes in a line of a dump
_MOST_LINES = 6
_MOST_ROWS, _MOST_COLUMNS, _WIDTH = 6, 5, 12
_OTHERS = 3  # throw-away hospitals: with this one the fewest that are summed over

Ints = NDArray[np.int64]


def plain_lines(terms: Terms, party: str, question: Question, votes: Ints) -> Iterator[str]:
    """What votes, int64 (queries, classes), would look like on their way: the bytes, and their rows."""
    reply = AnswerReply(party=party, batch_digest=question.digest, answer=terms.bounds.packed(votes))
    yield from _dump(reply.to_record(), reply.answer.tobytes())
    yield ""
    yield f"  The {terms.words.answers} in it, {terms.words.shown[1]}. The coordinator sees these:"
    yield from _matrix(terms, votes)


def masked_lines(terms: Terms, party: str, question: Question, votes: Ints, counts: Ints) -> Iterator[str]:
    """The same where votes, or other answers int64 (rows, columns), leave under masks.

    `counts` are they with this hospital's share of the noise, if it adds one. Made with invented hospitals.
    """
    masked, total = mask_once(terms, party, question, counts)
    yield from _dump(
        SumReply(party=party, step=masked.to_bytes()).to_record(),
        masked.vector.astype(masked.vector.dtype.newbyteorder("<")).tobytes(),
    )
    yield ""
    yield f"  Your {', '.join(terms.words.shown)}. These stay here:"
    yield from _matrix(terms, votes)
    if counts is not votes:
        yield "  with this hospital's share of the noise they are"
        yield from _matrix(terms, counts)
    yield "  In the message they are masked: random numbers, other ones every time:"
    yield from _matrix(terms, masked.vector.astype(np.int64).reshape(votes.shape))
    same = "the same as above" if np.array_equal(total, counts) else "NOT the same: do not take part"
    yield f"  Summed with {_OTHERS} invented hospitals that say 0, they are {same}."


def mask_once(terms: Terms, party: str, question: Question, counts: Ints) -> tuple[MaskedVector, Ints]:
    """This hospital's masked counts in a sum with invented hospitals, and that sum, int64 as `counts`."""
    names = [party, *(f"invented-{number}" for number in range(_OTHERS))]
    coordinator, parties = enrolled(names, study=terms.digest)
    largest = terms.bounds.largest(terms.num_clients)
    batch = coordinator.open_batch(
        batch=question.batch,
        batch_digest=question.digest,
        length=counts.size,
        sum_range=SumRange.noisy() if largest is None else SumRange.votes(largest),
    )
    masked: MaskedVector | None = None
    for requests in batch.rounds():
        for name, request in requests.items():
            own = name == party
            vector = partial(np.ravel, counts if own else np.zeros_like(counts))
            reply = parties[name].answer(request, vector)
            assert isinstance(reply, BatchReply)  # what a request of a batch is answered with
            masked = reply if own and isinstance(reply, MaskedVector) else masked
            batch.take(reply)
    assert masked is not None
    return masked, batch.total().reshape(counts.shape)


def _dump(record: Record, numbers: bytes) -> Iterator[str]:
    """The parts of a message with their sizes, and the bytes of one from where the numbers begin in it."""
    parts = wire_parts(record)
    sizes = ", ".join(f"{kind} {len(content)}" for kind, content in parts)
    yield f"  One message of {sum(len(content) for _, content in parts):,} bytes: {sizes}."
    _, part = max(parts, key=lambda part: (numbers in part[1], len(part[1])))  # large ones are in pieces
    yield from hexdump(part, start=max(0, part.find(numbers)))


def hexdump(content: bytes, *, start: int = 0) -> Iterator[str]:
    """The first bytes from `start` on, sixteen a line, in hexadecimal and as far as they are ASCII."""
    end = min(len(content), start + _MOST_LINES * _LINE)
    for place in range(start, end, _LINE):
        line = content[place : min(place + _LINE, end)]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)
        yield f"  {place:06x}  {line.hex(' '):<{3 * _LINE - 1}}  {text}"
    if end < len(content):
        yield f"  … and {len(content) - end:,} bytes more"


def _matrix(terms: Terms, values: Ints) -> Iterator[str]:
    """The first rows and columns of (rows, columns), under the classes' names where there is one for each."""
    shown = min(values.shape[1], _MOST_COLUMNS)
    named = len(terms.classes) == values.shape[1]
    names = [terms.classes[place] if named else str(place) for place in range(shown)]
    more = "  …" if shown < values.shape[1] else ""
    heads = "  ".join(f"{printable(name)[:_WIDTH]:>{_WIDTH}}" for name in names)
    yield f"    {'':>5}  {heads}{more}"
    for number, row in enumerate(values[:_MOST_ROWS]):
        cells = "  ".join(f"{int(value):>{_WIDTH}}" for value in row[:shown])
        yield f"    {number:>5}  {cells}{more}"


# What a hospital would gain from a study: its own model alone, beside what to expect of all together.


_FOLDS = 5
_MOST_TRIED = 5  # teachers


def gain_lines(terms: Terms, rows: Rows, parts: list[Ints]) -> Iterator[str]:
    """The hospital's own model, one of its teachers where it trains several, and what all together give.

    `parts` are the teachers' own records, int64 indices.
    """
    wanted = WantedRecords.by_terms(terms)
    if what := wanted.no_class:
        yield f"  not tried: what is learnt is {what}, and no model of yours alone is made of that here"
        return
    everyone = np.arange(len(rows.labels), dtype=np.int64)
    patients = len(np.unique(rows.patients))
    if patients < _FOLDS:
        yield f"  not tried: {patients} patients are too few to leave a part of them out"
        return
    folds = split_by_patient(everyone, rows.patients, folds=_FOLDS, seed=0)
    alone = _tested(rows, wanted, [(np.setdiff1d(everyone, part), part) for part in folds])
    majority = float(np.bincount(rows.labels).max() / len(rows.labels))
    kind = "one model" if wanted.spec.schema is not None else f"one {QUICK} model, as a quick stand-in,"
    told = accuracy_text(alone[0] / alone[1], alone[1], majority=majority)
    yield f"  alone       {told}: {kind} of all your records, each fifth left out once"
    yield "              The majority's share is right for whoever always says the most frequent class."
    if wilson_interval(alone[0] / alone[1], alone[1])[0] <= majority:
        yield "              Your records alone may teach no more than that guess."
    single = alone
    if len(parts) > 1:
        single = _tested(rows, wanted, [(part, np.setdiff1d(everyone, part)) for part in parts[:_MOST_TRIED]])
        # Without an interval: several teachers told the same records, which are no independent trials.
        share = share_text(single[0] / single[1], len(rows.labels))
        yield (
            f"  a teacher   {share} right of {len(rows.labels):,}: it learnt from its part alone (mean of "
            f"{min(len(parts), _MOST_TRIED)})"
        )
    first, *more = terms.words.together(single[0] / single[1])
    yield f"  together    {first}"
    yield from (f"              {line}" for line in more)


def _tested(rows: Rows, wanted: WantedRecords, pairs: list[tuple[Ints, Ints]]) -> tuple[int, int]:
    """How many records were told right by models that had not seen them, and of how many."""
    right = [predict_by_teacher(rows, own, asked, wanted) == rows.labels[asked] for own, asked in pairs]
    return int(np.concatenate(right).sum()), sum(map(len, right))


_NOBODY = "this-hospital"  # where terms alone are rehearsed, nobody was admitted
_WITHHELD = (
    "what would leave and what you would gain are shown on a terminal only, as they tell of your records: "
    "run this without a pipe"
)


def rehearse(arguments: argparse.Namespace) -> int:
    """Read, train, vote and show; nothing is kept, claimed or sent."""
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
    _look(rows, arguments, terms, own_terminal=own_terminal)
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
        noisy = side.add_noise(answer, site.noise(0))
        leaving = masked_lines(terms, name, question, answer, noisy)
    print_lines(["", "WHAT WOULD LEAVE", *leaving], indent=2)
    print_lines(["", "WHAT YOU WOULD GAIN", *gain_lines(terms, rows, parts)], indent=14)
    print()


def _read(arguments: argparse.Namespace, terms: Terms) -> Rows:
    kind = replace(kind_of(terms), decimal=arguments.decimal)
    rows = check_records(Path(arguments.data), kind, unit=terms.privacy.unit)
    if rows.read_as:
        _show(("read as", rows.read_as))
    return rows


def _look(rows: Rows, arguments: argparse.Namespace, terms: Terms, *, own_terminal: bool) -> None:
    """What `hospital check` would find in a table's columns, beside a copy of the pool where one is here."""
    if terms.table is None:
        return
    path, pool = arguments.pool, own_pool(terms, read_offer(Path(arguments.offer))[1])
    pool = pool if path is None else Path(path)
    inputs = None if pool is None else open_pool(pool, terms)
    study = Path(arguments.offer)
    for odd in look_at_records(Path(arguments.data), rows, terms.table, study=study, pool=inputs):
        _show(("warning", odd if own_terminal else _WITHHELD))


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


_MAY_COME_LATER = ("coordinator",)  # the client waits for it


def join(arguments: argparse.Namespace) -> int:
    """Take part in a study to the end; the exit code is the client's, or that of the first problem."""
    require_transport("taking part in a study")
    folder = Path(arguments.dir)
    identity = HospitalIdentity.offered(folder, Path(arguments.admission), expected=arguments.fingerprint)
    admission = identity.admission
    _check_files(arguments)
    before = consent_to(folder, terms=admission.terms_digest, authority=admission.fingerprint)
    if before is None:
        ask_consent(identity, arguments)
    else:
        given = read_confirmed(arguments.confirm, admission)
        print_lines(go_on(before, admission.study_terms, given, policy_of(arguments.policy, identity)))
    identity.take()
    found = show_findings(_findings(arguments, identity, first=before is None))
    problems = (each for each in found if each.severity == PROBLEM and each.check not in _MAY_COME_LATER)
    if code := next((each.exit_code for each in problems), 0):
        print("not started: mend what is a problem above, then give the same command again")
        return code
    command = ["--hospital", admission.hospital, "--tls-dir", str(folder)]
    for name in ("data", "decimal", "pool", "policy", "server", "state_dir", "teachers", "wait"):
        if (value := getattr(arguments, name)) is not None:
            command += [f"--{name.replace('_', '-')}", str(value)]
    return run_client([*command, "--quiet"] if arguments.quiet else command)


def _check_files(arguments: argparse.Namespace) -> None:
    """Nobody agrees to a study and only then hears that a file was named wrongly."""
    given = [("--data", arguments.data), ("--pool", arguments.pool)]
    if not arguments.confirm:  # else it is written
        given.append(("--policy", arguments.policy))
    for option, path in given:
        if path is not None:
            check_there(Path(path), option=option)


def _findings(arguments: argparse.Namespace, identity: HospitalIdentity, *, first: bool) -> Iterator[Finding]:
    """What the doctor finds at this hospital; of the machine only the first time."""
    given = {**vars(arguments), "hospital": identity.admission.hospital, "tls_dir": str(identity.folder)}
    given |= {"server": arguments.server or identity.admission.address, "config": None}
    side = HospitalSide(argparse.Namespace(**given))
    yield from side.findings()
    if first:
        yield from machine_findings(side.requirements)
