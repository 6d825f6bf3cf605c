"""The estimate of `pate-fed plan` beside what was measured, out of docs/results/ and the planner."""

from __future__ import annotations

from typing import Any

from results_page import read_results
from tables import table

from pate_fed.privacy import Pool, plan
from pate_fed.privacy.planning.choice import Sites, Way, sums_way, votes_way
from pate_fed.privacy.protection import Shares

# As docs/class-sums.md measured: noise in one place; alone as all records of a hospital there.
_SUMS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "breast cancer": (
        "class-sums-tables",
        {"data": "breast cancer", "method": "linear-and-kernel"},
        {"records": 105, "classes": 2, "delta": 1e-4, "alone": 0.961, "shift": 0.0},
    ),
    "Adult": (
        "class-sums-tables",
        {"data": "adult", "method": "linear-and-kernel"},
        {"records": 8140, "classes": 2, "delta": 1e-5, "alone": 0.851, "shift": 0.0},
    ),
    "Fashion-MNIST": (
        "class-sums-fashion-mnist",
        {"data": "fashion-mnist", "method": "kernel"},
        {"records": 15_000, "classes": 10, "delta": 1e-5, "shift": 0.0},
    ),
}


def estimate_table() -> list[str]:
    """The lines of the table: what was measured, ε, right, and the estimate's range."""
    rows = []
    for name, (file, of, given) in _SUMS.items():
        for epsilon in (0.3, 1.0, 3.0):
            shares = Shares(num_clients=4, least_voters=4, colluders=0)
            way = sums_way(Sites(hospitals=4, teachers=4, epsilon=epsilon, shares=shares, **given))
            right = _right(file, {**of, "epsilon": epsilon})
            rows.append(_row(f"{name}, 4 x {given['records']:,}, class sums", epsilon, right, way))
    for epsilon in (1, 4.05):
        of = {"teacher": "encoder-head", "student": "encoder-head", "ε": epsilon}
        right = _right("fashion-mnist-frontier", of)
        rows.append(_row("Fashion-MNIST, 250 x 240, votes", epsilon, right, _votes(epsilon)))
    return list(table(["measured", "ε", "right, %", "range, %"], rows))[:-1]


def _votes(epsilon: float) -> Way:
    given: dict[str, Any] = {**_SUMS["Fashion-MNIST"][2], "records": 240}
    sites = Sites(hospitals=250, teachers=250, epsilon=epsilon, **given)
    pool = Pool(votes=sites.agreement, max_queries=9000)
    made = plan(num_teachers=250, num_classes=10, epsilon=epsilon, delta=1e-5, pool=pool)
    return votes_way(sites, made.best)


def _right(file: str, of: dict[str, Any]) -> float:
    [figure] = [each for each in read_results()[file]["figures"] if of.items() <= each["of"].items()]
    return float(figure["mean"]["accuracy"])


def _row(name: str, epsilon: float, right: float, way: Way) -> list[str]:
    if way.low is None or way.high is None or not way.low <= right <= way.high:
        raise ValueError(f"{name} at ε {epsilon:g}: {right} is not in the estimate's range")
    return [name, f"{epsilon:g}", f"{100 * right:.1f}", f"{100 * way.low:.0f} to {100 * way.high:.0f}"]
