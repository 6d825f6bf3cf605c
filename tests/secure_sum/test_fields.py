"""Fields of messages: each has one check."""

from __future__ import annotations

from dataclasses import fields

from pate_fed.secure_sum.fields import CHECKS
from pate_fed.secure_sum.messages import Reply, Request


def test_every_field_of_every_message_has_a_check() -> None:
    for kind in (*Request.__args__, *Reply.__args__):
        assert {entry.name for entry in fields(kind)} <= set(CHECKS)
