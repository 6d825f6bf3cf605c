"""The accountant of a notebook: examples run, every kind of spend is taken, what is wrong is refused."""

from __future__ import annotations

import doctest
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
from ledgers import TERMS

import pate_fed.privacy.accounting
from pate_fed.errors import InputError
from pate_fed.privacy import (
    RECORD,
    Accountant,
    BudgetFilter,
    ConfidentGNMax,
    GNMax,
    InteractiveGNMax,
    Ledger,
    LNMax,
    Protection,
    SeededNoise,
    capped_cost_epsilon,
    epsilon_of,
)
from pate_fed.privacy.mechanisms.events import to_dp_event

STUDY = ConfidentGNMax(classes=10, threshold=200, sigma1=150, sigma2=40)
TOTALS = np.tile([3, 90, 7], (20, 1))


def test_the_examples_print_what_they_say() -> None:
    assert doctest.testmod(pate_fed.privacy.accounting).failed == 0
    page = Path(pate_fed.privacy.__file__).parents[2] / "docs" / "accounting.md"
    found = doctest.testfile(str(page), module_relative=False, optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    assert found.failed == 0 and found.attempted > 15


def test_importing_it_needs_numpy_and_scipy_only() -> None:
    code = (
        "import sys\n"
        "for name in ('dp_accounting', 'opendp', 'torch', 'flwr', 'matplotlib'): sys.modules[name] = None\n"
        "import numpy as np\n"
        "from pate_fed.privacy import Accountant, GNMax\n"
        "accountant = Accountant()\n"
        "accountant.spend(GNMax(sigma=40, classes=2).release([[3, 4]], np.random.default_rng(0)).event)\n"
        "assert 0 < accountant.epsilon() < 1\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_accountant_adds_up_what_a_ledger_would() -> None:
    accountant = Accountant()
    accountant.spend(STUDY, queries=640, labels=283)
    cost = STUDY.cost(640, 283, RECORD)
    assert accountant.cost == cost
    assert accountant.epsilon(1e-5) == capped_cost_epsilon(cost, 1e-5) < epsilon_of(cost, 1e-5)
    accountant.spend(LNMax(classes=10, scale=20), queries=5)
    assert accountant.epsilon(1e-5) > capped_cost_epsilon(cost, 1e-5)
    assert repr(accountant) == "Accountant(2 releases, 645 queries, 288 labels)"
    assert Accountant().epsilon() == 0.0


def test_events_are_taken_one_by_one_or_as_a_list() -> None:
    mechanism = GNMax(sigma=9.0, classes=3)
    events = [mechanism.release(TOTALS, np.random.default_rng(seed)).event for seed in range(3)]
    one_by_one, together = Accountant(), Accountant()
    for event in events:
        one_by_one.spend(event)
    together.spend(events)
    together.spend(iter(()))
    assert one_by_one.cost == together.cost and together.events == tuple(events)
    assert "not private" in repr(together)


def test_remaining_is_what_the_filter_affords_and_is_kept() -> None:
    accountant, asked = Accountant(), 0
    while fits := accountant.remaining(STUDY, epsilon=1.5, delta=1e-6, queries=40):
        accountant.spend(STUDY, queries=fits, labels=fits // 2)
        asked += fits
    budget = BudgetFilter(1.5, 1e-6)
    assert asked > 100 and budget.holds(accountant.cost)
    assert not budget.holds(accountant.cost + STUDY.cost(1, 1, RECORD))
    assert accountant.epsilon(1e-6) <= 1.5
    paid = Accountant()
    paid.spend(dp_accounting.GaussianDpEvent(10.0))
    assert paid.remaining(STUDY, epsilon=1.5) < Accountant().remaining(STUDY, epsilon=1.5)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((3,), "a mechanism, an event or a list"),
        (([STUDY],), "spent with its queries"),
        ((STUDY,), "how many queries"),
        ((dp_accounting.NonPrivateDpEvent(),), "only Gaussian"),
        ((dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(1.0)),), "only Gaussian"),
        ((dp_accounting.GaussianDpEvent(0.0),), "only Gaussian"),
    ],
)
def test_what_cannot_be_accounted_for_is_refused_and_nothing_added(arguments: Any, says: str) -> None:
    accountant = Accountant()
    with pytest.raises(InputError, match=says):
        accountant.spend(*arguments)
    assert accountant.events == ()


