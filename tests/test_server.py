"""The coordinator's command: wrong input ends it with one sentence before anything starts."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pate_fed.server import main

Refused = Callable[[Callable[[Sequence[str]], int], Sequence[str]], tuple[str, str]]
STUDY = "[parties]\nnum_clients = 3\n[aggregation]\nsigma2 = 1\n"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--config", "study.toml", "--address", "0.0.0.0:1"), "--tls-dir"),
        (("--config", "study.toml", "--address", "0.0.0.0", "--insecure"), "--insecure-anywhere"),
        (("--config", "study.toml", "--address", "0.0.0.0", "--insecure-anywhere"), "say it twice"),
        (("--config", "study.toml", "--address", "127.0.0.1:x", "--insecure"), "HOST:PORT"),
        (("--config", "none.toml", "--insecure"), "none.toml"),
        (("--confg", "study.toml", "--insecure"), "did you mean --config?"),
        (("--insecure",), "required: --config"),
    ],
)
def test_wrong_input_ends_with_a_sentence_before_anything_starts(
    options: tuple[str, ...], words: str, tmp_path: Path, refused: Refused
) -> None:
    (tmp_path / "study.toml").write_text(STUDY, encoding="utf-8")
    out, error = refused(main, options)
    assert words in error and out.startswith("FAILED  ")


def test_a_port_already_taken_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "study.toml").write_text(STUDY, encoding="utf-8")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = ["--config", str(tmp_path / "study.toml"), "--insecure", "--address", address]
        assert main(command) == 2
        captured = capsys.readouterr()
        assert address in captured.err
        assert captured.out == "FAILED  ε=0 δ=- unit=- labels=0 accuracy=- report=-\n"
        # A run that was begun has a ledger, and what it spent is not nothing.
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "ledger.sqlite").touch()
        assert main([*command, "--run-dir", str(tmp_path / "run")]) == 2
        assert capsys.readouterr().out == "FAILED  ε=- δ=- unit=- labels=- accuracy=- report=-\n"
