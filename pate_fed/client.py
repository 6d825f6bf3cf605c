"""`python -m pate_fed.client`: one hospital of a study with separate processes."""

from __future__ import annotations

import argparse
import fcntl
import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pate_fed import __version__
from pate_fed.cli.parser import Parser, check_security
from pate_fed.errors import InputError, PateFedError, PolicyError
from pate_fed.protocol.messages import COUNTS, END, LABELS, SUM, TEACH, VOTES, Refusal, Terms
from pate_fed.runtime.connection import Connection
from pate_fed.runtime.launch import INTERRUPTED, raise_if, terminating
from pate_fed.secure_sum import SumRefusal, read_reply
from pate_fed.secure_sum.messages import MaskedVector, SumRefused
from pate_fed.secure_sum.messages import Reply as SumMessage
from pate_fed.structure import PARTY_NAME, PARTY_NAME_IS

if TYPE_CHECKING:
    from pate_fed.flower.supernode import Exchange, SuperNode
    from pate_fed.identity import HospitalIdentity

__all__ = ["main"]

_EPILOG = """\
Nothing but vote vectors leaves this house. Exit codes: 0 success, 1 fault, 2 wrong input, 3 budget, 4 quorum,
5 refused by this hospital's policy, 6 failed check, 130 interrupted."""
_POLL_S = 0.3
_DELIVERY_S = 15.0
_WORDS = {2: "wrong input", 5: "refused by policy", 6: "failed check"}
_PART = "part:"  # rehearse with a simulated party's part
_SITE_FILE = "hospital.json"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the return value is the exit code."""
    name, asked = "-", threading.Event()
    try:
        arguments = _parser().parse_args(argv)
        name = arguments.hospital
        with terminating(asked):
            return _Hospital(arguments, asked).run()
    except PateFedError as error:
        print(f"error: {error}", file=sys.stderr)
        print(f"FAILED  hospital={name} {_WORDS.get(error.exit_code, 'fault')}", flush=True)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"ABORTED  hospital={name} interrupted", flush=True)
        return INTERRUPTED


class _Hospital:
    """One hospital's process: a SuperNode, and the requests it brings, until `asked` to end."""

    def __init__(self, arguments: argparse.Namespace, asked: threading.Event) -> None:
        from pate_fed.flower import prepare_environment
        from pate_fed.flower.processes import private_folder, split_address

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
        self._arguments, self._name, self._asked = arguments, arguments.hospital, asked
        self._state = private_folder(Path(arguments.state_dir or f"hospital-{self._name}"))
        self._queries = self._sent = 0

    def run(self) -> int:
        """Serve until the study is over; the exit code.

        Raises:
            InputError: the hospital's own data or identity cannot be used.
            PolicyError: the hospital's policy refuses the study.
        """
        from pate_fed.flower.compat import quiet_flower

        with _only_one(self._state), _temporary_files_in(self._state):
            self._write_site()
            self._check_records()
            # The hospital's side is named, as Flower names apps: pate_fed imports neither party.
            self._clients: Any = importlib.import_module("clients.app")
            self._say(f"{self._name}: connecting to {self._address}")
            connection = Connection(self._start_node, say=self._say, wait_s=self._arguments.wait)
            try:
                with quiet_flower():
                    return self._serve(connection)
            finally:
                connection.stop()

    def _serve(self, connection: Connection) -> int:
        while True:
            raise_if(self._asked)
            connection.watch()
            done = self._answer(connection.node)
            if done is None:
                time.sleep(_POLL_S)
                continue
            self._report(done)
            over = done.message_type == END and done.reply.get("kind") == "ended"
            refused = _refusal(done)
            by_policy = refused is not None and refused.is_policy
            if over or by_policy or refused is Refusal.DATA:
                connection.wait_until_sent(_DELIVERY_S)
            if refused is Refusal.DATA:
                raise InputError(self._own_words("the hospital's own data cannot be used"))
            if by_policy:
                raise PolicyError(self._own_words("the study was refused by this hospital's policy"))
            if over:
                return self._conclude(done)

    def _answer(self, node: SuperNode | None) -> Exchange | None:
        if node is None:
            return None
        done = node.answer_next(self._clients.app, refuse_bundle=lambda: self._clients.refuse_bundle({}))
        if done is not None:
            self._clients.note_sent({}, message_type=done.message_type, bytes_out=done.bytes_out)
        return done

    def _conclude(self, done: Exchange) -> int:
        request = done.request or {}
        status = str(request["status"]).upper()
        print(
            f"{status}  hospital={self._name} {request.get('summary')!s} answered={self._queries} "
            f"sent={self._sent}B log={self._state / 'log.jsonl'}",
            flush=True,
        )
        return int(str(request["exit_code"]))

    def _report(self, done: Exchange) -> None:
        """One line a request, for the hospital's own eyes."""
        self._sent += done.bytes_out
        refused = _refusal(done)
        if done.request is None:
            self._say(
                f"{self._name}: code that is not this hospital's was sent: refused by policy, never run"
            )
        elif refused is Refusal.NO_POOL:
            self._say(f"{self._name}: asked for the public pool")
        elif refused is not None:
            self._say(f"{self._name}: {refused.sentence}")
        elif done.message_type == TEACH:
            self._say(f"{self._name}: agreed to the terms, teachers ready ({done.seconds:.1f} s)")
        elif done.message_type == LABELS:
            noisy = len(np.asarray(done.reply["label"]))
            what = f"{noisy} labels after randomised response sent" if noisy else "ready to count"
            self._say(f"{self._name}: agreed to the terms, {what} ({done.bytes_out} bytes)")
        elif done.message_type == COUNTS and _is_masked_vote(done):
            self._say(f"{self._name}: noisy counts sent under masks ({done.bytes_out} bytes)")
        elif done.message_type == VOTES or _is_masked_vote(done):
            queries = len(np.asarray(done.request["index"]))
            self._queries += queries
            masked = " under masks" if done.message_type == SUM else ""
            self._say(
                f"{self._name}: voted{masked} on {queries} public inputs ({done.seconds:.1f} s, "
                f"{done.bytes_out} bytes sent)"
            )
        elif (why := _sum_refusal(done)) is not None:
            self._say(f"{self._name}: refused a step of the secure summation: {why.value}")

    def _own_words(self, otherwise: str) -> str:
        """The sentence that the hospital's side left in its log; it was sent to nobody."""
        path = self._state / "log.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        said = [event["sentence"] for event in map(json.loads, lines) if "sentence" in event]
        return str(said[-1]) if said else otherwise

    def _start_node(self) -> SuperNode:
        from pate_fed.flower.supernode import NodeTls, SuperNode

        found = self._identity
        tls = None if found is None else NodeTls(ca=found.ca_path, key=found.key_path)
        return SuperNode(self._state / "flower", self._address, tls=tls)

    def _write_site(self) -> None:
        config, pool, data = self._arguments.config, self._arguments.pool, self._arguments.data
        policy = self._arguments.policy
        site = {
            "hospital": self._name,
            "data": data if data.startswith(_PART) else str(Path(data).absolute()),
            "state_dir": str(self._state.absolute()),
            "config": None if config is None else str(Path(config).absolute()),
            "pool": None if pool is None else str(Path(pool).absolute()),
            "teachers": self._arguments.teachers,
            "policy": None if policy is None else str(Path(policy).absolute()),
            "terms_digest": None if self._identity is None else self._identity.admission.terms_digest,
            "sum_key": None if self._identity is None else str(self._identity.sum_key_path.absolute()),
        }
        path = self._state / _SITE_FILE
        handle = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(site, file)
        os.environ["PATE_FED_SITE"] = str(path.absolute())

    def _check_records(self) -> None:
        """A mistake in the records is found now, rather than when all have come and are asked to train."""
        from pate_fed.identity import read_terms
        from pate_fed.protocol.label_terms import LabelTerms

        if self._identity is None or self._arguments.data.startswith(_PART):
            return  # the terms come with the first request
        terms = read_terms(self._identity.admission.terms)
        if isinstance(terms, LabelTerms):
            site = importlib.import_module("clients.label_site")
            pool, classes = terms.pool_size, terms.num_classes
            site.read_own_labels(Path(self._arguments.data), pool_size=pool, num_classes=classes)
        if isinstance(terms, Terms):
            local = importlib.import_module("clients.local")
            kind, teachers = local.kind_of(terms), terms.teachers_per_client
            local.check_records(Path(self._arguments.data), kind, teachers=teachers)

    def _say(self, text: str) -> None:
        if not self._arguments.quiet:
            print(text, file=sys.stderr, flush=True)


