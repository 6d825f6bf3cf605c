"""One hospital's process: a SuperNode, the requests that it brings, and what its user is told of them."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clients.account import Account
from clients.leave import STATEMENT_FILE, has_left
from clients.log import LOG_FILE, Answered, over_since, read_events
from clients.policy import Policy, find_policy
from clients.state_dir import LOCAL_SITE, PART, SITE_VARIABLE, LocalSettings, find_state_dir, old_state_dir
from pate_fed.disk import check_there, check_writable_files, hold
from pate_fed.errors import InputError, IntegrityError, PolicyError, require_libraries
from pate_fed.flower.connection import Connection
from pate_fed.format import counted, printable
from pate_fed.kinds.terms import Terms, largest_messages
from pate_fed.protocol.messages import ANSWER, END, JOIN, SUM, Refusal, record_digest
from pate_fed.runtime.addresses import check_security
from pate_fed.runtime.signals import INTERRUPTED, raise_if
from pate_fed.secure_sum import read_reply
from pate_fed.secure_sum.messages import MaskedVector, SumRefused
from pate_fed.secure_sum.messages import Reply as SumMessage
from pate_fed.structure import PARTY_NAME, PARTY_NAME_IS

if TYPE_CHECKING:
    from pate_fed.flower.supernode import SuperNode
    from pate_fed.flower.transport import Exchange
    from pate_fed.identity import HospitalIdentity

_POLL_S = 0.5
_DELIVERY_S = 15.0
_HEARD_S = 1.0  # until the coordinator has the last reply: without a key it goes with this process
_INTERRUPTED = (
    "the coordinator ended before the study and may go on; waiting for it as after a crash (--wait), Ctrl-C "
    "ends it"
)


class HospitalProcess:
    """One hospital's process: a SuperNode, and the requests that it brings, until `stop` asks it to end.

    Raises:
        InputError: an option is wrong, or the hospital's identity or a file cannot be used.
    """

    def __init__(self, arguments: argparse.Namespace, stop: threading.Event) -> None:
        from pate_fed.flower import prepare_environment
        from pate_fed.flower.processes import private_folder
        from pate_fed.flower.transport import require_transport
        from pate_fed.runtime.addresses import split_address

        require_transport("a hospital's process")
        prepare_environment()
        if not PARTY_NAME.fullmatch(arguments.hospital):
            raise InputError(f"--hospital {arguments.hospital!r}: {PARTY_NAME_IS}")
        self._identity = _identity(arguments)
        address = arguments.server or (self._identity.admission.address if self._identity else "")
        if not address:
            raise InputError("give --server HOST:PORT, as the coordinator shows it")
        host, port = split_address(address, option="--server")
        if port is None:
            raise InputError(f"--server {address}: HOST:PORT is meant, as the coordinator shows it")
        self._address = address
        check_security(arguments, host, where=f"--server {arguments.server}", keys="this hospital's identity")
        _check_files(arguments)
        self._arguments, self._name, self._stop = arguments, arguments.hospital, stop
        self._policy = find_policy(arguments.policy, arguments.tls_dir)
        state = find_state_dir(arguments.state_dir, self._name, self._terms, self._authority)
        self._found_here = state == old_state_dir(self._name) and state.exists()
        for folder in (state.parent.parent, state.parent):
            private_folder(folder)  # names of studies are nobody else's business either
        self.state = private_folder(state)
        check_writable_files(self.state)
        os.environ["FLWR_HOME"] = str(self.state / "flower")  # also without a home
        if has_left(self.state):
            statement = self.state / STATEMENT_FILE
            raise PolicyError(f"this hospital has left the study and answers nothing any more: {statement}")
        if not arguments.data.startswith(PART):
            Account(self._name).check()
        self._sent = 0

    def run(self) -> int:
        """Serve until the study is over; the exit code.

        Raises:
            InputError: the hospital's own data or identity cannot be used.
            PolicyError: the hospital's policy refuses the study.
            IntegrityError: its state directory is behind what the hospital has answered.
        """
        from pate_fed.flower.compat import quiet_flower

        with hold(self.state, what="--state-dir"), _temporary_files_in(self.state):
            digest = None if self._terms is None else self._terms.digest
            if (when := over_since(self.state, digest)) is not None:
                return self._say_over(when)
            self._write_site()
            self._check_records()
            import clients.app  # noqa: F401  # torch takes its time: loaded before the coordinator waits for us

            old = " (found here)" if self._found_here else ""
            self._print(f"{self._name}: what it answered is kept in {self.state}{old}")
            if self._arguments.data.startswith(PART):
                self._print(f"{self._name}: a rehearsal: all hospitals are played, and none is confirmed")
            self._print(f"{self._name}: connecting to {self._address}")
            connection = Connection(self._start_node, report=self._print, wait_s=self._arguments.wait)
            try:
                with quiet_flower():
                    return self._serve(connection)
            finally:
                connection.stop()

    def _say_over(self, when: float) -> int:
        """A command that is repeated after the success: nothing is asked of this hospital any more."""
        day = datetime.fromtimestamp(when, UTC).strftime("%Y-%m-%d %H:%M UTC")
        print(
            f"{self._name}: this study ended with success on {day}, and a hospital answers a study once; to "
            "repeat it, have the coordinator make it anew and admit this hospital again",
            file=sys.stderr,
        )
        print(f"SUCCESS  hospital={self._name} over {self._given()} log={self.state / LOG_FILE}", flush=True)
        return 0

    def _serve(self, connection: Connection) -> int:
        while True:
            raise_if(self._stop)
            connection.watch()
            done = self._answer(connection.node) if connection.may_have_request() else None
            if done is None:
                time.sleep(_POLL_S)
                continue
            connection.note_answered()
            self._print_request(done)
            over = done.message_type == END and done.reply.get("kind") == "ended"
            if over and _exit_code(done) == INTERRUPTED:
                self._print(f"{self._name}: {_INTERRUPTED}")
                continue
            refused = _refusal(done)
            by_policy = refused is not None and refused.is_policy
            if over or by_policy or refused in (Refusal.DATA, Refusal.OLDER):
                connection.wait_until_sent(_DELIVERY_S)
            if refused is Refusal.OLDER:
                raise IntegrityError(self._logged_reason("this hospital's state directory is an old copy"))
            if refused is Refusal.DATA:
                raise InputError(self._logged_reason("the hospital's own data cannot be used"))
            if by_policy:
                raise PolicyError(self._logged_reason("the study was refused by this hospital's policy"))
            if over:
                if self._identity is None:
                    time.sleep(_HEARD_S)
                return self._print_outcome(done)

    def _answer(self, node: SuperNode | None) -> Exchange | None:
        from clients.app import app, note_sent, refuse_bundle

        if node is None:
            return None
        done = node.answer_next(app, refuse_bundle=lambda: refuse_bundle({}))
        if done is not None:
            sent, reply = done.bytes_out, done.reply
            note_sent({}, message_type=done.message_type, bytes_out=sent, reply=reply)
        return done

    def _print_outcome(self, done: Exchange) -> int:
        request = done.request or {}
        if request.get("student"):
            self._print(f"{self._name}: {self._student_text()}")
        status = str(request["status"]).upper()
        print(
            f"{status}  hospital={self._name} {request.get('summary')!s} {self._given()} "
            f"sent={self._sent}B log={self.state / LOG_FILE}",
            flush=True,
        )
        return _exit_code(done)

    def _student_text(self) -> str:
        """What became of the student that came, by this hospital's own log."""
        told = ("student", "student refused")
        events = [event for event in self._events() if event["event"] in told]
        if events and "why" in events[-1]:
            return f"the student that came is refused: {printable(str(events[-1]['why']))}"
        came = f"the study's student came: pate-fed hospital predict {self.state} RECORDS"
        return f"{came}; beside this hospital's own model: pate-fed hospital compare {self.state}"

    def _print_request(self, done: Exchange) -> None:
        """One line a request, for the hospital's own eyes."""
        self._sent += done.bytes_out
        if (text := _described(done, again=self._gave_before(done))) is not None:
            self._print(f"{self._name}: {text}")
        if _refusal(done) not in (None, Refusal.DATA) and (fault := self._fault()) is not None:
            where = f"its traceback is in {self.state / LOG_FILE}"
            print(f"warning: {self._name}: {printable(fault)}; {where}", file=sys.stderr, flush=True)

    def _fault(self) -> str | None:
        """What went wrong here with the request that was answered last, by this hospital's own log."""
        found = now = None
        for event in self._events():
            if event["event"] == "sent":
                found, now = now, None
            elif "place" in event:
                now = str(event["sentence"])
        return found

    def _given(self) -> str:
        """What it answered in this study, by its log."""
        given = Answered()
        for event in self._events():
            given.take(event)
        return f"answered={given.total}"

    def _gave_before(self, done: Exchange) -> bool:
        """Whether the very same answer about its records is in its log twice: it was kept, and sent again."""
        if done.message_type != ANSWER and not isinstance(_sum_step(done), MaskedVector):
            return False
        log, digest = self.state / LOG_FILE, record_digest(done.reply).encode()
        lines = log.read_bytes().splitlines() if log.exists() else []
        return sum(digest in line and b'"event": "handled"' in line for line in lines) > 1

    def _logged_reason(self, otherwise: str) -> str:
        """The sentence that the hospital's side left in its log; it was sent to nobody."""
        said = [event["sentence"] for event in self._events() if "sentence" in event]
        return printable(str(said[-1])) if said else otherwise  # it may name what a coordinator named

    def _events(self) -> Iterator[dict[str, Any]]:
        """Its own log, without lines that were cut."""
        return (event for _, event in read_events(self.state) if event)

    def _start_node(self) -> SuperNode:
        from pate_fed.flower.supernode import SuperNode
        from pate_fed.flower.transport import NodeGuard

        folder, found = self.state / "flower", self._identity
        if found is None:
            return SuperNode(folder, self._address, tls=None)
        sizes, key = largest_messages(found.admission.study_terms), str(found.key_path.absolute())
        most, certificate = max(sizes.to_hospital, sizes.end), found.admission.certificate
        guard = NodeGuard(most_bytes=most, certificate=certificate, key=key)
        return SuperNode(folder, self._address, tls=(found.ca_path, guard))

    def _write_site(self) -> None:
        config, pool, data = self._arguments.config, self._arguments.pool, self._arguments.data
        site = LocalSettings(
            hospital=self._name,
            data=data if data.startswith(PART) else str(Path(data).absolute()),
            state_dir=self.state.absolute(),
            config=None if config is None else Path(config).absolute(),
            pool=None if pool is None else Path(pool).absolute(),
            teachers=self._arguments.teachers,
            decimal=self._arguments.decimal,
            policy=None if self._policy is None else self._policy.absolute(),
            terms_digest=None if self._identity is None else self._identity.admission.terms_digest,
            authority=self._authority,
            sum_key=None if self._identity is None else self._identity.sum_key_path.absolute(),
        )
        path = self.state / LOCAL_SITE
        site.write(path)
        os.environ[SITE_VARIABLE] = str(path.absolute())

    def _check_records(self) -> None:
        """A mistake in the records is found now, rather than when all have come and are asked to train."""
        terms = self._terms
        if terms is None or self._arguments.data.startswith(PART):
            return  # the terms come with the first request
        if terms.needs_torch:
            require_libraries("torch", what="a study of images")
        from clients.kinds import check_file

        path = Path(self._arguments.data)
        if told := check_file(path, terms, decimal=self._arguments.decimal):
            self._print(f"{self._name}: {path} read as {told}")

    @property
    def _terms(self) -> Terms | None:
        """The terms of the admission; None without one."""
        return None if self._identity is None else self._identity.admission.study_terms

    @property
    def _authority(self) -> str | None:
        """The fingerprint of who admitted it; None without an admission."""
        return None if self._identity is None else self._identity.admission.fingerprint

    def _print(self, text: str) -> None:
        if not self._arguments.quiet:
            print(text, file=sys.stderr, flush=True)


