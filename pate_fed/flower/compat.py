"""What `pate_fed` needs of Flower beyond its public API; the one file to read when Flower moves on.

Written against flwr 1.39; the same names were read in 1.41. `tests/flower` guards them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity

__all__ = ["quiet_flower", "set_identity", "stamp"]


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
    """Keep Flower's and Ray's informative lines from burying the progress bars; errors still show."""
    loggers = [logging.getLogger(name) for name in ("flwr", "ray")]
    before = [logger.level for logger in loggers]
    os.environ["RAY_LOG_TO_STDERR"] = "0"
    for logger in loggers:
        logger.setLevel(level)
    try:
        yield
    finally:
        for logger, old in zip(loggers, before, strict=True):
            logger.setLevel(old)
