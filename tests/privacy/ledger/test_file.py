"""The ledger's file: private, synchronous, append-only, one writer at a time."""

from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path
from typing import Any

import pytest
from ledgers import TERMS

from pate_fed.errors import InputError, IntegrityError
from pate_fed.privacy import Ledger, verify


def test_file_is_private_and_alone_after_closing(path: Path, charge: Any) -> None:
    previous = os.umask(0)
    try:
        with Ledger.create(path, TERMS) as ledger:
            charge(ledger, 0)
            for name in os.listdir(path.parent):
                assert stat.S_IMODE(os.stat(path.parent / name).st_mode) == 0o600, name
    finally:
        os.umask(previous)
    assert os.listdir(path.parent) == [path.name]


def test_each_commit_is_synchronous(path: Path) -> None:
    with Ledger.create(path, TERMS) as ledger:
        connection = ledger._connection
        assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        assert connection.execute("PRAGMA synchronous").fetchone()[0] == 2


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entries SET answered = 0 WHERE seq = 1",
        "DELETE FROM entries WHERE seq = 1",
        "UPDATE released SET label = 0",
        "DELETE FROM released",
        "DELETE FROM head",
        "UPDATE head SET seq = 0",
        "INSERT OR REPLACE INTO head VALUES (1, 0, '')",
    ],
)
def test_tables_are_append_only(path: Path, statement: str, charge: Any) -> None:
    with Ledger.create(path, TERMS) as ledger:
        charge(ledger, 0)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA recursive_triggers = ON")
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        connection.execute(statement)
    connection.close()


def test_a_second_writer_is_refused_and_a_reader_is_not(path: Path, charge: Any) -> None:
    with Ledger.create(path, TERMS) as ledger:
        charge(ledger, 0)
        with pytest.raises(IntegrityError, match="another process writes this ledger"):
            Ledger.open(path)
        assert verify(path).asked == ledger.entries()[0].event.asked
        charge(ledger, 1)
        assert len(verify(path).chain.entries) == 2
    Ledger.open(path).close()


def test_nothing_is_left_where_a_ledger_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        Ledger.create(tmp_path / "absent" / "ledger.sqlite", TERMS)
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_left_is_cleared_away(path: Path, charge: Any) -> None:
    for name in (".ledger.sqlite.new", ".ledger.sqlite.new-journal", "ledger.sqlite.lock"):
        (path.parent / name).write_text("left over")
    with Ledger.create(path, TERMS) as ledger:
        charge(ledger, 0)
    assert os.listdir(path.parent) == [path.name]