def _exit_code(done: Exchange) -> int:
    """The coordinator's own, of a notice that says how the study ended."""
    return int(str((done.request or {})["exit_code"]))


def _refusal(done: Exchange) -> Refusal | None:
    if done.reply.get("kind") != "refused":
        return None
    return Refusal.__members__.get(str(done.reply["code"]), Refusal.FAULT)


def _sum_step(done: Exchange) -> SumMessage | None:
    step = done.reply.get("step") if done.message_type == SUM else None
    return read_reply(step) if isinstance(step, bytes) else None


def _described(done: Exchange, *, again: bool = False) -> str | None:
    """What was asked and answered, None for a step that is of no interest; `again`: as it was before."""
    repeated = " again" if again else ""
    refused, step, sent = _refusal(done), _sum_step(done), f"{done.bytes_out} bytes"
    masked = isinstance(step, MaskedVector)
    if done.request is None and refused is Refusal.POLICY:
        return "code that is not this hospital's was sent: refused by policy, never run"
    if done.request is None:
        return "a message that cannot be read was sent, and refused"
    if refused is Refusal.NO_POOL:
        return "asked for the public pool"
    if refused is not None:
        return refused.sentence
    if done.message_type == JOIN:
        return f"agreed to the terms, ready to answer ({done.seconds:.1f} s)"
    if done.message_type == ANSWER or masked:
        under = " under masks" if masked else ""
        rows = counted(len(np.asarray((done.request or {})["index"])), "row")
        return f"answered{repeated}{under}: {rows} ({done.seconds:.1f} s, {sent} sent)"
    if isinstance(step, SumRefused):
        return f"refused a step of the secure summation: {step.refusal.value}"
    return None


