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


def _handler(
    open_hospital: Callable[[Mapping[str, object]], H],
    read: Callable[[Record], M],
    handle: Callable[[H, M], Reply],
) -> Callable[[Message, Context], Message]:
    """Answer one kind of request. No text of an exception leaves: it could carry data out, a code cannot."""

    def answer(message: Message, context: Context) -> Message:
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

    return answer


# A study with votes: agree to its terms and train, vote on a batch in the open or one step under masks.
app.train("teacher")(
    _handler(_voter, TeachRequest.from_record, lambda hospital, asked: hospital.teach(asked))
)
app.query("votes")(_handler(_voter, VoteRequest.from_record, lambda hospital, asked: hospital.vote(asked)))
app.query("sum")(_handler(_voter, SumRequest.from_record, lambda hospital, asked: hospital.sum_step(asked)))
# Private labels: agree, and send them after randomised response or enrol; one step of the sum of counts.
app.query("labels")(
    _handler(_labeller, LabelRequest.from_record, lambda hospital, asked: hospital.answer(asked))
)
app.query("counts")(
    _handler(_labeller, SumRequest.from_record, lambda hospital, asked: hospital.sum_step(asked))
)
# Either kind of study is over.
app.query("end")(_handler(_voter, EndRequest.from_record, lambda hospital, asked: hospital.end(asked)))
