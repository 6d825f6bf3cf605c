"""What terms mean for privacy: the mechanism, what the coordinator sees, and the most that a study costs."""

from __future__ import annotations

import pytest
from builders import make_terms, vary

from pate_fed.errors import InputError
from pate_fed.kinds.terms import worst_epsilon
from pate_fed.kinds.votes import make_interactive, make_mechanism
from pate_fed.privacy import DistributedGNMax
from pate_fed.privacy.mechanisms.distributed import party_sigma
from pate_fed.privacy.mechanisms.events import PLAIN, SECURE_SUM

MASKED = make_terms(secure_sum=True)
NOISY = vary(MASKED, noise_at="hospitals", sigma_party=party_sigma(5.0, parties=8, colluders=1), colluders=1)
PLAIN_VOTES = make_terms(aggregator="gnmax", teachers_per_client=5, sigma2=20.0, labels=4, max_queries=6)


def test_each_way_of_the_votes_has_its_view() -> None:
    assert vary(MASKED, secure_sum=False).view(10) == PLAIN
    assert MASKED.view(10) == SECURE_SUM
    mechanism = make_mechanism(NOISY)
    assert isinstance(mechanism, DistributedGNMax)
    assert (mechanism.least_honest, mechanism.threshold) == (7, 6.0)
    everything = make_mechanism(vary(NOISY, aggregator="gnmax"))
    assert isinstance(everything, DistributedGNMax) and everything.threshold is None
    with pytest.raises(InputError, match="lnmax"):
        make_mechanism(vary(NOISY, aggregator="lnmax"))


def test_later_rounds_ask_with_the_noise_of_the_first() -> None:
    assert make_interactive(MASKED) is None
    asked = vary(make_terms(), aggregator="interactive-gnmax")
    first, later = make_mechanism(asked), make_interactive(asked)
    assert later is not None
    names = ("threshold", "sigma1", "sigma2")
    assert [later.parameters()[name] for name in names] == [first.parameters()[name] for name in names]


def test_a_budget_in_the_terms_bounds_the_worst_case() -> None:
    worst = worst_epsilon(PLAIN_VOTES)[0]
    assert worst is not None
    budget = 0.9 * worst
    assert worst_epsilon(vary(PLAIN_VOTES, epsilon=budget))[0] == budget
    more = worst_epsilon(vary(PLAIN_VOTES, max_queries=9, labels=9))[0]
    assert more is not None and more > worst
    with pytest.raises(InputError, match="not even one query"):
        worst_epsilon(vary(PLAIN_VOTES, epsilon=0.01))
