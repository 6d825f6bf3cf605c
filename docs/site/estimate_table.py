"""The estimate of `pate-fed plan` beside what runs gave: docs/results/plan-truth.json and the planner.

Where a class is thinned, all figures count each class alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from results_page import read_results
from tables import table

from pate_fed.privacy import Pool, Protection, plan
from pate_fed.privacy.planning.choice import ALONE, VOTES, Sites, Trial, Way, choose, sums_way, votes_way

PARTS = ("fitted", "drawn", "fresh")
ASKED = 2000  # public inputs of every setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """A setting: what runs gave, `alone` and `right`, and what the plan of today's code says of it."""

    of: dict[str, Any]
    right: float
    alone: float
    way: Way
    advised: str

    @property
    def off(self) -> float:
        """How far off the estimate is, in points."""
        return 100 * (self.way.expected - self.right)

    @property
    def near(self) -> bool:
        """Whether that is within the mark: 3 points of fitted settings, 5 of drawn ones."""
        return abs(self.off) <= (3 if self.of["part"] == "fitted" else 5)

    @property
    def lost(self) -> float:
        """How many points a hospital has less by the advice than by the better of both, in the runs."""
        taken = self.alone if self.advised == "alone" else self.right
        return 100 * (max(self.alone, self.right) - taken)


@cache
def truths(*, pilots: bool = True) -> list[Truth]:
    """Every setting that was run, with the pilot or by what a hospital has alone only."""
    figures = read_results()["plan-truth"]["figures"]
    tried = {_key(each["of"]): each["mean"] for each in figures if "what" in each["of"]}
    runs = [each for each in figures if "what" not in each["of"]]
    return [
        _truth(each["of"], each["mean"], tried.get(_key(each["of"])) if pilots else None) for each in runs
    ]


def _key(of: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(value for name, value in of.items() if name != "what")


def _truth(of: dict[str, Any], ran: dict[str, float], pilot: dict[str, float] | None) -> Truth:
    told = None
    if pilot is not None and of["way"] != VOTES:
        rest = {name: pilot[name] for name in ("right", "fewer", "error")}
        whole = {name: int(pilot[name]) for name in ("rows", "pool")}
        told = Trial(**whole, **rest, alike=bool(pilot["alike"]))
    right, alone = (
        ran.get(f"{name}balanced", ran[one]) for name, one in (("", "accuracy"), ("alone_", "alone"))
    )
    sites = Sites(
        hospitals=of["hospitals"],
        teachers=of["hospitals"],
        records=of["records"],
        classes=of["classes"],
        epsilon=of["epsilon"],
        delta=1e-5,
        alone=max(alone, 1.001 / of["classes"]),
        pilot=told,
        protection=Protection(unit=of["unit"]),
    )
    if of["way"] == VOTES:
        size = {"num_teachers": of["hospitals"], "num_classes": of["classes"], "protection": sites.protection}
        pool = Pool(votes=sites.agreement, max_queries=ASKED)
        offer = plan(**size, epsilon=of["epsilon"], delta=1e-5, pool=pool, num_hospitals=of["hospitals"]).best
        way = votes_way(sites, offer)
        if pilot is not None:
            way = replace(way, **{name: pilot[name] for name in ("expected", "low", "high")})
        # Of votes and a hospital alone: what class sums would give there was not run.
        advised = VOTES if way.expected - sites.accuracy(sites.records) >= 0.01 else ALONE
    else:
        way, advised = sums_way(sites), choose(sites, None).best
    return Truth(of=of, right=right, alone=alone, way=way, advised=advised)


def estimate_table() -> list[str]:
    """The lines of the table: settings beyond the marks, and the first of each data set, of `truths`."""
    rows, named = list[list[str]](), set[str]()
    for each in sorted(truths(), key=lambda truth: PARTS.index(truth.of["part"])):
        of, way = each.of, each.way
        if each.near and of["data"] in named:
            continue
        named.add(of["data"])
        unit = "" if of["unit"] == "record" else f", {of['unit']}"
        rows.append(
            [
                of["part"],
                f"{of['data']}{', thinned' * of['thinned']}, {of['classes']} classes",
                f"{of['hospitals']:,} x {of['records']:,}{unit}{', votes' * (of['way'] == VOTES)}",
                f"{of['epsilon']:g}",
                f"{100 * each.alone:.1f}",
                f"{100 * each.right:.1f}",
                f"{100 * way.expected:.1f} ({100 * way.low:.0f} to {100 * way.high:.0f})",
            ]
        )
    head = ["", "data", "hospitals x records", "ε", "alone, %", "together, %", "estimate, %"]
    return list(table(head, rows))[:-1]
