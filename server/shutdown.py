"""The shutdown notice to the hospitals: how the study ended; without it their processes would wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from flwr.serverapp import Grid

from pate_fed.protocol.messages import END, EndRequest
from server.exchange import exchange

TELL_S = 90.0
"""Seconds that hospitals have to connect again where they are only told how a study ended."""


def send_shutdown_notice(
    grid: Grid,
    notice: EndRequest,
    *,
    receipt_of: Callable[[int], str] = lambda node: "",
    timeout_s: float = 30.0,
) -> int:
    """Send the notice to every connected hospital; how many received it. No answer changes nothing.

    `receipt_of` gives each node its hospital's receipt; empty where there is none.
    """
    requests = {node: replace(notice, receipt=receipt_of(node)).to_record() for node in grid.get_node_ids()}
    answers = exchange(grid, requests, message_type=END, timeout_s=timeout_s, stop=threading.Event())
    return sum(answer.reply is not None for answer in answers)