def test_counts_and_protections_that_do_not_fit_are_refused() -> None:
    accountant = Accountant(protection=Protection(unit="hospital", votes_moved=2))
    event = GNMax(sigma=9.0, classes=3).release(TOTALS, SeededNoise(0)).event
    for what, given, says in (
        (STUDY, {"queries": 3, "labels": 4}, "labels=4"),
        (STUDY, {"queries": 3}, "how many labels"),
        (STUDY, {"queries": -1, "labels": 0}, "queries=-1"),
        (event, {"queries": 3}, "knows its own"),
        (event, {}, "another unit"),
        ([event, event], {}, "another unit"),
    ):
        with pytest.raises(InputError, match=says):
            accountant.spend(what, **given)
    accountant.spend(STUDY, queries=10, labels=5)
    assert accountant.epsilon() > 1.9 * _spent(STUDY, 10, 5).epsilon()
    with pytest.raises(InputError, match="delta"):
        accountant.epsilon(0.0)


def _spent(mechanism: Any, queries: int, labels: int) -> Accountant:
    accountant = Accountant()
    accountant.spend(mechanism, queries=queries, labels=labels)
    return accountant


def test_the_classes_may_be_given_in_short_and_the_teachers_left_out() -> None:
    short, full = GNMax(sigma=40, classes=10), GNMax(sigma=40, num_classes=10)
    assert short == full and hash(short) == hash(full)
    assert repr(short) == "GNMax(num_classes=10, sigma=40)"
    assert "num_teachers=250" in repr(GNMax(num_teachers=250, sigma=40, classes=10))
    for wrong in ({}, {"classes": 1}, {"classes": 3, "num_classes": 4}):
        with pytest.raises(InputError, match="classes"):
            GNMax(sigma=40, **wrong)
    with pytest.raises(InputError, match="num_teachers is missing"):
        InteractiveGNMax(classes=3, threshold=1, sigma1=1, sigma2=1, confidence=0.9)
    with pytest.raises(InputError, match="more votes than"):
        short.release([[10**9 + 1] + [0] * 9], SeededNoise(0))


def test_a_numpy_generator_is_marked_and_draws_the_same_law() -> None:
    mechanism = GNMax(sigma=3.0, classes=3)
    first, second = (mechanism.release(TOTALS, np.random.default_rng(5)) for _ in range(2))
    assert (first.label == second.label).all() and not first.event.private
    assert first.event.noise == "not private: noise of a NumPy generator"
    close = np.tile([4, 5, 0], (20_000, 1))
    shares = [
        np.bincount(mechanism.release(close, source).label, minlength=3) / 20_000
        for source in (np.random.default_rng(5), SeededNoise(1))
    ]
    assert shares[0] == pytest.approx(shares[1], abs=5 * math.sqrt(0.5 / 20_000))
    for seed in (3, None, np.random.RandomState(0)):
        with pytest.raises(InputError, match="SystemNoise"):
            mechanism.release(TOTALS, seed)  # type: ignore[arg-type]


def test_a_ledger_is_read_in_one_line_beside_its_writer(tmp_path: Path) -> None:
    mechanism, noise = TERMS.mechanisms[0], SeededNoise(0)
    with Ledger.create(tmp_path / "ledger.sqlite", TERMS) as ledger:
        release = mechanism.release(np.tile([49, 1, 0, 0], (4, 1)), noise)  # type: ignore[attr-defined]
        ledger.charge(
            release.event,
            batch_digest="a" * 64,
            index=np.arange(4),
            answered=release.answered,
            label=release.label,
        )
        read = Ledger.read(tmp_path)
        assert read.events == ledger.events() and read.epsilon == ledger.epsilon()
        assert (read.released()[2] == release.label).all()
        assert read.guaranteed == ledger.guaranteed()
    assert Ledger.read(str(tmp_path / "ledger.sqlite")).asked == 4
    assert "4 queries" in repr(read) and len(repr(read)) < 300
    with pytest.raises(InputError):
        Ledger.read(tmp_path / "nothing")
    with pytest.raises(InputError, match="has no DpEvent"):
        to_dp_event([_label_event()])


def _label_event() -> Any:
    from pate_fed.privacy import PrivacyEvent
    from pate_fed.privacy.label_dp import RandomisedResponse
    from pate_fed.privacy.protection import LABEL

    return PrivacyEvent(
        mechanism=RandomisedResponse(num_classes=3, epsilon=1.0),
        asked=3,
        answered=3,
        protection=LABEL,
        noise="x",
        private=True,
    )
