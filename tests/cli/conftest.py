"""A command run in this process, the demonstration's files, made once, and a hospital before its yes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from vote_study import make_vote_study

from pate_fed.cli.demo import HOSPITALS
from pate_fed.cli.main import main
from pate_fed.cli.terms import make_terms_of
from pate_fed.identity import Authority, read_request


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


@pytest.fixture
def own(demonstration: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """North's folder with its admission beside it, not yet accepted."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    shutil.copytree(demonstration / "identity-north", tmp_path / "own")
    (tmp_path / "own" / "admission.json").unlink()
    (tmp_path / "own" / "ca.crt").unlink()
    return tmp_path / "own"


@pytest.fixture
def masked(own: Path, demonstration: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The same in a study under masks, of which north has confirmed nobody yet; all words by name."""
    monkeypatch.chdir(demonstration)  # study.toml names its pool there
    text = Path("study.toml").read_text(encoding="utf-8") + "\n[secrecy]\nsecure_sum = true\n"
    config = own.parent / "masked.toml"
    config.write_text(text.replace('"pool.csv"', f'"{demonstration / "pool.csv"}"'), encoding="utf-8")
    monkeypatch.chdir(own.parent)
    authority = Authority.init(Path("ca"), address="a.example:9", terms=make_terms_of(config), days=9)
    requests = [demonstration / f"identity-{name}" / f"{name}.req" for name in HOSPITALS]
    for admission in authority.admit_all(requests, days=9):
        if admission.hospital == "north":
            admission.write(own / "north.admission")
    (own / "policy.toml").write_text("", encoding="utf-8")
    return {path.stem: read_request(path).fingerprint for path in requests}
