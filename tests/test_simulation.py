"""The command of a simulated study: wrong input ends it with one sentence before anything starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from pate_fed.simulation import main, make_parser

Refused = Callable[[Callable[[Sequence[str]], int], Sequence[str]], tuple[str, str]]


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
    options: tuple[str, ...], words: str, refused: Refused
) -> None:
    out, error = refused(main, options)
    assert words in error and out.startswith("FAILED  ")


def test_the_help_names_every_exit_code_and_file() -> None:
    text = " ".join(make_parser().format_help().split())
    for told in ("3 budget", "4 quorum", "5 refused by policy", "130 interrupted", "ledger.sqlite"):
        assert told in text