def _refusal(done: Exchange) -> Refusal | None:
    if done.reply.get("kind") != "refused":
        return None
    return Refusal.__members__.get(str(done.reply["code"]), Refusal.FAULT)


def _sum_step(done: Exchange) -> SumMessage | None:
    step = done.reply.get("step") if done.message_type in (SUM, COUNTS) else None
    return read_reply(step) if isinstance(step, bytes) else None


def _is_masked_vote(done: Exchange) -> bool:
    return isinstance(_sum_step(done), MaskedVector)


def _sum_refusal(done: Exchange) -> SumRefusal | None:
    step = _sum_step(done)
    return step.refusal if isinstance(step, SumRefused) else None


@contextmanager
def _only_one(state: Path) -> Iterator[None]:
    """Hold the state directory: two processes of one hospital would each think that they answer once."""
    with open(os.open(state / "lock", os.O_CREAT | os.O_RDWR, 0o600), "r+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InputError(
                f"--state-dir {state}: another process of this hospital uses it; one at a time is meant"
            ) from error
        yield


@contextmanager
def _temporary_files_in(state: Path) -> Iterator[None]:
    """Temporary files of this process go into the state directory too."""
    import tempfile

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
    if arguments.policy is not None:
        importlib.import_module("clients.policy").Policy.load(Path(arguments.policy))
    for option, path in given:
        if path is not None and not path.startswith(_PART) and not Path(path).exists():
            raise InputError(f"{option} {path}: there is no such file or folder")
    if arguments.teachers is not None and arguments.teachers < 1:
        raise InputError(f"--teachers {arguments.teachers}: a whole number of at least 1 is meant")