@contextmanager
def _temporary_files_in(state: Path) -> Iterator[None]:
    """Temporary files of this process go into the state directory too."""
    from pate_fed.flower.processes import private_folder

    before, tempfile.tempdir = tempfile.tempdir, str(private_folder(state / "tmp").absolute())
    try:
        yield
    finally:
        tempfile.tempdir = before


def _identity(arguments: argparse.Namespace) -> HospitalIdentity | None:
    """The hospital's identity, checked before anyone is connected to."""
    if arguments.tls_dir is None:
        return None
    from pate_fed.identity import HospitalIdentity

    found = HospitalIdentity.open(Path(arguments.tls_dir))
    for warning in found.check(arguments.hospital):
        print(f"warning: {warning}", file=sys.stderr)
    return found


def _check_files(arguments: argparse.Namespace) -> None:
    """What can be told of the files before anyone is connected to."""
    given = [("--data", arguments.data), ("--pool", arguments.pool), ("--config", arguments.config)]
    Policy.load(find_policy(arguments.policy, arguments.tls_dir))
    for option, path in given:
        if path is not None and not path.startswith(PART):
            check_there(Path(path), option=option)
    if arguments.teachers is not None and arguments.teachers < 1:
        raise InputError(f"--teachers {arguments.teachers}: a whole number of at least 1 is meant")
