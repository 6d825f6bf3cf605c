"""PATE-FM's plan: what its caps cost, and what it releases."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pate_fed.errors import InputError
from pate_fed.kinds.label_dp.pate_fm import plan_pate_fm, shares_of_labels
from pate_fed.privacy import SeededNoise
from pate_fed.privacy.bounds.conversion import confident_rho, gaussian_dp_epsilon
from pate_fed.privacy.bounds.cost import epsilon_of


@pytest.mark.parametrize("epsilon", [pytest.param(0.05, marks=pytest.mark.slow), 0.5, 2.0])
def test_pate_fms_caps_cost_the_budget(epsilon: float) -> None:
    plan = plan_pate_fm(num_teachers=100, num_classes=10, epsilon=epsilon, delta=1e-5)
    assert 0.99 * epsilon < plan.epsilon <= epsilon
    mechanism = plan.mechanism
    rho = confident_rho(plan.asked, plan.answered, sigma1=mechanism.sigma1, sigma2=mechanism.sigma2)
    # By outcome: above 2/π of the exact Gaussian DP of the noisy totals, and well below what those cost.
    limit = gaussian_dp_epsilon(math.sqrt(2 * rho * 2 / math.pi), 1e-5)
    assert 0.7 * epsilon < limit < epsilon
    from dp_accounting import dp_event
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant()
    accountant.compose(dp_event.GaussianDpEvent(mechanism.sigma1), plan.asked)
    accountant.compose(dp_event.GaussianDpEvent(mechanism.sigma2 / math.sqrt(2)), plan.answered)
    assert plan.epsilon < 0.95 * accountant.get_epsilon(1e-5)


def test_pate_fm_pays_for_what_it_asks_and_labels_no_more() -> None:
    plan = plan_pate_fm(num_teachers=40, num_classes=4, epsilon=3.0, delta=1e-5, labels=10)
    totals = np.zeros((20, 4), dtype=np.int64)
    totals[np.arange(20), np.arange(20) % 4] = 40
    found = plan.release(totals, SeededNoise(0))
    assert found.asked <= plan.asked == 20 and found.answered.sum() == 10 == (found.label >= 0).sum()
    assert epsilon_of(found.event.cost(), 1e-5) <= plan.epsilon
    assert plan.labelled(np.arange(4), SeededNoise(0)).epsilon == plan.epsilon
    with pytest.raises(InputError, match="21 queries"):
        plan.release(np.tile(totals[0], (21, 1)), SeededNoise(0))
    shares = shares_of_labels(100, 7, seed=0)
    assert sorted(np.concatenate(shares).tolist()) == list(range(100))
    with pytest.raises(InputError, match="--teachers 101"):
        shares_of_labels(100, 101, seed=0)
