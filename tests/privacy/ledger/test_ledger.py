"""The ledger as a writer meets it: what is charged stays, and what may not be charged is refused."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import stat
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pate_fed.errors import BudgetError, InputError, IntegrityError
from pate_fed.privacy import (
    SECURE_SUM,
    BudgetFilter,
    ConfidentGNMax,
    DistributedGNMax,
    GNMax,
    InteractiveGNMax,
    Ledger,
    LedgerTerms,
    LNMax,
    PrivacyEvent,
    Protection,
    Release,
    SeededNoise,
    describe,
    epsilon_of,
    epsilon_text,
    guaranteed_epsilon,
    hospital_noise,
    total_cost,
    verify,
)

MECHANISM = ConfidentGNMax(num_teachers=50, num_classes=4, threshold=30, sigma1=20, sigma2=10)
TERMS = LedgerTerms(
    study_digest="ab" * 32,
    delta=1e-5,
    mechanisms=(MECHANISM,),
    protection=Protection(),
    noise=SeededNoise(0).kind,
    private=False,
)


def digest(batch: int) -> str:
    return hashlib.sha256(f"batch {batch}".encode()).hexdigest()


def release(seed: int, *, queries: int = 20, mechanism: Any = MECHANISM, **options: Any) -> Release:
    totals = np.random.default_rng(seed).multinomial(50, [0.7, 0.1, 0.1, 0.1], size=queries)
    made: Release = mechanism.release(totals, SeededNoise(seed), **options)
    return made


def charge(ledger: Ledger, batch: int, made: Release | None = None) -> Release:
    made = release(batch) if made is None else made
    index = np.arange(made.asked) + 100 * batch
    ledger.charge(
        made.event, batch_digest=digest(batch), index=index, answered=made.answered, label=made.label
    )
    return made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


def test_what_is_charged_is_there_after_opening_again(path: Path) -> None:
    with Ledger.create(path, TERMS) as ledger:
        made = [charge(ledger, batch) for batch in range(3)]
        before = ledger.released(), ledger.entries(), ledger.epsilon(), ledger.head
    with Ledger.open(path, terms=TERMS) as ledger:
        index, answered, label = ledger.released()
        assert (ledger.entries(), ledger.epsilon(), ledger.head) == before[1:]
        assert all(np.array_equal(a, b) for a, b in zip(ledger.released(), before[0], strict=True))
        charge(ledger, 3)
    assert np.array_equal(label, np.concatenate([part.label for part in made]))
    assert np.array_equal(answered, np.concatenate([part.answered for part in made]))
    assert np.array_equal(index, np.concatenate([np.arange(p.asked) + 100 * b for b, p in enumerate(made)]))
    assert len(verify(path).chain.entries) == 4


def test_epsilon_is_that_of_the_events_and_never_decreases(path: Path) -> None:
    with Ledger.create(path, TERMS) as ledger:
        readings = [ledger.epsilon()]
        for batch in range(6):
            charge(ledger, batch)
            readings.append(ledger.epsilon())
        events = ledger.events()
    assert readings[0] == 0
    assert readings == sorted(readings)
    assert readings[-1] == pytest.approx(epsilon_of(total_cost(events), 1e-5), rel=1e-12)
    assert [entry.epsilon for entry in verify(path).chain.entries] == readings[1:]


def test_another_delta_is_computed_from_the_same_rows(path: Path) -> None:
    with Ledger.create(path, TERMS) as ledger:
        charge(ledger, 0)
        assert ledger.epsilon(1e-9) > ledger.epsilon() > ledger.epsilon(1e-2)
        with pytest.raises(InputError, match="delta"):
            ledger.epsilon(0.0)


def test_file_is_private_and_alone_after_closing(path: Path) -> None:
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
def test_tables_are_append_only(path: Path, statement: str) -> None:
    with Ledger.create(path, TERMS) as ledger:
        charge(ledger, 0)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA recursive_triggers = ON")
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        connection.execute(statement)
    connection.close()


def test_a_batch_is_charged_once(path: Path) -> None:
    with Ledger.create(path, TERMS) as ledger:
        charge(ledger, 0)
        with pytest.raises(IntegrityError, match="charged before"):
            charge(ledger, 0, release(9))
        assert len(ledger.entries()) == 1
    with Ledger.open(path) as ledger, pytest.raises(IntegrityError, match="charged before"):
        charge(ledger, 0, release(9))


def test_a_second_writer_is_refused_and_a_reader_is_not(path: Path) -> None:
    with Ledger.create(path, TERMS) as ledger:
        charge(ledger, 0)
        with pytest.raises(IntegrityError, match="another process writes this ledger"):
            Ledger.open(path)
        assert verify(path).asked == ledger.entries()[0].event.asked
        charge(ledger, 1)
        assert len(verify(path).chain.entries) == 2
    Ledger.open(path).close()


def test_a_ledger_is_never_begun_twice(path: Path) -> None:
    with Ledger.create(path, TERMS) as ledger:
        charge(ledger, 0)
    with pytest.raises(InputError, match="already holds a ledger"):
        Ledger.create(path, TERMS)
    assert os.listdir(path.parent) == [path.name]
    assert len(verify(path).chain.entries) == 1


def test_nothing_is_left_where_a_ledger_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        Ledger.create(tmp_path / "absent" / "ledger.sqlite", TERMS)
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_left_is_cleared_away(path: Path) -> None:
    for name in (".ledger.sqlite.new", ".ledger.sqlite.new-journal", "ledger.sqlite.lock"):
        (path.parent / name).write_text("left over")
    with Ledger.create(path, TERMS) as ledger:
        charge(ledger, 0)
    assert os.listdir(path.parent) == [path.name]


def test_opening_nothing_or_another_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no ledger"):
        Ledger.open(tmp_path / "ledger.sqlite")
    other = tmp_path / "other.sqlite"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE t (x)")
    connection.close()
    for refused in (Ledger.open, verify):
        with pytest.raises(IntegrityError, match="no pate_fed ledger"):
            refused(other)
    (tmp_path / "text").write_text("not a database, but long enough to be looked at" * 20)
    for refused in (Ledger.open, verify):
        with pytest.raises(IntegrityError, match="damaged"):
            refused(tmp_path / "text")


def test_the_budget_is_kept_to_the_last_query(path: Path) -> None:
    terms = replace(TERMS, epsilon=1.0)
    budget = BudgetFilter(1.0, 1e-5)
    with Ledger.create(path, terms) as ledger:
        batch = 0
        while fits := budget.affordable(MECHANISM, events=ledger.events(), queries=7):
            charge(ledger, batch, release(batch, queries=fits))
            batch += 1
        spent = ledger.epsilon()
        assert 0.9 < spent <= 1.0
        # The worst case of one more query does not fit; a whole batch of answers is refused, however it came.
        with pytest.raises(BudgetError, match="would be passed"):
            charge(ledger, batch, release(0, queries=30))
        assert (ledger.epsilon(), len(ledger.entries())) == (spent, batch)
    assert verify(path).epsilon == spent


def test_a_spend_of_any_size_on_an_exhausted_budget_is_refused(path: Path) -> None:
    tiny = GNMax(num_teachers=50, num_classes=4, sigma=1e9)
    first = BudgetFilter(1.0, 1e-5)
    # A budget that one batch uses up to the last bit that an exact sum can tell.
    exact = first.room / first.protection.l2_squared
    made = release(0, queries=5, mechanism=tiny)
    cost = total_cost([made.event])
    times = int(exact / (cost.rdp(_order(first)) / first.protection.l2_squared))
    assert first.holds(cost * times)
    assert not first.holds(cost * (times + 1))
    with pytest.raises(BudgetError):
        first.require(cost * (times + 1))


def _order(budget: BudgetFilter) -> Any:
    from fractions import Fraction

    return Fraction(budget.order)


def test_an_event_that_the_terms_do_not_fix_is_refused(path: Path) -> None:
    other = replace(MECHANISM, sigma2=10.5)
    events = [
        release(0, mechanism=other),
        release(0, protection=Protection(votes_moved=2)),
        release(0, protection=Protection(unit="hospital")),
        release(0, coordinator=SECURE_SUM),
    ]
    noisy = release(0)
    events.append(_with_event(noisy, replace(noisy.event, noise="dice", private=True)))
    with Ledger.create(path, TERMS) as ledger:
        for made in events:
            with pytest.raises(IntegrityError):
                charge(ledger, 0, made)
        assert ledger.entries() == ()


def _with_event(made: Release, event: Any) -> Release:
    return Release(
        asked=made.asked, answered=made.answered, label=made.label, reinforced=made.reinforced, event=event
    )


def test_outputs_that_do_not_go_with_the_event_are_refused(path: Path) -> None:
    made = release(0)
    good: dict[str, Any] = {
        "batch_digest": digest(0),
        "index": np.arange(made.asked),
        "answered": made.answered,
        "label": made.label,
    }
    unanswered = int(np.flatnonzero(~made.answered)[0])
    told = made.label.copy()
    told[unanswered] = 2
    bad = {
        "short": {"index": np.arange(made.asked - 1)},
        "fractional": {"index": np.arange(made.asked) + 0.5},
        "negative": {"index": np.arange(made.asked) - 1},
        "bits as numbers": {"answered": made.answered.astype(int)},
        "other bits": {"answered": ~made.answered},
        "label of an unanswered query": {"label": told},
        "no class": {"label": np.where(made.answered, 4, -1)},
        "no label": {"label": np.full(made.asked, -1)},
        "no digest": {"batch_digest": "abc"},
        "digest in capitals": {"batch_digest": digest(0).upper()},
    }
    with Ledger.create(path, TERMS) as ledger:
        for name, change in bad.items():
            with pytest.raises(InputError):
                ledger.charge(made.event, **{**good, **change})
                pytest.fail(name)
        empty = replace(made.event, asked=0, answered=0)
        nothing: dict[str, Any] = {"batch_digest": digest(0), "index": [], "answered": [], "label": []}
        with pytest.raises(InputError, match="no query"):
            ledger.charge(empty, **nothing)
        assert ledger.epsilon() == 0
        ledger.charge(made.event, **good)


def test_charges_from_several_threads_make_one_chain(path: Path) -> None:
    with Ledger.create(path, TERMS) as ledger:
        threads = [threading.Thread(target=charge, args=(ledger, batch)) for batch in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(e.batch_digest for e in ledger.entries()) == sorted(digest(b) for b in range(8))
    assert len(verify(path).chain.entries) == 8


def test_a_failed_write_charges_nothing_and_closes_the_door(path: Path) -> None:
    ledger = Ledger.create(path, TERMS)
    charge(ledger, 0)
    ledger._connection.execute("PRAGMA query_only = ON")
    with pytest.raises(IntegrityError, match="could not be written"):
        charge(ledger, 1)
    with pytest.raises(IntegrityError, match="open the ledger again"):
        charge(ledger, 2)
    ledger.close()
    ledger.close()
    with pytest.raises(InputError, match="closed"):
        charge(ledger, 3)
    with Ledger.open(path) as again:
        charge(again, 1)
        assert len(again.entries()) == 2


def test_terms_of_another_study_are_refused(path: Path) -> None:
    Ledger.create(path, TERMS).close()
    with pytest.raises(IntegrityError, match="other terms"):
        Ledger.open(path, terms=replace(TERMS, delta=1e-6))
    Ledger.open(path, terms=TERMS).close()


@pytest.mark.parametrize(
    "change",
    [
        {"delta": 0.0},
        {"delta": 1.0},
        {"delta": float("nan")},
        {"epsilon": 0.0},
        {"epsilon": -1.0},
        {"epsilon": float("inf")},
        {"epsilon": float("nan")},
        {"study_digest": "x"},
        {"mechanisms": ()},
    ],
)
def test_bad_terms_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        replace(TERMS, **change)


def test_every_mechanism_and_protection_comes_back_from_the_file(path: Path) -> None:
    rest = {"num_teachers": 50, "num_classes": 4}
    mechanisms = (
        MECHANISM,
        GNMax(**rest, sigma=np.float64(12.5)),
        LNMax(**rest, scale=20),
        InteractiveGNMax(**rest, threshold=np.float32(25), sigma1=9, sigma2=7, confidence=0.9),
    )
    odd = np.int64(3), np.float32(4), np.int8(8)  # NumPy's numbers, as callers may have them
    protection = Protection(unit="hospital", votes_moved=odd[0])  # type: ignore[arg-type]
    seen = hospital_noise(sigma_party=odd[1], survivors=odd[2], colluders=2)  # type: ignore[arg-type]
    terms = replace(
        TERMS, mechanisms=mechanisms, protection=protection, coordinator=seen, delta=1e-9, epsilon=1e6
    )
    predictions = np.full((20, 4), 0.25)
    with Ledger.create(path, terms) as ledger:
        assert ledger.terms == terms
        for batch, mechanism in enumerate(mechanisms):
            options: dict[str, Any] = {"protection": protection, "coordinator": replace(seen, survivors=9)}
            if isinstance(mechanism, InteractiveGNMax):
                options["predictions"] = predictions
            charge(ledger, batch, release(batch, mechanism=mechanism, **options))
        events, seen_epsilon = ledger.events(), ledger.coordinator_epsilon()
        few = release(9, protection=protection, coordinator=replace(seen, survivors=7))
        with pytest.raises(IntegrityError, match="coordinator"):
            charge(ledger, 9, few)
    with Ledger.open(path, terms=terms) as ledger:
        assert ledger.events() == events
        assert ledger.coordinator_epsilon() == seen_epsilon
        assert seen_epsilon is not None and seen_epsilon > 0


def test_signed_rows(path: Path) -> None:
    key, other = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes_raw().hex()
    with Ledger.create(path, TERMS, key=key) as ledger:
        charge(ledger, 0)
    report = verify(path, public_key=public)
    assert report.chain.public_key == public
    assert any(public in line for line in report.lines())
    with pytest.raises(InputError, match="signed; give"):
        Ledger.open(path)
    with pytest.raises(InputError, match="another key"):
        Ledger.open(path, key=other)
    with pytest.raises(IntegrityError, match="not signed by the key"):
        verify(path, public_key=other.public_key().public_bytes_raw().hex())
    with Ledger.open(path, key=key) as ledger:
        charge(ledger, 1)
    assert len(verify(path, public_key=public).chain.entries) == 2


def test_an_unsigned_ledger_is_not_signed_halfway(path: Path) -> None:
    Ledger.create(path, TERMS).close()
    with pytest.raises(InputError, match="halfway"):
        Ledger.open(path, key=Ed25519PrivateKey.generate())


def test_in_words(path: Path) -> None:
    with Ledger.create(path, replace(TERMS, epsilon=3.0)) as ledger:
        made = charge(ledger, 0)
    text = "\n".join(describe(path))
    assert "one record replaced (one vote of a query moves)" in text
    assert "Against another hospital, whatever it knows of its own votes: as against the student" in text
    assert "Against the coordinator: no bound: it sees every hospital's votes" in text
    assert "not private: seeded noise" in text
    assert "Nobody is protected" in text
    assert "Budget: ε=3.0" in text
    assert f"{made.asked} queries asked, {made.event.answered} answered" in text
    assert "sigma1=20, sigma2=10" in text
    report = verify(path).to_dict()
    assert report["spent"]["coordinator"] is report["promised"]["coordinator"] is None
    assert report["spent"]["student"] == verify(path).epsilon < report["promised"]["student"] == 3.0
    assert "(3, 1e-05)-differential privacy" in text
    assert "fixed before the first query by the budget ε=3" in text
    assert report["queries_asked"] == made.asked


def test_a_coordinator_killed_before_the_first_row_has_seen_what_was_promised(path: Path) -> None:
    mechanism = DistributedGNMax(
        num_teachers=50, num_classes=4, threshold=None, sigma_party=4, least_honest=6
    )
    seen = hospital_noise(sigma_party=4.0, survivors=8, colluders=2)
    terms = replace(TERMS, mechanisms=(mechanism,), coordinator=seen, most_asked=50, most_answered=50)
    with Ledger.create(path, terms) as ledger:
        assert ledger.guaranteed() == ledger.epsilon() == 0.0
        promised = ledger.guaranteed_coordinator()
        charge(ledger, 0, release(0, mechanism=mechanism, coordinator=seen))
        spent = ledger.coordinator_epsilon()
        assert promised is not None
        assert spent is not None
        assert ledger.guaranteed_coordinator() == promised > spent


def test_in_words_with_hospital_noise(path: Path) -> None:
    mechanism = DistributedGNMax(
        num_teachers=50, num_classes=4, threshold=None, sigma_party=4, least_honest=6
    )
    seen = hospital_noise(sigma_party=4.0, survivors=8, colluders=2)
    with Ledger.create(path, replace(TERMS, mechanisms=(mechanism,), coordinator=seen)) as ledger:
        charge(ledger, 0, release(0, mechanism=mechanism, coordinator=seen))
        assert ledger.coordinator_epsilon() == ledger.epsilon() > 0
    text = "\n".join(describe(path))
    shown = epsilon_text(verify(path).epsilon)
    assert f"Against the coordinator: ({shown}, 1e-05)-differential privacy" in text
    assert "while at most 2 hospitals tell it their noise: it sees only noisy totals of every query" in text
    assert "also for 2 hospitals together" in text


def test_votes_are_not_in_the_file(path: Path) -> None:
    with Ledger.create(path, TERMS) as ledger:
        charge(ledger, 0)
    connection = sqlite3.connect(path)
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    row = connection.execute("SELECT * FROM entries WHERE seq = 1")
    names = {column[0] for column in row.description}
    connection.close()
    assert tables == {"entries", "released", "head"}
    assert not {name for name in names if "total" in name or "vote" in name}


def test_caps_are_kept_and_fix_the_promise_beforehand(path: Path) -> None:
    capped = replace(TERMS, epsilon=None, most_asked=25, most_answered=12)
    promise = guaranteed_epsilon(capped)
    worst = PrivacyEvent(
        mechanism=MECHANISM,
        asked=25,
        answered=12,
        protection=TERMS.protection,
        noise=TERMS.noise,
        private=TERMS.private,
    )
    assert promise == epsilon_of(worst.cost(), TERMS.delta)
    assert guaranteed_epsilon(replace(capped, epsilon=promise / 2)) == promise / 2
    assert guaranteed_epsilon(replace(TERMS, epsilon=None)) is None
    with Ledger.create(path, capped) as ledger:
        assert ledger.guaranteed() == 0.0
        charge(ledger, 0)
        assert ledger.guaranteed() == promise > ledger.epsilon() > 0
        with pytest.raises(IntegrityError, match="40 queries in all: the ledger's terms allow 25"):
            charge(ledger, 1)
        assert len(ledger.entries()) == 1
    assert "at most 25 queries and 12 labels" in "\n".join(describe(path))


def test_a_mechanism_without_a_bound_for_the_unit_is_refused_at_once() -> None:
    gone = Protection(unit="hospital", adjacency="add-or-remove-one")
    mechanism = DistributedGNMax(
        num_teachers=50, num_classes=4, threshold=None, sigma_party=4, least_honest=6
    )
    seen = hospital_noise(sigma_party=4.0, survivors=8, colluders=2)
    with pytest.raises(InputError, match="takes its noise along"):
        replace(TERMS, mechanisms=(mechanism,), coordinator=seen, protection=gone)
