"""A command run in this process, and the demonstration's files, made once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from pate_fed.cli.demo import make_demo
from pate_fed.cli.main import main


class Finished(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Finished]:
    """`run("plan", "--epsilon", "2")` as `pate-fed plan --epsilon 2`."""

    def run(*command: str) -> Finished:
        return Finished(main(command), *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def demonstration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("doctor") / "demo"
    make_demo(folder, teachers=3, trees=5)
    return folder
