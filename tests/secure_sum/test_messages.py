"""Messages: versions, and records that no message makes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pate_fed.secure_sum import RefusedError, SumRefusal, read_reply, read_request
from pate_fed.secure_sum.codec import pack
from pate_fed.secure_sum.fields import VERSION


def test_messages_of_a_newer_version_are_refused_with_a_sentence(outside_a_batch: Any) -> None:
    _, requests, replies = outside_a_batch
    for read, messages in ((read_request, requests), (read_reply, replies)):
        for message in messages.values():
            newer = {**message.to_record(), "version": VERSION + 1, "a field of the future": b""}
            with pytest.raises(
                RefusedError, match=r"version 2 .*this program version 1: update this"
            ) as caught:
                read(pack(newer))
            assert caught.value.reason is SumRefusal.VERSION
    with pytest.raises(RefusedError, match="update the other side's program"):
        read_request(pack({**requests["sum.roster"].to_record(), "version": 0}))


def test_records_that_no_message_makes_are_refused(outside_a_batch: Any) -> None:
    _, requests, replies = outside_a_batch
    for read, messages in ((read_request, requests), (read_reply, replies)):
        for message in messages.values():
            good = message.to_record()
            bad: list[Any] = [{**good, "extra": 1}, {**good, "kind": "votes"}, {**good, "kind": 3}, {}]
            bad += [{**good, "kind": np.zeros(3, dtype=np.int64)}]
            bad += [{name: value for name, value in good.items() if name != gone} for gone in good]
            for record in bad:
                with pytest.raises(RefusedError):
                    read(pack(record))
            fields = [name for name in good if name != "kind"]
            bad = [{**good, name: value} for name in fields for value in (None, 1.5, True, [1], np.zeros(3))]
            for record in bad:  # what no bytes hold
                with pytest.raises(RefusedError):
                    type(message).from_record(record)
