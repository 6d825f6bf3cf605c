"""What carries messages between hospitals and their coordinator, and what is said around them.

A study is asked through a `superlink.SuperLink` and answered through a `supernode.SuperNode`, on the line of
Flower that speaks gRPC; another pair would stand beside them (docs/decisions/0013-after-flwr-1.39.md).
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any, Protocol

from pate_fed.errors import InputError, PateFedError

if TYPE_CHECKING:
    from pate_fed.protocol.messages import Record

LINE = "1.39"
"""The releases of Flower whose SuperNodes speak gRPC, and that the guard is made for."""

CONTROL_HEADER = "x-pate-fed-control"
"""The header of every call over which runs are submitted and nodes are registered: `control_word`."""


def control_word(secret: bytes) -> str:
    """What shows that a call comes from whoever started the child, whose `secret` it follows from."""
    return hmac.digest(secret, b"pate_fed/v1 control", "sha256").hex()


class LinkLostError(PateFedError):
    """The link over which hospitals are reached is lost; over another one the study goes on."""


def has_transport() -> bool:
    """Whether the installed Flower carries deployments. Nothing of it is imported."""
    return metadata.version("flwr").split(".")[:2] == LINE.split(".")


def require_transport(what: str) -> None:
    """Hold that the installed Flower carries deployments; `what` needs it.

    Raises:
        InputError: it is of another line, with which simulations alone run.
    """
    if not has_transport():
        raise InputError(
            f"{what} needs Flower {LINE}, which speaks gRPC, and here is {metadata.version('flwr')}, which "
            "only simulates studies: pip install 'pate-fed[deploy]'"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkGuard:
    """What a SuperLink's guard needs: bytes of a hospital's largest reply, and how many hospitals."""

    most_bytes: int
    hospitals: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGuard:
    """What a SuperNode's guard needs: bytes of the largest request, the hospital's certificate, its key.

    `certificate` is PEM; `key` is a file in OpenSSH's format, whose content nothing here shows.
    """

    most_bytes: int
    certificate: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One request that was answered. `request` is None where the bundle was refused unread."""

    message_type: str
    request: Record | None
    reply: Record
    seconds: float
    bytes_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Untold:
    """Who took part and was not told yet how the study ended; `pending` are asked and have not replied."""

    pending: int
    parties: tuple[str, ...]


class Ended(Protocol):
    """What `Address.tell` needs: how a study ended, for its hospitals."""

    @property
    def exit_code(self) -> int:
        """The study's own; that of an interruption where hospitals wait for whoever goes on."""

    def telling(self, grid: Any, names: Mapping[int, str] | None) -> Iterator[Untold]:
        """Tell every hospital that is connected or comes; with each look who was not told yet."""
