"""The hospital's Flower ClientApp: its handlers are each a request in and a reply out.

Whatever goes wrong inside becomes a refusal from the fixed list; details stay in the hospital's own log.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from clients.hospital import Hospital
from clients.label_hospital import LabelHospital
from clients.label_site import read_label_site
from clients.local import read_site
from pate_fed.errors import IntegrityError
from pate_fed.flower.records import from_flower, to_flower
from pate_fed.protocol.messages import (
    EndRequest,
    LabelRequest,
    Record,
    Refusal,
    RefusalReply,
    Reply,
    SumRequest,
    TeachRequest,
    VoteRequest,
)

__all__ = ["app", "note_sent", "refuse_bundle"]

app = ClientApp()

H = TypeVar("H", bound="Hospital | LabelHospital")
M = TypeVar("M")

_NOBODY = "unknown"  # the party's own name is in its settings, which could not be read


@app.train("teacher")
def train_teacher(message: Message, context: Context) -> Message:
    """`train.teacher`: agree to the study's terms and train."""
    return _answer(message, context, _voter, TeachRequest.from_record, Hospital.teach)


@app.query("votes")
def query_votes(message: Message, context: Context) -> Message:
    """`query.votes`: one vote matrix for a whole batch of public inputs."""
    return _answer(message, context, _voter, VoteRequest.from_record, Hospital.vote)


@app.query("sum")
def query_sum(message: Message, context: Context) -> Message:
    """`query.sum`: one step of a batch's secure summation."""
    return _answer(message, context, _voter, SumRequest.from_record, Hospital.sum_step)


@app.query("labels")
def query_labels(message: Message, context: Context) -> Message:
    """`query.labels`: agree to a study of private labels; send them after randomised response, or enrol."""
    return _answer(message, context, _labeller, LabelRequest.from_record, LabelHospital.answer)


@app.query("counts")
def query_counts(message: Message, context: Context) -> Message:
    """`query.counts`: one step of the secure summation of noisy label counts."""
    return _answer(message, context, _labeller, SumRequest.from_record, LabelHospital.sum_step)


@app.query("end")
def query_end(message: Message, context: Context) -> Message:
    """`query.end`: the study is over."""
    return _answer(message, context, _voter, EndRequest.from_record, Hospital.end)


def _voter(node_config: Mapping[str, object]) -> Hospital:
    return Hospital(read_site(node_config))


def _labeller(node_config: Mapping[str, object]) -> LabelHospital:
    return LabelHospital(read_label_site(node_config))


def refuse_bundle(node_config: Mapping[str, object]) -> Record:
    """The reply to a coordinator that sent code of its own; nothing of its request was read or run."""
    hospital = _voter(node_config)
    hospital.journal.note("bundle refused", reason=Refusal.POLICY.name)
    return hospital.refuse(Refusal.POLICY).to_record()


def note_sent(node_config: Mapping[str, object], *, message_type: str, bytes_out: int) -> None:
    """Keep in the hospital's own log what left the house, in bytes."""
    _voter(node_config).journal.note("sent", message_type=message_type, bytes=bytes_out)


def _answer(
    message: Message,
    context: Context,
    open_hospital: Callable[[Mapping[str, object]], H],
    read: Callable[[Record], M],
    handle: Callable[[H, M], Reply],
) -> Message:
    """The hospital's reply. No text of an exception leaves: it could carry data out; only a code does."""
    start = time.perf_counter()
    try:
        hospital = open_hospital(context.node_config)
        try:
            reply: Reply = handle(hospital, read(from_flower(message.content)))
        except IntegrityError:
            reply = hospital.refuse(Refusal.MALFORMED)
        except Exception as error:
            hospital.journal.fault(error)
            reply = hospital.refuse(Refusal.FAULT)
        hospital.journal.note("handled", seconds=time.perf_counter() - start)
    except Exception as error:  # not even the hospital's own log could be opened
        print(f"a request was not handled: {type(error).__name__}", file=sys.stderr)
        reply = RefusalReply(party=_NOBODY, code=Refusal.FAULT.name)
    return Message(to_flower(reply.to_record()), reply_to=message)
