"""A coordinator that is killed at a chosen moment, and small studies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from pate_fed.flower import prepare_environment

prepare_environment()

from dying import dying, takes


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Images are drawn once for all tests here."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATE_FED_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session", name="dying")
def _dying() -> Callable[..., AbstractContextManager[None]]:
    """Within the context a coordinator dies before or after a call."""
    return dying


@pytest.fixture(scope="session", name="takes")
def _takes() -> Callable[..., Callable[[Any], bool]]:
    """Picks the calls of `MaskedRounds._take` that take a message of one kind."""
    return takes


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
