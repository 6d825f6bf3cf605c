"""The auditor: every way to tamper with a ledger is noticed, and the first bad row is named."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from ledgers import PUBLIC, forge, run, tamper

from pate_fed.errors import IntegrityError
from pate_fed.privacy import (
    Ledger,
    epsilon_of,
    total_cost,
    verify,
)
from pate_fed.privacy.ledger.rows import COLUMNS, row_hash


@pytest.fixture
def signed(made: tuple[Path, Path, str], tmp_path: Path) -> Path:
    return Path(shutil.copy(made[1], tmp_path / "signed.sqlite"))


def rehash(seq: int) -> Callable[[sqlite3.Connection], None]:
    """Give one row the hash that its changed content has."""

    def change(connection: sqlite3.Connection) -> None:
        values = connection.execute(f"SELECT {', '.join(COLUMNS)} FROM entries WHERE seq = {seq}").fetchone()
        digest = row_hash(dict(zip(COLUMNS, values, strict=True)))
        connection.execute("UPDATE entries SET hash = ? WHERE seq = ?", (digest, seq))

    return change


def swap(first: int, second: int) -> Callable[[sqlite3.Connection], None]:
    return run(
        f"UPDATE entries SET seq = -1 WHERE seq = {first}",
        f"UPDATE entries SET seq = {first} WHERE seq = {second}",
        f"UPDATE entries SET seq = {second} WHERE seq = -1",
    )


REMOVE_3 = run("DELETE FROM released WHERE seq = 3", "DELETE FROM entries WHERE seq = 3")


CLOSE_GAP = run(
    "UPDATE entries SET seq = seq - 1 WHERE seq > 3", "UPDATE released SET seq = seq - 1 WHERE seq > 3"
)


REPEAT_2 = run(
    "CREATE TEMP TABLE copied AS SELECT * FROM entries WHERE seq = 2",
    "UPDATE copied SET seq = 6, batch_digest = NULL, previous = 'x', hash = 'y'",
    "INSERT INTO entries SELECT * FROM copied",
    "UPDATE head SET seq = 6, hash = 'y'",
)


def test_an_untouched_ledger_passes(plain: Path, signed: Path) -> None:
    for path in (plain, signed):
        report = verify(path)
        assert len(report.chain.entries) == 5
        assert report.epsilon == pytest.approx(
            epsilon_of(total_cost(e.event for e in report.chain.entries), 1e-5), rel=1e-9
        )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (run("UPDATE entries SET answered = answered - 1 WHERE seq = 3"), "row 3 was changed"),
        (run("UPDATE entries SET epsilon = epsilon / 2 WHERE seq = 5"), "row 5 was changed"),
        (run("UPDATE entries SET time = 'yesterday' WHERE seq = 1"), "row 1 was changed"),
        (run("UPDATE entries SET body = replace(body, '1e-05', '1e-03') WHERE seq = 0"), "row 0 was changed"),
        (
            run("UPDATE entries SET body = replace(body, 'outcome', 'totals') WHERE seq = 0"),
            "row 0 was changed",
        ),
        (run("UPDATE entries SET asked = 'six' WHERE seq = 2"), "row 2 was changed"),
        (REMOVE_3, "row 3 was removed"),
        (lambda c: (REMOVE_3(c), CLOSE_GAP(c))[0], "row 3 was written as row 4: rows were reordered"),
        (swap(2, 4), "row 2 was written as row 4: rows were reordered"),
        (REPEAT_2, "row 6 was changed"),
        (run("DELETE FROM released WHERE seq = 5", "DELETE FROM entries WHERE seq = 5"), "row 5 was removed"),
        (run("DELETE FROM released", "DELETE FROM entries WHERE seq > 0"), "row 1 was removed"),
        (run("DELETE FROM released", "DELETE FROM entries"), "row 0 was removed"),
        (
            run("UPDATE released SET label = (label + 1) % 4 WHERE seq = 4 AND answered"),
            "row 4: the released",
        ),
        (run("UPDATE released SET query = query + 1 WHERE seq = 2 AND position = 0"), "row 2: the released"),
        (run("DELETE FROM released WHERE seq = 3 AND position = 5"), "row 3 released 6 queries; 5 are there"),
        (run("INSERT INTO released VALUES (3, 6, 0, 0, -1)"), "row 3 released 6 queries; 7 are there"),
        (run("INSERT INTO released VALUES (9, 0, 0, 0, -1)"), "belong to no row"),
        (run("UPDATE released SET label = 'x' WHERE seq = 2"), "labels of row 2 are no whole numbers"),
        (run("UPDATE released SET label = label + 0.9 WHERE seq = 4 AND answered"), "labels of row 4 are no"),
        (run("UPDATE released SET query = query + 0.5 WHERE seq = 3"), "labels of row 3 are no whole"),
        (
            run("UPDATE released SET answered = 1.7 WHERE seq = 1 AND answered"),
            "labels of row 1 are no whole",
        ),
        (
            run("UPDATE released SET position = 5.5 WHERE seq = 3 AND position = 5"),
            "labels of row 3 are no whole",
        ),
        (
            run("UPDATE released SET label = CAST(CAST(label AS TEXT) AS BLOB) WHERE seq = 5"),
            "labels of row 5 are no whole",
        ),
        (run("UPDATE entries SET signature = 'ab' WHERE seq = 2"), "row 2 has a signature, and row 0 names"),
        (run("UPDATE head SET hash = 'f'"), "row 5 was changed: the head"),
        (run("DELETE FROM head"), "the head's record is missing"),
        (run("DROP TABLE head"), "tables or the triggers"),
        (run("CREATE TRIGGER t AFTER INSERT ON entries BEGIN SELECT 1; END"), "tables or the triggers"),
    ],
)
def test_what_was_done_to_which_row(
    plain: Path, change: Callable[[sqlite3.Connection], None], says: str
) -> None:
    tamper(plain, change)
    with pytest.raises(IntegrityError) as caught:
        verify(plain)
    assert says in str(caught.value)
    assert caught.value.exit_code == 6
    with pytest.raises(IntegrityError):
        Ledger.open(plain)


def test_a_row_with_a_new_hash_breaks_the_next_one(plain: Path) -> None:
    tamper(plain, run("UPDATE entries SET answered = answered - 1 WHERE seq = 3"))
    tamper(plain, rehash(3))
    with pytest.raises(IntegrityError, match="row 3 was changed: row 4 continues another one"):
        verify(plain)


def test_dropped_triggers_are_noticed(plain: Path) -> None:
    connection = sqlite3.connect(plain)
    connection.execute("DROP TRIGGER entries_no_delete")
    connection.commit()
    connection.close()
    with pytest.raises(IntegrityError, match="append-only were changed"):
        verify(plain)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("UPDATE entries SET epsilon = epsilon / 2 WHERE seq = 2", "row 2 states ε="),
        ("UPDATE entries SET epsilon = NULL WHERE seq = 2", "row 2 holds no charge"),
        ("UPDATE entries SET epsilon = 'much' WHERE seq = 2", "row 2 holds no charge"),
        ("UPDATE entries SET body = printf('%.*c', 100000, '[') WHERE seq = 0", "row 0 does not hold"),
        ("UPDATE entries SET body = printf('%.*c', 100000, '[') WHERE seq = 3", "row 3 holds no charge"),
        ("UPDATE entries SET asked = 7 WHERE seq = 2", "row 2 released 7 queries"),
        ("UPDATE entries SET answered = 0 WHERE seq = 2", "row 2 charges 0 answers"),
        (
            "UPDATE entries SET parameters = replace(parameters, '20.0', '200.0') WHERE seq = 2",
            "row 2: the ledger's terms allow no",
        ),
        ("UPDATE entries SET noise = 'better' WHERE seq = 4", "row 4: the noise of a release"),
        ("UPDATE entries SET mechanism = 'magic' WHERE seq = 4", "row 4 holds no charge"),
        ("UPDATE entries SET kind = 'other' WHERE seq = 1", "row 1 holds no charge"),
        ("UPDATE entries SET time = CAST(time AS BLOB) WHERE seq = 3", "row 3 holds no charge"),
        ("UPDATE entries SET parameters = CAST(parameters AS BLOB) WHERE seq = 3", "row 3 holds no charge"),
        ("UPDATE entries SET version = CAST(version AS BLOB) WHERE seq = 0", "row 0 does not hold"),
        ("UPDATE entries SET body = CAST(body AS BLOB) WHERE seq = 0", "row 0 does not hold"),
        ("UPDATE entries SET body = '[]' WHERE seq = 0", "row 0 does not hold a study's terms"),
        ("UPDATE entries SET body = replace(body, '50.0', '0.5') WHERE seq = 0", "passes the budget"),
    ],
)
def test_a_chain_computed_anew_must_still_be_true_to_the_rules(plain: Path, change: str, says: str) -> None:
    tamper(plain, run(change))
    forge(plain)
    with pytest.raises(IntegrityError, match=says):
        verify(plain)


@pytest.mark.parametrize(("text", "damaged"), [("b'a'", "X'61'"), (r"\xff", "CAST(X'ff' AS TEXT)")])
def test_bytes_in_a_row_are_not_taken_for_the_text_that_they_would_be_shown_as(
    plain: Path, text: str, damaged: str
) -> None:
    def write(connection: sqlite3.Connection) -> None:
        connection.execute("UPDATE entries SET time = ? WHERE seq = 3", (text,))

    tamper(plain, write)
    forge(plain)
    assert verify(plain).chain.entries[2].time == text
    tamper(plain, run(f"UPDATE entries SET time = {damaged} WHERE seq = 3"))
    with pytest.raises(IntegrityError, match="row 3 was changed"):
        verify(plain)


def test_a_batch_charged_twice_is_noticed_also_in_a_new_chain(plain: Path) -> None:
    def charge_2_again(connection: sqlite3.Connection) -> None:
        # The file's own UNIQUE stands in the way: take it off, and put it back in words only.
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("CREATE TABLE copied AS SELECT * FROM entries")
        connection.execute(
            "UPDATE copied SET batch_digest = (SELECT batch_digest FROM copied WHERE seq = 2) WHERE seq = 4"
        )
        sql = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'entries'").fetchone()[0]
        connection.execute("DROP TABLE entries")
        connection.execute(sql.replace("UNIQUE", ""))
        connection.execute("INSERT INTO entries SELECT * FROM copied")
        connection.execute("DROP TABLE copied")

    tamper(plain, charge_2_again)
    with pytest.raises(IntegrityError, match="tables or the triggers"):
        verify(plain)
    rows = [_row(plain, seq) for seq in (2, 4)]
    assert rows[0]["batch_digest"] == rows[1]["batch_digest"]


def _row(path: Path, seq: int) -> dict[str, object]:
    connection = sqlite3.connect(path)
    values = connection.execute(f"SELECT {', '.join(COLUMNS)} FROM entries WHERE seq = {seq}").fetchone()
    connection.close()
    return dict(zip(COLUMNS, values, strict=True))


def test_a_signature_shows_a_chain_computed_anew(plain: Path, signed: Path) -> None:
    for path in (plain, signed):
        tamper(path, run("UPDATE entries SET time = 'yesterday' WHERE seq = 3"))
        forge(path)
    verify(plain)  # What the docstring says is not noticed without a signature.
    with pytest.raises(IntegrityError, match="row 3 is not signed by the ledger's key"):
        verify(signed)


@pytest.mark.parametrize("spelling", ["upper(signature)", "' ' || signature", "CAST(signature AS BLOB)"])
def test_a_signature_spelled_otherwise_was_changed(signed: Path, spelling: str) -> None:
    """No hash covers it; hexadecimal digits are read in many spellings, and one was written."""
    tamper(signed, run(f"UPDATE entries SET signature = {spelling} WHERE seq = 4"))
    with pytest.raises(IntegrityError, match="row 4 is not signed by the ledger's key"):
        verify(signed)


def test_a_forger_with_a_key_of_his_own_is_noticed_by_who_knows_the_right_one(signed: Path) -> None:
    other = Ed25519PrivateKey.generate().public_key().public_bytes_raw().hex()
    with pytest.raises(IntegrityError, match="row 0 was not signed"):
        verify(signed, public_key=other)
    tamper(signed, run("UPDATE entries SET signature = NULL WHERE seq = 5"))
    with pytest.raises(IntegrityError, match="row 5 is not signed"):
        verify(signed, public_key=PUBLIC)


def test_a_head_kept_elsewhere_shows_an_older_copy(plain: Path, made: tuple[Path, Path, str]) -> None:
    last = verify(plain).chain.head
    assert verify(plain, head=last).chain.head == last
    assert verify(plain, head=made[2]).chain.head == last
    cut = "DELETE FROM released WHERE seq > 3", "DELETE FROM entries WHERE seq > 3"
    tamper(plain, run(*cut))
    forge(plain)
    assert len(verify(plain).chain.entries) == 3  # An older state, whole in itself.
    with pytest.raises(IntegrityError, match="no row has the hash"):
        verify(plain, head=last)
    assert verify(plain, head=made[2])


def test_a_read_only_folder_can_be_audited(plain: Path) -> None:
    plain.chmod(0o400)
    plain.parent.chmod(0o500)
    try:
        assert verify(plain).asked == 30
        assert os.listdir(plain.parent) == [plain.name]
    finally:
        plain.parent.chmod(0o700)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_no_flipped_byte_changes_what_the_ledger_says(
    made: tuple[Path, Path, str], data: st.DataObject
) -> None:
    before = verify(made[0])
    raw = bytearray(made[0].read_bytes())
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] ^= data.draw(st.integers(1, 255))
    # Hypothesis runs many examples in one test, so each gets its own file.
    path = made[0].with_name(f"flipped-{place}.sqlite")
    path.write_bytes(raw)
    try:
        after = verify(path)
    except IntegrityError:
        pass
    else:  # A byte that SQLite does not use, such as one of a free page or a counter in the header.
        assert json.dumps(after.to_dict()) == json.dumps(before.to_dict())
        assert after.chain.entries == before.chain.entries
    finally:
        for left in path.parent.glob(path.name + "*"):
            left.unlink()


@pytest.mark.parametrize(
    ("name", "stated"),
    [
        ("vanishing", 1.8224142922288908),
        pytest.param("one_vote", 0.09085430440573558, marks=pytest.mark.slow),
        pytest.param("several_votes", 4.123651660149919, marks=pytest.mark.slow),
        pytest.param("caps_and_budget", 0.07611704125430974, marks=pytest.mark.slow),
    ],
)
def test_a_ledger_of_much_noise_that_an_earlier_version_wrote_verifies(
    name: str, stated: float, tmp_path: Path
) -> None:
    """Noise of 152 to 256 votes, whose lattices are evaluated otherwise today: one vote, 20 votes, caps."""
    path = tmp_path / f"{name}.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript((Path(__file__).parent / "earlier" / f"{name}.sql").read_text())
    connection.close()
    found = verify(path).epsilon
    assert found is not None
    assert 0.99 * stated < found <= stated
