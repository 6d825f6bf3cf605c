"""The budget is never passed, by however little, and every ε is rounded up."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import dp_accounting
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from mnist_events import MNIST, MUCH_NOISE, REST, event, mechanisms

from pate_fed.errors import BudgetError, InputError
from pate_fed.privacy import (
    BudgetFilter,
    ConfidentGNMax,
    DistributedGNMax,
    GNMax,
    PrivacyEvent,
    Protection,
    SanitiseSettings,
    epsilon_of,
    odometer,
    total_cost,
)
from pate_fed.privacy.bounds.cost import Cost
from pate_fed.privacy.checks import check_delta

protections = st.builds(
    Protection,
    unit=st.sampled_from(["record", "hospital"]),
    adjacency=st.sampled_from(["replace-one", "add-or-remove-one"]),
    votes_moved=st.integers(1, 6),
)


from pate_fed.privacy.protection import RECORD

epsilons = st.floats(1e-3, 60)


deltas = st.floats(1e-12, 0.1)


def has_a_bound(mechanism: Any, protection: Protection) -> bool:
    return not (isinstance(mechanism, DistributedGNMax) and protection.votes_vanish)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(epsilons, deltas, protections, st.data())
def test_no_run_passes_its_budget(
    epsilon: float, delta: float, protection: Protection, data: st.DataObject
) -> None:
    """Any mechanisms in any order, any answer bits: what the filter lets through stays within the budget."""
    budget = BudgetFilter(epsilon, delta, protection)
    events: list[PrivacyEvent] = []
    for _ in range(data.draw(st.integers(1, 4))):
        mechanism = data.draw(mechanisms)
        assume(has_a_bound(mechanism, protection))
        cap = data.draw(st.one_of(st.none(), st.integers(0, 200)))
        fits = budget.affordable(
            mechanism, events=events, queries=data.draw(st.integers(0, 1000)), max_answers=cap
        )
        answered = (
            fits
            if mechanism.answers_all
            else data.draw(st.integers(0, min(fits, fits if cap is None else cap)))
        )
        if fits:
            events.append(event(mechanism, fits, answered, protection))
        total = total_cost(events)
        budget.require(total)
        assert epsilon_of(total, delta, orders=[budget.order]) <= epsilon


@settings(max_examples=10, deadline=None, derandomize=True)
@given(epsilons, deltas, mechanisms, protections, st.one_of(st.none(), st.integers(1, 300)))
@example(2.0, 1e-5, MUCH_NOISE[0], Protection(), 90)
@example(2.0, 1e-5, MUCH_NOISE[1], Protection(unit="hospital"), None)
def test_as_much_is_let_through_as_fits(
    epsilon: float, delta: float, mechanism: Any, protection: Protection, cap: int | None
) -> None:
    assume(has_a_bound(mechanism, protection))
    budget = BudgetFilter(epsilon, delta, protection)
    fits = budget.affordable(mechanism, queries=10_000, max_answers=cap)

    def worst(queries: int) -> Cost:
        answers = queries if cap is None else min(queries, cap)
        asked = answers if mechanism.answers_all else queries
        return event(mechanism, asked, answers, protection).cost()

    assert budget.holds(worst(fits))
    stopped = mechanism.answers_all and fits == cap
    assert fits == 10_000 or stopped or not budget.holds(worst(fits + 1))


def test_a_budget_that_no_query_fits_is_seen_at_the_start() -> None:
    small = ConfidentGNMax(num_teachers=8, num_classes=10, threshold=6, sigma1=5, sigma2=1.28)
    assert BudgetFilter(0.1, 1e-5).affordable(small, queries=100) == 0
    assert BudgetFilter(5e-324, 1e-5).affordable(MNIST, queries=100) == 0
    assert BudgetFilter(2.0, 1e-5).affordable(MNIST, queries=0) == 0
    assert BudgetFilter(2.0, 1e-5).affordable(MNIST, queries=5, max_answers=0) == 0


def test_what_fits_a_small_budget() -> None:
    budget = BudgetFilter(2.0, 1e-5)
    totals: Any = Free(MNIST.cost_asked(RECORD).as_totals, MNIST.cost_answered(RECORD).as_totals)
    assert budget.affordable(totals, queries=10_000) == 167
    assert budget.affordable(MNIST, queries=10_000) == 260
    # With a cap on answers the rest of the budget goes into the check, which is cheaper.
    assert budget.affordable(totals, queries=10_000, max_answers=100) == 2058
    assert budget.affordable(MNIST, queries=10_000, max_answers=100) == 4818
    assert BudgetFilter(2.0, 1e-5).affordable(GNMax(**REST, sigma=40), queries=10_000, max_answers=100) == 100


def test_unanswered_queries_give_their_reserve_back() -> None:
    budget = BudgetFilter(2.0, 1e-5)
    full = budget.affordable(MNIST, queries=10_000)
    spared = budget.affordable(MNIST, events=[event(MNIST, 50, 0)], queries=10_000)
    spent = budget.affordable(MNIST, events=[event(MNIST, 50, 50)], queries=10_000)
    assert spent == full - 50 < spared < full


def test_a_reserved_cost_is_paid_first() -> None:
    free = BudgetFilter(2.0, 1e-5)
    release = SanitiseSettings.at_order(free.order).cost()
    tight = BudgetFilter(2.0, 1e-5, reserved=release)
    without, within = (budget.affordable(MNIST, queries=10_000) for budget in (free, tight))
    # What is missing is the release's RDP at the budget's order, in queries.
    one = total_cost([event(MNIST, 1, 1)]).rdp(Fraction(free.order))
    assert without - within == pytest.approx(release.flat / one, abs=1)
    assert 0 < within < without
    spent = release + total_cost([event(MNIST, within, within)])
    assert tight.holds(spent)
    assert not tight.holds(spent + total_cost([event(MNIST, 1, 1)]))
    assert epsilon_of(spent, 1e-5, orders=[tight.order]) <= 2.0


def test_a_reserved_cost_that_the_budgets_order_does_not_know_is_refused() -> None:
    order = BudgetFilter(2.0, 1e-5).order
    with pytest.raises(InputError, match="known up to"):
        BudgetFilter(2.0, 1e-5, reserved=SanitiseSettings.at_order(order / 2).cost())


@pytest.mark.parametrize("size", [5e-324, 1e-300, 1e-30])
def test_a_subnormal_spend_on_an_exhausted_budget_is_refused(size: float) -> None:
    budget = BudgetFilter(2.0, 1e-5)
    exhausted = Cost(budget.room / Fraction(budget.order))
    budget.require(exhausted)
    assert epsilon_of(exhausted, 1e-5, orders=[budget.order]) <= 2.0
    with pytest.raises(BudgetError, match="would be passed"):
        budget.require(exhausted + Cost(Fraction(size)))
    # Many of them count, where floats would lose each one.
    assert not budget.holds(exhausted + Cost(Fraction(size)) * 10**6)


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan, None, "2", True])
def test_a_bad_budget_is_refused(value: Any) -> None:
    with pytest.raises(InputError, match="epsilon="):
        BudgetFilter(value, 1e-5)


@pytest.mark.parametrize("value", [0.0, 1.0, -1e-5, math.inf, math.nan, None, "1e-5", True])
def test_a_bad_delta_is_refused(value: Any) -> None:
    for make in (
        check_delta,
        lambda d: odometer([], d),
        lambda d: BudgetFilter(1.0, d),
        lambda d: epsilon_of(Cost(Fraction(1)), d),
    ):
        with pytest.raises(InputError, match="delta="):
            make(value)


def test_bad_questions_are_refused() -> None:
    budget = BudgetFilter(2.0, 1e-5)
    for counts in ({"queries": -1}, {"queries": 1.5}, {"queries": 3, "max_answers": -1}):
        with pytest.raises(InputError):
            budget.affordable(MNIST, **counts)  # type: ignore[arg-type]
    other = event(MNIST, 1, 1, Protection(unit="hospital"))
    with pytest.raises(InputError, match="protects another"):
        budget.affordable(MNIST, events=[other], queries=3)


class Free:
    """A mechanism that claims to cost nothing, or less."""

    name, num_teachers, num_classes, answers_all = "free", 10, 3, False

    def __init__(self, asked: Cost, answered: Cost) -> None:
        self.asked, self.answered = asked, answered

    def cost_asked(self, protection: Protection) -> Cost:
        return self.asked

    def cost_answered(self, protection: Protection) -> Cost:
        return self.answered


def test_a_mechanism_that_claims_no_cost_is_refused() -> None:
    gift = Cost(Fraction(-1, 100))
    for asked, answered in ((Cost(), Cost()), (gift, Cost()), (gift, Cost(Fraction(1)))):
        with pytest.raises(InputError, match="cost of"):
            BudgetFilter(2.0, 1e-5).affordable(Free(asked, answered), queries=3)  # type: ignore[arg-type]


def test_filter_agrees_with_dp_accounting_on_gaussian_events() -> None:
    budget = BudgetFilter(3.0, 1e-6)
    totals: Any = Free(GNMax(**REST, sigma=40).cost_asked(RECORD).as_totals, Cost())
    fits = budget.affordable(totals, queries=100_000)
    accountant = dp_accounting.rdp.RdpAccountant(orders=[budget.order])
    one = dp_accounting.GaussianDpEvent(40 / math.sqrt(2))
    accountant.compose(one, fits)
    assert accountant.get_epsilon(1e-6) <= 3.0 + 1e-9
    accountant.compose(one, 1)
    assert accountant.get_epsilon(1e-6) > 3.0


@settings(max_examples=15, deadline=None, derandomize=True)
@given(epsilons, deltas, protections, st.data())
def test_a_running_sum_is_what_all_events_add_up_to(
    epsilon: float, delta: float, protection: Protection, data: st.DataObject
) -> None:
    """Kept from release to release, it decides exactly as the sum over all events does, at every step."""
    release = SanitiseSettings.at_order(1e7).cost() if data.draw(st.booleans()) else Cost()
    budget = BudgetFilter(epsilon, delta, protection, release)
    known: list[PrivacyEvent] = []
    running = release
    for _ in range(data.draw(st.integers(1, 12))):
        mechanism = data.draw(mechanisms)
        assume(has_a_bound(mechanism, protection))
        asked = data.draw(st.integers(0, 300))
        made = event(mechanism, asked, data.draw(st.integers(0, asked)), protection=protection)
        known.append(made)
        running = running + made.cost()
        queries, cap = data.draw(st.integers(0, 2000)), data.draw(st.none() | st.integers(0, 500))
        wanted: dict[str, Any] = {"queries": queries, "max_answers": cap}
        assert budget.affordable(mechanism, charged=running, **wanted) == budget.affordable(
            mechanism, events=known, **wanted
        )
        assert budget.share_spent(charged=running) == budget.share_spent(known)


def test_events_and_their_sum_are_not_added() -> None:
    budget, made = BudgetFilter(2.0, 1e-5), event(MNIST, 5, 2)
    with pytest.raises(InputError, match="both given"):
        budget.affordable(MNIST, events=[made], charged=made.cost(), queries=3)
