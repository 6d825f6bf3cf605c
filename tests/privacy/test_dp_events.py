"""Events of dp_accounting: ours as theirs, and theirs with their cost."""

from __future__ import annotations

from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant

from pate_fed.privacy import (
    Accountant,
    ConfidentGNMax,
    LNMax,
    epsilon_of,
)
from pate_fed.privacy.dp_events import cost_of_dp_event

STUDY = ConfidentGNMax(classes=10, threshold=200, sigma1=150, sigma2=40)


def test_dp_accounting_agrees_on_the_noisy_totals_in_both_directions() -> None:
    accountant = Accountant()
    accountant.spend(STUDY, queries=640, labels=283)
    accountant.spend(LNMax(classes=10, scale=20), queries=50)
    lowered = accountant.to_dp_event()
    theirs = RdpAccountant(orders=list(np.arange(1.5, 60, 0.25))).compose(lowered).get_epsilon(1e-5)
    ours = epsilon_of(accountant.cost.as_totals, 1e-5)
    assert ours == pytest.approx(theirs, rel=0.03)
    back = cost_of_dp_event(lowered)
    assert float(back.rho) == pytest.approx(float(accountant.cost.as_totals.rho), rel=1e-12)
    assert back.rho >= accountant.cost.as_totals.rho  # rounded against the user
    again = Accountant()
    again.spend(lowered)
    assert again.epsilon() == pytest.approx(ours, rel=1e-9) and again.epsilon() > accountant.epsilon()
    assert "1 DpEvent" in repr(again)
    assert again.to_dp_event() == dp_accounting.ComposedDpEvent([lowered])


def test_dp_events_of_every_known_kind_have_their_cost() -> None:
    events: list[Any] = [
        dp_accounting.NoOpDpEvent(),
        dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(4.0), 16),
        dp_accounting.LaplaceDpEvent(10.0),
        dp_accounting.dp_event.ZCDpEvent(0.5, 0.1),
    ]
    cost = cost_of_dp_event(dp_accounting.ComposedDpEvent(events))
    assert (float(cost.rho), float(cost.flat), cost.pure[0][1]) == (1.0, 0.1, 1)
    assert float(cost.pure[0][0]) == pytest.approx(0.1)
