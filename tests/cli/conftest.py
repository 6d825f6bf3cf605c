"""A command run in this process, and the demonstration's files, made once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from vote_study import make_vote_study

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
    make_vote_study(folder)
    return folder


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """240 images whose bright stripe tells the class, of three; 60 more to test with. Runs go there too."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name, count in (("train", 240), ("test", 60)):
        labels = np.arange(count) % 3
        images = rng.integers(0, 50, (count, 16, 16, 1))
        for row in range(4):
            images[np.arange(count), 5 * labels + row] += 150
        np.save(tmp_path / f"{name}-images.npy", images.astype(np.uint8))
        np.save(tmp_path / f"{name}-labels.npy", labels)
    return tmp_path
