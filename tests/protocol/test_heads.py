"""Heads as messages hold them, and a hospital's word on its own."""

from __future__ import annotations

import pytest

from pate_fed.errors import IntegrityError
from pate_fed.protocol.heads import LEDGER, Head, Statement, heads_text, ledger_head, read_heads
from pate_fed.secure_sum import Identity


@pytest.mark.parametrize(
    "text",
    ["a", "a 1", "a 01 " + "0" * 64, "a 1 " + "0" * 63, "(x) 1 " + "0" * 64, "\n", "a 1 " + "0" * 64 + "\n"],
)
def test_heads_that_are_not_readable_are_refused(text: str) -> None:
    with pytest.raises(IntegrityError):
        read_heads(text)


def test_heads_are_read_as_they_were_written() -> None:
    heads = {LEDGER: Head(0, bytes(32)), "north": Head(12, b"\xff" * 32)}
    assert read_heads(heads_text(heads)) == heads
    with pytest.raises(IntegrityError):
        read_heads(heads_text(heads) + "\n" + heads_text(heads))
    for damaged in (b"", bytes(103), b"\xff" * 104):
        with pytest.raises(IntegrityError):
            Statement.read(damaged)


def test_a_ledgers_head_tells_nothing_of_its_rows_without_the_runs_key() -> None:
    runs = [Identity.generate(), Identity.generate()]
    shown = {ledger_head(run, rows=3, head=head).value for run in runs for head in ("ab", "cd")}
    assert len(shown) == 4
    assert ledger_head(runs[0], rows=3, head="ab") == ledger_head(runs[0], rows=3, head="ab")
