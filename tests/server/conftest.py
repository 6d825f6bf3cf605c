"""A coordinator that is killed at a chosen moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from pate_fed.flower import prepare_environment

prepare_environment()

from pate_fed.secure_sum import read_reply


class Killed(SystemExit):
    """As where Flower ends a process: no handler may take it for a fault that it can tell about."""


_FLOWER: dict[str, Any] = {"__name__": "flwr.supercore.exit"}
exec("def end(kind): raise kind", _FLOWER)


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Images are drawn once for all tests here."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATE_FED_CACHE", str(folder))
        yield folder


Dying = Callable[..., AbstractContextManager[None]]


@pytest.fixture(scope="session")
def dying() -> Dying:
    """Within the context a coordinator dies before or after a call of `owner.name` that `when` picks."""

    @contextmanager
    def kill(
        owner: Any, name: str, when: Callable[[Any], bool] = lambda arguments: True, *, after: bool = True
    ) -> Iterator[None]:
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

    return kill


@pytest.fixture(scope="session")
def takes() -> Callable[..., Callable[[Any], bool]]:
    """Picks the calls of `MaskedRounds._take` that take a message of one kind, of one batch or any."""

    def of(kind: type, batch: int | None = None) -> Callable[[Any], bool]:
        def when(arguments: Any) -> bool:
            step = read_reply(arguments[-1].reply.step)
            return isinstance(step, kind) and batch in (None, step.batch)

        return when

    return of


TINY = """
[data.glyph]
classes = 3
private = 600
public = 300
[privacy]
allow_weak = true
[parties]
num_clients = 6
[teacher]
epochs = 2
[queries]
labels = 40
batch_size = 50
[student]
epochs = 2
"""


@pytest.fixture(scope="session")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study whose teachers are networks; one in one process and one on Ray are enough."""
    path = tmp_path_factory.mktemp("networks") / "study.toml"
    path.write_text(TINY, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with teachers that learn at once, and one network as the student."""
    path = tmp_path_factory.mktemp("study") / "study.toml"
    text = TINY.replace("epochs = 2", 'name = "hog-linear"', 1)
    path.write_text(text.replace("[student]", '[student]\nname = "supervised"'), encoding="utf-8")
    return path
