"""The ledger as a writer meets it: what is charged stays, and what may not be charged is refused."""

from __future__ import annotations

import os
import sqlite3
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from ledgers import MECHANISM, TERMS

from pate_fed.errors import BudgetError, InputError, IntegrityError
from pate_fed.privacy import (
    BudgetFilter,
    DistributedGNMax,
    GNMax,
    Ledger,
    Protection,
    Release,
    SanitiseSettings,
    epsilon_of,
    total_cost,
    verify,
)
from pate_fed.privacy.ledger.chain import coordinator_epsilon
from pate_fed.privacy.mechanisms.events import SECURE_SUM, hospital_noise


def test_what_is_charged_is_there_after_opening_again(path: Path, charge: Any) -> None:
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


def test_epsilon_is_that_of_the_events_and_never_decreases(path: Path, charge: Any) -> None:
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


def test_another_delta_is_computed_from_the_same_rows(path: Path, charge: Any) -> None:
    with Ledger.create(path, TERMS) as ledger:
        charge(ledger, 0)
        cost = total_cost(ledger.events())
        assert ledger.epsilon() == epsilon_of(cost, ledger.terms.delta)
        assert epsilon_of(cost, 1e-9) > ledger.epsilon() > epsilon_of(cost, 1e-2)
        with pytest.raises(InputError, match="delta"):
            epsilon_of(cost, 0.0)


def test_a_batch_is_charged_once(path: Path, charge: Any, release: Any) -> None:
    with Ledger.create(path, TERMS) as ledger:
        charge(ledger, 0)
        with pytest.raises(IntegrityError, match="charged before"):
            charge(ledger, 0, release(9))
        assert len(ledger.entries()) == 1
    with Ledger.open(path) as ledger, pytest.raises(IntegrityError, match="charged before"):
        charge(ledger, 0, release(9))


def test_a_ledger_is_never_begun_twice(path: Path, charge: Any) -> None:
    with Ledger.create(path, TERMS) as ledger:
        charge(ledger, 0)
    with pytest.raises(InputError, match="already holds a ledger"):
        Ledger.create(path, TERMS)
    assert os.listdir(path.parent) == [path.name]
    assert len(verify(path).chain.entries) == 1


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


def test_the_budget_is_kept_to_the_last_query(path: Path, charge: Any, release: Any) -> None:
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


def test_its_running_sums_are_those_of_all_events(path: Path, charge: Any, release: Any) -> None:
    """At every step, and after it was opened again; batches of random sizes."""
    terms = replace(TERMS, epsilon=200.0, sanitise=SanitiseSettings.at_order(1e6))
    sizes = np.random.default_rng(5).integers(1, 40, size=12)

    def check(ledger: Ledger) -> None:
        events, budget = ledger.events(), terms.budget
        assert budget is not None
        assert ledger.charged == terms.reserved + total_cost(events)
        assert (ledger.asked, ledger.answered) == (
            sum(event.asked for event in events),
            sum(event.answered for event in events),
        )
        room = [budget.affordable(MECHANISM, queries=10**6, **known) for known in _told(ledger)]
        assert room[0] == room[1] > 0
        assert budget.share_spent(charged=ledger.charged) == budget.share_spent(events)

    with Ledger.create(path, terms) as ledger:
        for batch, queries in enumerate(sizes[:8]):
            check(ledger)
            charge(ledger, batch, release(batch, queries=queries))
    with Ledger.open(path, terms=terms) as ledger:
        for batch, queries in enumerate(sizes[8:], 8):
            check(ledger)
            charge(ledger, batch, release(batch, queries=queries))
        check(ledger)


def _told(ledger: Ledger) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"charged": ledger.charged}, {"events": ledger.events()}


def test_a_spend_of_any_size_on_an_exhausted_budget_is_refused(path: Path, release: Any) -> None:
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


def test_an_event_that_the_terms_do_not_fix_is_refused(path: Path, charge: Any, release: Any) -> None:
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


def test_outputs_that_do_not_go_with_the_event_are_refused(path: Path, digest: Any, release: Any) -> None:
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


def test_charges_from_several_threads_make_one_chain(path: Path, charge: Any, digest: Any) -> None:
    with Ledger.create(path, TERMS) as ledger:
        threads = [threading.Thread(target=charge, args=(ledger, batch)) for batch in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(e.batch_digest for e in ledger.entries()) == sorted(digest(b) for b in range(8))
    assert len(verify(path).chain.entries) == 8


def test_a_failed_write_charges_nothing_and_closes_the_door(path: Path, charge: Any) -> None:
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


def test_signed_rows(path: Path, charge: Any) -> None:
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


def test_a_coordinator_killed_before_the_first_row_has_seen_the_guarantee(
    path: Path, charge: Any, release: Any
) -> None:
    mechanism = DistributedGNMax(
        num_teachers=50, num_classes=4, threshold=None, sigma_party=4, least_honest=6
    )
    seen = hospital_noise(sigma_party=4.0, survivors=8, colluders=2)
    terms = replace(TERMS, mechanisms=(mechanism,), coordinator=seen, most_asked=50, most_answered=50)
    with Ledger.create(path, terms) as ledger:
        assert ledger.guaranteed() == ledger.epsilon() == 0.0
        guaranteed = ledger.guaranteed_coordinator()
        charge(ledger, 0, release(0, mechanism=mechanism, coordinator=seen))
        spent = coordinator_epsilon(ledger.terms, ledger.events())
        assert guaranteed is not None
        assert spent is not None
        assert ledger.guaranteed_coordinator() == guaranteed > spent


def test_votes_are_not_in_the_file(path: Path, charge: Any) -> None:
    with Ledger.create(path, TERMS) as ledger:
        charge(ledger, 0)
    connection = sqlite3.connect(path)
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    row = connection.execute("SELECT * FROM entries WHERE seq = 1")
    names = {column[0] for column in row.description}
    connection.close()
    assert tables == {"entries", "released", "head"}
    assert not {name for name in names if "total" in name or "vote" in name}
