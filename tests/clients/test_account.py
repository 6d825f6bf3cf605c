"""A hospital's account over all its studies: written before, durable, and never passed."""

from __future__ import annotations

import sqlite3
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from builders import make_label_terms, make_terms, vary

from clients.account import PUBLIC, Account, StudyCost, account_folder, state_id, total_epsilon
from clients.policy import Policy
from pate_fed.errors import InputError
from pate_fed.kinds.terms import Terms
from pate_fed.protocol.messages import Refusal

RECORD = "record, replace-one"
TERMS = make_terms(sigma1=12.0, sigma2=8.0, labels=4, max_queries=4)  # little noise is computed fast, few too


def _total(account: Account, target: str = RECORD) -> float:
    counted = [each.cost for each in account.bookings() if each.asked]
    total = total_epsilon(counted, target, PUBLIC, delta=1e-5)
    assert total is not None
    return total


def _book(account: Account, terms: Terms, *, state: str = "here", policy: Policy | None = None) -> object:
    return account.book(terms, state=state, data="records.csv", policy=policy)


def test_a_study_is_booked_once_across_restarts_and_twice_without_its_memory(tmp_path: Path) -> None:
    for _ in range(2):
        assert _book(Account("north", folder=tmp_path / "account"), TERMS) is None
    account = Account("north", folder=tmp_path / "account")
    [booked] = account.bookings()
    assert (booked.study, booked.data, booked.asked) == ("s", "records.csv", True)
    once = _total(account)
    # Whoever lost what it answered answers anew, with other noise.
    _book(account, TERMS, state="a folder that was made anew")
    assert len(account.bookings()) == 2 and _total(account) > once
    assert stat.S_IMODE(account.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(account.path.parent.stat().st_mode) == 0o700
    assert Account("east", folder=tmp_path / "account").bookings() == []


def test_an_account_that_can_only_be_read_is_found_before_anyone_is_connected_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account, connect = Account("north", folder=tmp_path), sqlite3.connect
    account.check()
    _book(account, TERMS)
    account.check()  # nothing of it is changed
    assert len(account.bookings()) == 1

    def reading(path: Path, **options: Any) -> sqlite3.Connection:
        """As SQLite opens a file that its user may not write."""
        return connect(f"{path.as_uri()}?mode=ro", uri=True, **options)

    monkeypatch.setattr(sqlite3, "connect", reading)
    with pytest.raises(InputError, match=r"north\.sqlite: .* cannot be used \(attempt to write a readonly"):
        account.check()


def test_a_study_that_would_pass_the_limit_is_refused_before_it_begins(tmp_path: Path) -> None:
    account = Account("north", folder=tmp_path)
    one = total_epsilon_of(TERMS)
    policy = Policy(epsilon_public_total=one * 1.05, delta=1e-5)
    assert _book(account, TERMS, policy=policy) is None
    found = _book(account, vary(TERMS, study="t"), policy=policy)
    assert isinstance(found, tuple)
    refusal, sentence = found
    assert refusal is Refusal.POLICY_TOTAL
    assert "1 study before it" in sentence and "(epsilon_public_total)" in sentence
    assert len(account.bookings()) == 1
    # It can be asked beforehand, and then nothing is booked; the study that is on it already still fits.
    assert account.objection(vary(TERMS, study="t"), policy=policy) == found
    assert account.objection(TERMS, policy=policy) is None
    assert account.objection(vary(TERMS, study="t"), policy=Policy()) is None
    assert len(account.bookings()) == 1
    # The same study goes on; and another hospital policy may allow the other.
    assert _book(account, TERMS, policy=policy) is None
    assert _book(account, vary(TERMS, study="t"), policy=Policy(epsilon_public_total=one * 3)) is None
    # Where the policy was made stricter since, a study that is under way is refused, too.
    assert _book(account, TERMS, policy=policy) is not None


def total_epsilon_of(terms: Terms) -> float:
    found = total_epsilon([StudyCost.of(terms)], RECORD, PUBLIC, delta=1e-5)
    assert found is not None
    return found


def test_what_the_coordinator_sees_without_noise_passes_any_limit(tmp_path: Path) -> None:
    found = _book(Account("north", folder=tmp_path), TERMS, policy=Policy(epsilon_coordinator_total=1e6))
    assert isinstance(found, tuple) and "without a bound" in found[1]


def test_another_unit_is_no_way_around_the_limit(tmp_path: Path) -> None:
    """A study of labels counts what studies of records cost, and theirs are held to the labels' sum."""
    account, labels = Account("north", folder=tmp_path), make_label_terms()
    policy = Policy(epsilon_public_total=1.1, delta=1e-5)
    first = account.book(labels, state="labels", data="labels.csv", policy=policy)
    assert first is None
    assert isinstance(_book(account, TERMS, policy=policy), tuple)
    wider = vary(TERMS, study="t", unit="hospital")
    assert isinstance(_book(account, wider, policy=policy), tuple)
    assert _book(account, TERMS, policy=Policy(epsilon_public_total=4.0, delta=1e-5)) is None
    assert isinstance(account.book(vary(labels, study="l2"), state="x", data="", policy=policy), tuple)


def test_an_answer_that_serves_several_studies_is_booked_once(tmp_path: Path) -> None:
    account, first = Account("north", folder=tmp_path), make_label_terms()
    policy = Policy(epsilon_public_total=1.1, delta=1e-5)
    for terms in (first, vary(first, study="l2"), vary(first, least_clients=3), first):
        assert account.book(terms, state="labels", data="", policy=policy) is None
    [booked] = account.bookings()
    assert booked.terms_digest == first.digest and booked.asked
    account.strike(vary(first, study="l2"), state="labels")
    assert not account.bookings()[0].asked
    _book(account, TERMS, state="both")  # what is no such answer, in one state directory
    assert account.book(first, state="both", data="", policy=None) is None
    assert [each.cost.about_labels for each in account.bookings()] == [True, False, True]


def test_each_units_sum_is_held_whichever_study_came_first(tmp_path: Path) -> None:
    """A study of records costs a whole hospital more: in a sum for hospitals it counts with that."""
    records = vary(TERMS, study="t", teachers_per_client=3)
    hospitals = vary(records, study="u", unit="hospital")
    alone = StudyCost.of(hospitals)
    most = total_epsilon([alone], alone.stated, PUBLIC, delta=1e-5)
    assert most is not None
    policy = Policy(epsilon_public_total=most * 1.1, delta=1e-5)
    for place, (first, second) in enumerate([(records, hospitals), (hospitals, records)]):
        account = Account("north", folder=tmp_path / str(place))
        assert _book(account, first, policy=policy) is None
        found = _book(account, second, policy=policy)
        assert isinstance(found, tuple) and "for one hospital, replace-one" in found[1]
    # Twice for records alone is within the limit.
    account = Account("east", folder=tmp_path)
    assert _book(account, records, policy=policy) is None
    assert _book(account, vary(records, study="v"), policy=policy) is None


def test_only_what_was_never_asked_is_struck_and_counts_again_when_it_is(tmp_path: Path) -> None:
    account = Account("north", folder=tmp_path)
    _book(account, TERMS)
    account.strike(TERMS, state="here")
    [booked] = account.bookings()
    assert not booked.asked
    _book(account, TERMS)
    assert account.bookings()[0].asked


def test_studies_that_begin_at_once_share_one_limit(tmp_path: Path) -> None:
    policy = Policy(epsilon_public_total=total_epsilon_of(TERMS) * 1.05, delta=1e-5)

    def begin(number: int) -> object:
        return _book(Account("north", folder=tmp_path), vary(TERMS, study=f"s{number}"), policy=policy)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(begin, range(4)))
    assert found.count(None) == 1 and len(Account("north", folder=tmp_path).bookings()) == 1


def test_an_account_that_cannot_be_used_stops_the_study(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="XDG_STATE_HOME"):
        Account("north", folder=tmp_path / "file").check()
    (tmp_path / "north.sqlite").write_bytes(b"no database" * 100)
    account = Account("north", folder=tmp_path)
    for use in (account.check, account.bookings):
        with pytest.raises(InputError, match="privacy account cannot be used"):
            use()


def test_a_row_that_is_not_readable_is_never_left_out(tmp_path: Path) -> None:
    account = Account("north", folder=tmp_path)
    _book(account, TERMS)
    with sqlite3.connect(account.path) as connection:
        connection.execute("UPDATE studies SET costs = '{}'")
        connection.execute("UPDATE studies SET costs = '{\"record, replace-one\": {}}'")
    connection.close()
    with pytest.raises(InputError, match="not readable"):
        _book(account, vary(TERMS, study="t"), policy=Policy(epsilon_public_total=9.0))


def test_it_lies_in_the_users_state_home_and_a_state_directory_keeps_its_name(tmp_path: Path) -> None:
    assert Account("north").path == account_folder() / "north.sqlite"
    assert account_folder().parts[-2:] == ("pate_fed", "account")
    assert state_id(tmp_path) == state_id(tmp_path)
