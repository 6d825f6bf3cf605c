"""Votes, class sums or alone: the estimate held against what was measured, and the choice that follows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pate_fed.config.defaults import USEFUL_LABELS
from pate_fed.errors import InputError
from pate_fed.kinds.rounds import LENGTH
from pate_fed.privacy import Protection
from pate_fed.privacy.mechanisms.class_sums import class_length
from pate_fed.privacy.planning import choice
from pate_fed.privacy.planning.choice import ALONE, LABELS, SUMS, VOTES, Choice, Sites, Trial, choose
from pate_fed.privacy.planning.search import Offer
from pate_fed.privacy.protection import Shares

RESULTS = Path(__file__).parents[3] / "docs" / "results"
IN_ONE_PLACE = Shares(num_clients=4, least_voters=4, colluders=0)  # as docs/class-sums.md measured
BREAST: dict[str, Any] = {"records": 105, "classes": 2, "delta": 1e-4, "alone": 0.961}
# Alone as all records in one place: a hospital's own model is right in 71.2 % on everyone's patients.
HEART: dict[str, Any] = {"records": 172, "classes": 2, "delta": 1e-4, "alone": 0.832}
UNLIKE = {**HEART, "alone": 0.712, "pilot": Trial(rows=115, right=0.79, fewer=0.74, error=0.03, pool=230)}
ADULT: dict[str, Any] = {"records": 8140, "classes": 2, "delta": 1e-5, "alone": 0.851}
FASHION: dict[str, Any] = {"records": 15_000, "classes": 10, "delta": 1e-5}


EPSILONS = (0.3, 1.0, 3.0)


def _measured(file: str, data: str, epsilon: float) -> float:
    """The accuracy of class sums as docs/results/ has it."""
    method = "kernel" if data == "fashion-mnist" else "linear-and-kernel"
    of = {"data": data, "method": method, "epsilon": epsilon}
    figures = json.loads((RESULTS / f"{file}.json").read_text(encoding="utf-8"))["figures"]
    [accuracy] = [figure["mean"]["accuracy"] for figure in figures if figure["of"] == of]
    return float(accuracy)


def _sites(epsilon: float = 1.0, **given: Any) -> Sites:
    values = {"hospitals": 4, "teachers": 4, "records": 100, "classes": 2, "delta": 1e-5, **given}
    if values["hospitals"] == 4:
        values.setdefault("shares", IN_ONE_PLACE)
    return Sites(epsilon=epsilon, **values)


@pytest.fixture
def chosen(offers: Callable[..., list[Offer]]) -> Callable[[Sites], Choice]:
    def chosen(sites: Sites) -> Choice:
        given = {"delta": sites.delta, "agreement": sites.agreement, "pool": 9000}
        made = offers(sites.teachers, sites.classes, sites.epsilon, **given)
        return choose(sites, max(made, key=lambda offer: offer.effective_labels, default=None))

    return chosen


@pytest.mark.parametrize(
    ("data", "epsilon", "measured"),
    [
        *(
            (BREAST, epsilon, _measured("class-sums-tables", "breast cancer", epsilon))
            for epsilon in EPSILONS
        ),
        (HEART, 1.0, 0.817),
        (HEART, 3.0, 0.824),
        *((ADULT, epsilon, _measured("class-sums-tables", "adult", epsilon)) for epsilon in EPSILONS),
        *(
            (FASHION, epsilon, _measured("class-sums-fashion-mnist", "fashion-mnist", epsilon))
            for epsilon in EPSILONS
        ),
    ],
)
def test_measured_class_sums_lie_in_the_range(data: dict[str, Any], epsilon: float, measured: float) -> None:
    way = choice.sums_way(_sites(epsilon, **data))
    assert way.serves and way.low <= measured <= way.high
    assert way.high - way.low < 0.16


@pytest.mark.parametrize(
    ("epsilon", "measured"), [pytest.param(1.0, 0.791, marks=pytest.mark.slow), (4.05, 0.851)]
)
def test_measured_votes_lie_in_the_range_and_are_taken_where_they_are_near(
    epsilon: float, measured: float, chosen: Callable[[Sites], Choice]
) -> None:
    found = chosen(_sites(epsilon, **{**FASHION, "hospitals": 250, "teachers": 250, "records": 240}))
    alone, votes, sums = found.ways
    assert alone.low <= 0.773 <= alone.high and votes.low <= measured <= votes.high
    assert found.best == (VOTES if votes.expected > sums.expected else SUMS)


@pytest.mark.parametrize(
    ("given", "best"),
    [
        (BREAST, ALONE),  # 96.1 % alone, 93.5 % together
        (ADULT, ALONE),  # 85.1 and 85.5 %: nothing that is worth an ε
        (UNLIKE, SUMS),  # 71.2 and 81.7 %
        ({**UNLIKE, "teachers": 100, "epsilon": 3.0}, SUMS),  # 67 % by the votes of 100 teachers
        ({**FASHION, "hospitals": 8, "teachers": 8, "records": 7500, "alone": 0.82}, SUMS),
        ({"hospitals": 2, "teachers": 2, "records": 50}, ALONE),
        ({"records": 20}, ALONE),
    ],
)
def test_the_right_way_is_chosen(given: dict[str, Any], best: str, chosen: Callable[[Sites], Choice]) -> None:
    found = chosen(_sites(**given))
    assert found.best == best
    text = "\n".join(found.lines())
    assert f"best: {'stay ' * (best == ALONE)}{best}, as " in text and "an estimate before any data" in text
    assert ("run it: flower-simulation" in text) == (best == SUMS)


def test_more_of_anything_is_expected_to_be_worth_more() -> None:
    def expected(epsilon: float = 1.0, **given: Any) -> float:
        return choice.sums_way(_sites(epsilon, **given)).expected

    assert expected(0.5) < expected(1.0) < expected(2.0)
    assert expected(records=50) < expected(records=100) < expected(records=1000)
    assert expected(alone=0.7) < expected(alone=0.8) < expected(alone=0.9)
    whole = Protection(unit="hospital", votes_moved=1)
    assert expected(records=1000, protection=whole) < expected(records=1000)
    assert _sites(alone=0.8).accuracy(100) == pytest.approx(0.8, abs=1e-3)
    assert choice.USEFUL_LABELS == USEFUL_LABELS  # of a study's own defaults


def test_what_is_stated_of_one_alone_stands_below_all_curves() -> None:
    alone = choose(_sites(alone=0.501, records=5000), None).ways[0]
    assert alone.expected == 0.501 and alone.low <= 0.501 <= alone.high


def test_private_labels_are_compared_where_features_are_public() -> None:
    found = choose(_sites(3.0, public_features=True, records=2000), None)
    assert [way.name for way in found.ways] == [ALONE, VOTES, SUMS, LABELS]
    strict = choose(_sites(0.01, public_features=True, records=20), None)
    assert not strict.ways[-1].serves and strict.best == ALONE and strict.together is None


def test_none_of_few_hospitals_is_chosen_without_a_reason() -> None:
    found = choose(_sites(hospitals=2, teachers=2, records=50), None)
    assert "4 hospitals" in found.why and found.to_dict()["ways"][0]["name"] == ALONE


@pytest.mark.parametrize("given", [{"alone": 0.4}, {"alone": 1.2}, {"records": 0}])
def test_what_no_hospital_has_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(given))):
        _sites(**given)


def test_rounds_are_told_of_where_they_pay() -> None:
    """Chosen on MNIST's and Adult's private records (docs/class-sums.md)."""

    def told(data: dict[str, Any], epsilon: float, **changes: Any) -> str:
        return choice.sums_way(_sites(epsilon, **{**data, **changes})).rests.partition("; asked ")[2][:2]

    assert [told(FASHION, epsilon) for epsilon in EPSILONS] == ["", "3 ", "10"]
    assert [told(ADULT, epsilon) for epsilon in EPSILONS] == ["3 ", "10", "10"]
    assert not told(ADULT, 3.0, records=20_000)  # no room in 32 bits
    assert choice.MOST_COUNTED == class_length(LENGTH, "replace-one")
    assert not any(told(BREAST, epsilon) for epsilon in EPSILONS)
    patient = Protection(unit="patient", votes_moved=3, hospitals=3)
    assert not told(FASHION, 1.0, protection=patient)  # three times the noise
    assert not told(FASHION, 3.0, protection=Protection(unit="hospital", votes_moved=1))


@pytest.mark.parametrize(("epsilon", "measured"), [(1.0, 0.812), (3.0, 0.873)])
def test_what_sums_of_whole_hospitals_give_is_told_and_how_to_ask(epsilon: float, measured: float) -> None:
    """250 parties of 240 images of Fashion-MNIST, whose seeds and sizes the directions were fitted to."""
    given = {**FASHION, "hospitals": 250, "teachers": 250, "records": 240}
    whole = Protection(unit="hospital", votes_moved=1)
    in_one_place = Shares(num_clients=250, least_voters=250, colluders=0)
    way = choice.sums_way(_sites(epsilon, **given, protection=whole, shares=in_one_place))
    assert way.serves and way.low <= measured <= way.high
    assert way.rests.endswith("--aggregator class-sums --secure-sum asks for them")
