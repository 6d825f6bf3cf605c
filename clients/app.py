"""The hospital's Flower ClientApp: its handlers are each a request in and a reply out.

Whatever goes wrong inside becomes a refusal from the fixed list; details stay in the hospital's own log.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from clients.hospital import Hospital
from clients.local import read_site
from clients.log import HospitalLog
from clients.site import find_site, simulated_site, take_data
from clients.state_dir import SITE_VARIABLE, LocalSettings, SimulatedSites
from pate_fed.config.data import data_digest
from pate_fed.data import Dataset
from pate_fed.disk import DamagedFileError, write_private
from pate_fed.errors import InputError, IntegrityError
from pate_fed.flower.records import from_flower, to_flower
from pate_fed.learning import TABLE_TEACHERS
from pate_fed.protocol import messages as wire
from pate_fed.structure.faults import describe, ends_process, keep, played_here

M = TypeVar("M")

_NOBODY = "unknown"  # the party's own name is in its settings, which could not be read


def _hospital(node_config: Mapping[str, object]) -> Hospital:
    return Hospital(read_site(node_config))


def refuse_bundle(node_config: Mapping[str, object]) -> wire.Record:
    """The reply to a coordinator that sent code of its own; nothing of its request was read or run."""
    hospital = _hospital(node_config)
    reply = hospital.refuse(wire.Refusal.POLICY).to_record()
    hospital.log.note("bundle refused", kind="refused", sha256=wire.record_digest(reply))
    return reply


def note_sent(
    node_config: Mapping[str, object], *, message_type: str, bytes_out: int, reply: wire.Record
) -> None:
    """Keep in the hospital's own log what left the house: how many bytes, and the digest of what they say."""
    digest = wire.record_digest(reply)
    _hospital(node_config).log.note("sent", message_type=message_type, bytes=bytes_out, sha256=digest)


def _handler(
    read: Callable[[wire.Record], M], handle: Callable[[Hospital, M], wire.Reply]
) -> Callable[[Message, Context], Message]:
    """Answer one kind of request. No text of an exception leaves: it could carry data out, a code cannot.

    A hospital that has left answers nothing but the study's end, also where it left in the meantime.
    """

    def reply_of(hospital: Hospital, message: Message) -> wire.Reply:
        over = message.metadata.message_type == wire.END
        if hospital.left and not over:
            return hospital.refuse(wire.Refusal.LEFT)
        try:
            reply = handle(hospital, read(from_flower(message.content)))
        except DamagedFileError as error:
            hospital.fault(error)
            reply = hospital.refuse(wire.Refusal.FAULT)
        except IntegrityError:
            reply = hospital.refuse(wire.Refusal.MALFORMED)
        except BaseException as error:
            # Nobody interrupts a worker that plays parties: there, too, it is for whoever simulates them.
            worker = hospital.simulated and not played_here() and isinstance(error, KeyboardInterrupt)
            if ends_process(error) and not worker:
                raise
            hospital.fault(error)
            reply = hospital.refuse(_refusal_of(error))
        if hospital.left and not over:
            hospital.forget()
            reply = hospital.refuse(wire.Refusal.LEFT)
        return reply

    def answer(message: Message, context: Context) -> Message:
        start = time.perf_counter()
        try:
            hospital = _hospital(context.node_config)
            with hospital.turn_to_answer():
                reply = _logged(hospital, reply_of(hospital, message), start)
        except BaseException as error:  # not even the hospital's own log could be opened
            if ends_process(error):
                raise
            _note_unheard(context.node_config, error)
            reply = wire.RefusalReply(party=_NOBODY, code=_refusal_of(error).name)
        return Message(to_flower(reply.to_record()), reply_to=message)

    return answer


def _refusal_of(error: BaseException) -> wire.Refusal:
    """What is said of a fault: whether it may pass, as what the system refuses does, or too little memory."""
    passes = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno is not None)
    return wire.Refusal.LATER if passes else wire.Refusal.FAULT


