"""ε of the same caps by each accountant, side by side."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest
from ledgers import TERMS

from pate_fed.privacy import ConfidentGNMax, InteractiveGNMax, Ledger, LNMax, Protection, SanitiseSettings
from pate_fed.privacy.ledger.report import accountants, describe, second_opinions, verify_run
from pate_fed.privacy.ledger.terms import LedgerTerms, guaranteed_epsilon
from pate_fed.privacy.mechanisms.class_sums import ClassSums
from pate_fed.privacy.mechanisms.events import SECURE_SUM

DEFAULT = ConfidentGNMax(num_teachers=250, num_classes=10, threshold=200, sigma1=150, sigma2=40)


def _study(**changes: object) -> LedgerTerms:
    return replace(TERMS, mechanisms=(DEFAULT,), delta=1e-5, most_asked=2000, most_answered=500, **changes)


def _all(terms: LedgerTerms) -> dict[str, float]:
    return {each.name: each.epsilon for each in (*accountants(terms), *second_opinions(terms))}


def test_accountants_of_the_same_caps_stand_beside_each_other() -> None:
    terms = _study()
    names = [each.name for each in accountants(terms)]
    assert names == [
        "optimal control",
        "RDP of outcomes",
        "control of whole queries",
        "Gaussian DP of continuous totals",
        "RDP of noisy totals",
    ]
    found = _all(terms)
    assert found["optimal control"] == guaranteed_epsilon(terms) <= 2.85
    assert found["RDP of outcomes"] == pytest.approx(3.032, abs=0.002)
    assert found["RDP of noisy totals"] == pytest.approx(3.900, abs=0.002)
    assert found["Gaussian DP of continuous totals"] == pytest.approx(3.6052, abs=0.0002)
    assert found["PLD of continuous totals"] == pytest.approx(3.6053, abs=0.0002)
    assert found["PLD of the integer noise"] == pytest.approx(3.6053, abs=0.0005)
    assert all(each.holds_for in each.line() for each in accountants(terms))


def test_whole_queries_are_charged_where_each_vector_was_checked() -> None:
    terms = replace(_study(), most_asked=1250)
    assert (
        _all(terms)["control of whole queries"]
        == guaranteed_epsilon(terms)
        == pytest.approx(2.485, abs=0.002)
    )
    assert guaranteed_epsilon(replace(terms, coordinator=SECURE_SUM)) == pytest.approx(2.756, abs=0.002)
    for other in (
        {"protection": Protection(unit="hospital", adjacency="add-or-remove-one")},
        {"sanitise": SanitiseSettings.at_order(14.0)},
        {"mechanisms": (DEFAULT, InteractiveGNMax(**asdict(DEFAULT), confidence=0.9))},
    ):
        assert "control of whole queries" not in _all(replace(terms, **other))


def test_what_an_accountant_does_not_know_it_leaves_out() -> None:
    assert _all(replace(_study(), most_asked=None)) == {}
    sanitised = _all(_study(sanitise=SanitiseSettings.at_order(14.0)))
    assert set(sanitised) == {"RDP of outcomes", "RDP of noisy totals", "optimal control"}
    laplace = replace(_study(), mechanisms=(LNMax(num_teachers=250, num_classes=10, scale=20.0),))
    assert set(_all(laplace)) == {
        "RDP of outcomes",
        "RDP of noisy totals",
        "optimal control",
        "PLD of the integer noise",
    }


def test_of_class_sums_the_noise_is_accounted_for_and_no_votes() -> None:
    sums = ClassSums(num_classes=3, dimension=20, squared_norm=1024, sigma=200.0)
    terms = replace(TERMS, mechanisms=(sums,), most_asked=90, most_answered=90)
    found = {each.name: each for each in accountants(terms)}
    assert set(found) == {
        "exact law of the noise",
        "RDP of the noise",
        "Gaussian DP of continuous totals",
    }
    assert found["exact law of the noise"].epsilon == guaranteed_epsilon(terms)
    assert found["exact law of the noise"].epsilon < found["RDP of the noise"].epsilon
    assert not any("votes" in each.holds_for for each in found.values())


def test_show_lists_all_of_them_and_verify_those_of_this_package(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "ledger.sqlite", _study()):
        pass
    shown, checked = describe(tmp_path / "ledger.sqlite"), verify_run(tmp_path)
    for name, epsilon in _all(_study()).items():
        line = next(line for line in shown if f" {name}: " in line)
        assert f"{epsilon:.3f}"[:3] in line
        assert any(f" {name}: " in other for other in checked.lines()) is ("PLD" not in name)
    assert checked.to_dict()["caps"] == {each.name: each.epsilon for each in accountants(_study())}
