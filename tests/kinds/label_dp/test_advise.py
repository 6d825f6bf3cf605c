"""The advice is the paper's."""

from __future__ import annotations

from typing import Any

import pytest

from pate_fed.errors import InputError
from pate_fed.kinds.label_dp import options as module
from pate_fed.kinds.label_dp.options import advise
from pate_fed.kinds.label_dp.pate_fm import PateFM, plan_pate_fm


@pytest.fixture(scope="module")
def plan() -> PateFM:
    """One plan of a vote for all cases: a search of seconds, that no method is chosen by."""
    return plan_pate_fm(num_teachers=800, num_classes=10, epsilon=8.0, delta=1e-5)


@pytest.mark.parametrize(
    ("epsilon", "classes", "records", "compute", "method"),
    [
        (0.003, 10, 50_000, False, "noise-cluster"),  # section 6, point 1, on CIFAR-10
        (1.0, 100, 50_000, True, "pate-fm+aug-descent"),  # point 2, CIFAR-100
        (1.0, 100, 50_000, False, "noise-cluster"),  # Table 4: 34.5 % against 8.3 %
        (1.0, 10, 50_000, False, "randres+denoise-ssl"),  # point 3, CIFAR-10
        (0.5, 10, 90_000, False, "randres+denoise-ssl"),  # Table 5, CINIC-10
        (6.0, 100, 50_000, False, "randres+aug-descent"),  # Table 4
        (8.0, 10, 50_000, False, "lp-1st"),  # point 3
    ],
)
def test_advice_is_the_papers(
    epsilon: float,
    classes: int,
    records: int,
    compute: bool,
    method: str,
    plan: PateFM,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[dict[str, Any]] = []

    def planned(**given: Any) -> PateFM:
        asked.append(given)
        return plan

    monkeypatch.setattr(module, "plan_pate_fm", planned)
    found = advise(
        epsilon=epsilon, delta=1e-5, num_classes=classes, records=records, abundant_compute=compute
    )
    assert found.method == method
    text = "\n".join(found.lines())
    assert f"--method {method}" in text and "σ=" in text
    budget = {"epsilon": epsilon, "delta": 1e-5, "num_classes": classes}
    assert asked == [{**budget, "num_teachers": 800}]


def test_advice_needs_sense() -> None:
    with pytest.raises(InputError, match="records=5"):
        advise(epsilon=1, delta=1e-5, num_classes=10, records=5)
    with pytest.raises(InputError, match="epsilon"):
        advise(epsilon=0, delta=1e-5, num_classes=10, records=500)
