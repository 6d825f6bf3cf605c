"""Processes that die at a chosen moment: a coordinator at a call, a hospital at a write."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pate_fed.secure_sum import read_reply


class Killed(SystemExit):
    """As where Flower ends a process: no handler may take it for a fault that it can tell about."""


_FLOWER: dict[str, Any] = {"__name__": "flwr.supercore.exit"}
exec("def end(kind): raise kind", _FLOWER)


@contextmanager
def dying(
    owner: Any, name: str, when: Callable[[Any], bool] = lambda arguments: True, *, after: bool = True
) -> Iterator[None]:
    """Within the context a coordinator dies before or after a call of `owner.name` that `when` picks."""
    whole = getattr(owner, name)

    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        if when(arguments) and not after:
            _FLOWER["end"](Killed)
        result = whole(self, *arguments, **named)
        if when(arguments):
            _FLOWER["end"](Killed)
        return result

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(owner, name, call)
        yield


def takes(kind: type, batch: int | None = None) -> Callable[[Any], bool]:
    """Picks the calls of `MaskedRounds._take` that take a message of one kind, of one batch or any."""

    def when(arguments: Any) -> bool:
        step = read_reply(arguments[-1].reply.step)
        return isinstance(step, kind) and batch in (None, step.batch)

    return when


class Dead(BaseException):
    """No handler of the program may take it for a fault that it can tell about."""


class Writes:
    """Durable steps of the first hospital, which does not live to do one of them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.done, self._die_at, self._counts = 0, -1, False
        for owner, name in ((os, "fsync"), (os, "open"), (Path, "replace"), (Path, "mkdir")):
            patch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, whole: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.done += self._counts
            if self._counts and self.done == self._die_at:
                raise Dead
            return whole(*arguments, **named)

        return call

    def die(self, at: int) -> None:
        """Die at the write of that number from here on, once."""
        self.done, self._die_at = 0, at

    def once(self, number: int, ask: Callable[[], Any]) -> Any:
        """A hospital's reply, or None where it died."""
        self._counts = number == 0
        try:
            return ask()
        except Dead:
            return None
        finally:
            self._counts = False

    def twice(self, number: int, ask: Callable[[], Any]) -> Any:
        """A hospital's reply; from a new process, where one died."""
        reply = self.once(number, ask)
        return ask() if reply is None else reply
