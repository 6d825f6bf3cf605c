"""What carries messages between hospitals and their coordinator: the line of Flower that speaks gRPC."""

from __future__ import annotations

from importlib import metadata

from pate_fed.errors import InputError

LINE = "1.39"
"""The releases of Flower whose SuperNodes speak gRPC, and that the guard is made for."""


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
