"""What `pate_fed` needs of Flower and Ray beyond their public API; the one file to read when they move on.

Written against flwr 1.39 (the same names were read in 1.41) and Ray 2.55. `tests/flower` guards them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from uuid import uuid4

from flwr.app import Message
from flwr.supercore.logger import update_console_handler
from flwr.supercore.task_identity import TaskIdentity

__all__ = ["apart_from_signals", "quiet_flower", "set_identity", "stamp"]


def set_identity(*, run_id: int, node_id: int) -> None:
    """Say whose messages this process builds; `Message` refuses to be built before."""
    TaskIdentity.run_id = run_id
    TaskIdentity.node_id = node_id
    TaskIdentity.task_id = 1


def stamp(message: Message) -> str:
    """Give a message the id that a SuperLink would give it."""
    message_id = str(uuid4())
    message.metadata.__dict__["_message_id"] = message_id
    return message_id


@contextmanager
def quiet_flower(level: int = logging.ERROR) -> Iterator[None]:
    """Keep Flower's and Ray's informative lines from burying the progress bars; errors show, uncoloured."""
    loggers = [logging.getLogger(name) for name in ("flwr", "ray")]
    before = [logger.level for logger in loggers]
    os.environ["RAY_LOG_TO_STDERR"] = "0"
    update_console_handler(colored=False)
    for logger in loggers:
        logger.setLevel(level)
    try:
        yield
    finally:
        for logger, old in zip(loggers, before, strict=True):
            logger.setLevel(old)


@contextmanager
def apart_from_signals() -> Iterator[None]:
    """Start Ray's processes in sessions of their own: a signal to this process's group is not for them.

    They end with this process all the same, as the kernel tells them.
    """
    from ray._private import services

    before = services.ConsolePopen
    services.ConsolePopen = partial(before, start_new_session=True)
    try:
        yield
    finally:
        services.ConsolePopen = before
