"""What tests of ledgers begin with: a mechanism of 50 teachers on four classes, terms, and a key.

Also how somebody changes a ledger who knows SQLite and this program.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pate_fed.privacy import ConfidentGNMax, LedgerTerms, Protection, SeededNoise
from pate_fed.privacy.ledger.rows import COLUMNS, row_hash

MECHANISM = ConfidentGNMax(num_teachers=50, num_classes=4, threshold=30, sigma1=20, sigma2=10)
TERMS = LedgerTerms(
    study_digest="ab" * 32,
    delta=1e-5,
    mechanisms=(MECHANISM,),
    protection=Protection(),
    noise=SeededNoise(0).kind,
    private=False,
)
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes_raw().hex()


def tamper(path: Path, change: Callable[[sqlite3.Connection], None]) -> None:
    """Change the file as somebody would who knows SQLite, and put the triggers back afterwards."""
    connection = sqlite3.connect(path)
    triggers = connection.execute("SELECT tbl_name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for _, sql in triggers:
        connection.execute(f"DROP TRIGGER {sql.split()[2]}")
    change(connection)
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    for table, sql in triggers:
        if table in tables:
            connection.execute(sql)
    connection.commit()
    connection.close()


def run(*statements: str) -> Callable[[sqlite3.Connection], None]:
    """The change that these statements make."""

    def change(connection: sqlite3.Connection) -> None:
        for statement in statements:
            connection.execute(statement)

    return change


def forge(path: Path) -> None:
    """Compute the whole chain anew, as somebody who knows this program can."""

    def change(connection: sqlite3.Connection) -> None:
        previous = "0" * 64
        connection.execute("UPDATE entries SET previous = 'before ' || seq, hash = 'of ' || seq")
        rows = connection.execute(f"SELECT {', '.join(COLUMNS)} FROM entries ORDER BY seq").fetchall()
        for values in rows:
            row = {**dict(zip(COLUMNS, values, strict=True)), "previous": previous}
            previous = row_hash(row)
            connection.execute(
                "UPDATE entries SET previous = ?, hash = ? WHERE seq = ?",
                (row["previous"], previous, row["seq"]),
            )
        connection.execute("UPDATE head SET seq = ?, hash = ?", (len(rows) - 1, previous))

    tamper(path, change)