def _parser() -> Parser:
    parser = Parser(prog="python -m pate_fed.client", description=__doc__, epilog=_EPILOG)
    parser.add_argument("--hospital", metavar="NAME", required=True, help="this hospital's name")
    parser.add_argument(
        "--data",
        metavar="PATH",
        required=True,
        help="this hospital's records: a CSV, an .npz (x, y), a folder of images by class or of idx files; "
        "with private labels a CSV of index,label; "
        "part:I rehearses with the part that party I of a simulation of --config gets",
    )
    parser.add_argument(
        "--pool", metavar="PATH", help="its copy of the public inputs (default: the coordinator sends one)"
    )
    parser.add_argument(
        "--teachers",
        type=int,
        metavar="K",
        help="train so many teachers, or refuse (default: as the study says)",
    )
    parser.add_argument(
        "--server", metavar="HOST:PORT", help="the coordinator's address (default: of the admission)"
    )
    parser.add_argument("--tls-dir", metavar="DIR", help="this hospital's identity: key and admission")
    parser.add_argument("--config", metavar="FILE", help="with --data part:I, the study.toml to rehearse")
    parser.add_argument("--insecure", action="store_true", help="no TLS; on this machine only")
    parser.add_argument("--insecure-anywhere", action="store_true", help="no TLS, and to other machines")
    parser.add_argument(
        "--policy",
        metavar="FILE",
        help="this hospital's policy.toml (default: all but seeded noise is allowed)",
    )
    parser.add_argument(
        "--state-dir", metavar="DIR", help="teachers, answered batches, log (default hospital-NAME)"
    )
    parser.add_argument(
        "--wait",
        type=float,
        default=3600.0,
        metavar="SECONDS",
        help="give up when the coordinator is out of reach for so long (default 3600)",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress, only warnings and the outcome")
    parser.add_argument("--version", action="version", version=f"pate_fed {__version__}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
