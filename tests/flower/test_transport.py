"""The line of Flower that carries deployments, and the one sentence with another one."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from pate_fed import client, server
from pate_fed.cli import main
from pate_fed.errors import InputError
from pate_fed.flower.transport import has_transport, require_transport

INSTALLED = metadata.version


@pytest.fixture
def release(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    found: str = request.param
    monkeypatch.setattr(metadata, "version", lambda name: found if name == "flwr" else INSTALLED(name))
    return found


@pytest.mark.parametrize(
    ("release", "carries"),
    [("1.39.0", True), ("1.39.7", True), ("1.38.9", False), ("1.42.0", False), ("1.390.0", False)],
    indirect=["release"],
)
def test_the_line_that_carries_deployments(release: str, carries: bool) -> None:
    assert has_transport() is carries
    if carries:
        require_transport("this")
    else:
        with pytest.raises(
            InputError, match=rf"^this needs Flower 1\.39, .* {release}, .*pate-fed\[deploy\]'$"
        ):
            require_transport("this")


@pytest.mark.parametrize("release", ["1.42.0"], indirect=True)
@pytest.mark.parametrize(
    "command",
    [
        "client --hospital north --data north.csv --server 127.0.0.1:9092 --insecure --state-dir state",
        "server --config study.toml --insecure --run-dir run",
        "demo hospitals demo --run",
        "demo hospitals demo",
        "hospital rehearse north.admission --data north.csv",
        "hospital join north.admission --dir identity --data north.csv",
    ],
)
def test_another_line_is_one_sentence_before_anything_starts(
    release: str,
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    mains = {"client": client.main, "server": server.main}
    first, *others = command.split()
    code = mains[first](others) if first in mains else main.main([first, *others])
    [sentence] = capsys.readouterr().err.splitlines()
    assert code == 2 and sentence.startswith("error: ") and release in sentence
    assert sentence.endswith("pip install 'pate-fed[deploy]'")
    assert list(tmp_path.iterdir()) == []
