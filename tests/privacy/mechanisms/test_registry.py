"""Mechanisms by name and parameters, as studies and ledgers keep them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pate_fed.errors import InputError
from pate_fed.privacy import ConfidentGNMax, DistributedGNMax, GNMax, InteractiveGNMax, LNMax
from pate_fed.privacy.mechanisms.registry import MECHANISMS, mechanism_from_parameters

REST: dict[str, Any] = {"num_teachers": 100, "num_classes": 3}


STILL = 1e-6  # A noise scale at which no draw differs from 0.


CONFIDENT = ConfidentGNMax(**REST, threshold=60, sigma1=STILL, sigma2=STILL)


def always() -> list[Any]:
    """Mechanisms that answer every query."""
    return [LNMax(**REST, scale=STILL), GNMax(**REST, sigma=STILL)]


INTERACTIVE = InteractiveGNMax(**REST, threshold=40, sigma1=STILL, sigma2=STILL, confidence=0.9)


DISTRIBUTED = DistributedGNMax(**REST, threshold=60.0, sigma_party=4.0, least_honest=8)


def test_mechanisms_come_back_from_their_parameters() -> None:
    made = [*always(), CONFIDENT, INTERACTIVE, DISTRIBUTED, replace(DISTRIBUTED, threshold=None)]
    assert {mechanism.name for mechanism in made} == set(MECHANISMS)
    for mechanism in made:
        assert mechanism_from_parameters(mechanism.name, mechanism.parameters()) == mechanism
    with pytest.raises(InputError, match="must be one of"):
        mechanism_from_parameters("magic", {})
    with pytest.raises(InputError, match="has the parameters"):
        mechanism_from_parameters("gnmax", {"sigma": 3.0})


def test_equal_mechanisms_have_equal_parameters() -> None:
    plain, odd = (
        GNMax(**REST, sigma=40),
        GNMax(num_teachers=np.int32(100), num_classes=3, sigma=np.float64(40)),
    )
    assert plain == odd
    assert repr(plain.parameters()) == repr(odd.parameters())
