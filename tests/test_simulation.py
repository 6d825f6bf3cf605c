"""The command of a simulated study: wrong input ends it with one sentence before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from pate_fed.simulation import main, make_parser


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--num-clients", "0"), "--num-clients"),
        (("--num-clinets", "3"), "did you mean --num-clients?"),
        (("--config", "none.toml"), "none.toml"),
        (("--format", "xml"), "--format"),
    ],
)
def test_wrong_input_ends_with_a_sentence_before_anything_starts(
    options: tuple[str, ...],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(options) == 2
    captured = capsys.readouterr()
    assert words in captured.err and captured.out.startswith("FAILED  ")
    assert list(tmp_path.iterdir()) == []


def test_the_help_names_every_exit_code_and_file() -> None:
    text = " ".join(make_parser().format_help().split())
    for told in ("3 budget", "4 quorum", "5 refused by policy", "130 interrupted", "ledger.sqlite"):
        assert told in text