def _note_unheard(node_config: Mapping[str, object], error: BaseException) -> None:
    """Tell the hospital's own people, or who simulates it, of a fault before its own log could be opened."""
    with suppress(InputError, OSError):
        found = find_site(node_config)
        if not isinstance(found, LocalSettings):
            file, number = found
            HospitalLog(file.parent / f"unread-{number}").fault(error)
            keep(error)
        elif found.plays is not None:
            HospitalLog(found.state_dir).fault(error)
            keep(error)
    if not played_here():  # else it is told once, for all parties
        told = describe(error, words=isinstance(error, DamagedFileError))
        print(f"a request was not handled: {told}", file=sys.stderr)


def _logged(hospital: Hospital, reply: wire.Reply, start: float) -> wire.Reply:
    """The reply, once its digest is in the hospital's log: nothing about its records leaves without it."""
    seconds = time.perf_counter() - start
    if hospital.simulated:
        hospital.log.note("handled", seconds=seconds)
        return reply
    record = reply.to_record()
    said: dict[str, float | str] = {
        "seconds": seconds,
        "kind": str(record["kind"]),
        "sha256": wire.record_digest(record),
    }
    try:
        hospital.log.record("handled", **said)
    except OSError as error:
        print(f"the hospital's log cannot be written: {error.strerror}", file=sys.stderr)
        if not isinstance(reply, wire.RefusalReply | wire.EndReply):
            return hospital.refuse(wire.Refusal.LATER)
    return reply


def _make_app() -> ClientApp:
    """A hospital's app. It has none of Flower's mods: what they add to a reply would leave the house."""
    made = ClientApp()
    for register, action, handler in (
        # Agree to a study's terms and get ready; answer, in the open or a step under masks; it is over.
        (made.train, "join", _handler(wire.JoinRequest.from_record, lambda h, asked: h.join(asked))),
        (made.query, "answer", _handler(wire.Question.from_record, lambda h, asked: h.answer(asked))),
        (made.query, "sum", _handler(wire.SumRequest.from_record, lambda h, asked: h.sum_step(asked))),
        (made.query, "end", _handler(wire.EndRequest.from_record, lambda h, asked: h.end(asked))),
    ):
        register(action)(handler)
    return made


app = _make_app()

# Simulated parties on a node of a cluster: what is sent there, and the ClientApp that plays them with it.

_SITE = "site.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SentStudy:
    """A study as it is sent to nodes: its study.toml, digests of its data and of who has which of them.

    `files` are Python files of the user's own, by their paths from the folder that is searched last.
    `together` is as in `SimulatedSites`.
    """

    study: str
    data: str
    records: str
    files: Mapping[str, bytes]
    together: int


def data_to_send(dataset: Dataset) -> Dataset:
    """The data with plain arrays in place of memory maps: a node's processes then share one copy of them."""
    return replace(
        dataset,
        private_images=np.asarray(dataset.private_images),
        private_labels=np.asarray(dataset.private_labels),
        public_images=np.asarray(dataset.public_images),
        public_labels=np.asarray(dataset.public_labels),
    )


def disk_of(folder: Path, number: int) -> Path:
    """Where the disk of the party of that number lies, once its study is played in `folder`."""
    return simulated_site(folder / _SITE, number).state_dir


def play_parties(folder: Path, sent: SentStudy, dataset: Dataset) -> ClientApp:
    """The app of all parties of a study, whose disks lie in `folder` of this node.

    Raises:
        InputError: the data are not those that were sent, or would be dealt otherwise than there; or the
            device is not here.
    """
    if data_digest(dataset) != sent.data:
        raise InputError("the data that came are not those that were sent")
    own = Path(folder, "own-code")
    for name, content in sent.files.items():
        path = own / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, content, durable=False)
    study, site = folder / "study.toml", folder / _SITE
    write_private(study, sent.study.encode(), durable=False)
    SimulatedSites(
        study=study, state_dir=folder, parts=own, records=sent.records, goes_on=True, together=sent.together
    ).write(site)
    os.environ[SITE_VARIABLE] = str(site)
    take_data(site, dataset)
    held = simulated_site(site, 0).study
    if held.teacher.name not in TABLE_TEACHERS:
        from pate_fed.learning.tensors import resolve_device

        resolve_device(held.engine.device)  # loads PyTorch, too, while other nodes still start

    return app
