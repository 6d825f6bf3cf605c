"""Terms of a ledger: what they refuse, and the ε that they guarantee."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ledgers import MECHANISM, TERMS

from pate_fed.errors import BudgetError, InputError, IntegrityError
from pate_fed.privacy import (
    ConfidentGNMax,
    DistributedGNMax,
    Ledger,
    LedgerTerms,
    PrivacyEvent,
    Protection,
    SanitiseSettings,
    SeededNoise,
    epsilon_of,
    verify,
)
from pate_fed.privacy.ledger.report import describe
from pate_fed.privacy.ledger.terms import checked_query, guaranteed_epsilon
from pate_fed.privacy.mechanisms.events import hospital_noise


@pytest.mark.parametrize(
    "change",
    [
        {"delta": 0.0},
        {"delta": 1.0},
        {"delta": float("nan")},
        {"epsilon": 0.0},
        {"epsilon": -1.0},
        {"epsilon": float("inf")},
        {"epsilon": float("nan")},
        {"study_digest": "x"},
        {"mechanisms": ()},
        {"by_patient": "yes"},
    ],
)
def test_bad_terms_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        replace(TERMS, **change)


def test_an_unknown_number_of_teachers_takes_no_memory() -> None:
    """A mechanism of the Python API that names none counts a billion; more never cost more than apart."""
    noise: dict[str, Any] = {"num_classes": 10, "threshold": 200.0, "sigma1": 150.0, "sigma2": 40.0}
    few, unknown = ConfidentGNMax(num_teachers=250, **noise), ConfidentGNMax(**noise)
    terms = replace(TERMS, epsilon=None, mechanisms=(few,), most_asked=25, most_answered=12)
    other = replace(terms, mechanisms=(unknown,))
    assert checked_query(terms) is not None and checked_query(other) is None
    stated, apart = guaranteed_epsilon(terms), guaranteed_epsilon(other)
    assert stated is not None and apart is not None and stated < apart < 1.2 * stated


def test_caps_are_kept_and_fix_the_guarantee_beforehand(path: Path, charge: Any) -> None:
    capped = replace(TERMS, epsilon=None, most_asked=25, most_answered=12)
    guarantee = guaranteed_epsilon(capped)
    worst = PrivacyEvent(
        mechanism=MECHANISM,
        asked=25,
        answered=12,
        protection=TERMS.protection,
        noise=TERMS.noise,
        private=TERMS.private,
    )
    assert guarantee == epsilon_of(worst.cost(), TERMS.delta)
    assert guaranteed_epsilon(replace(capped, epsilon=guarantee / 2)) == guarantee / 2
    assert guaranteed_epsilon(replace(TERMS, epsilon=None)) is None
    with Ledger.create(path, capped) as ledger:
        assert ledger.guaranteed() == 0.0
        charge(ledger, 0)
        assert ledger.guaranteed() == guarantee > ledger.epsilon() > 0
        with pytest.raises(IntegrityError, match="40 queries in all: the ledger's terms allow 25"):
            charge(ledger, 1)
        assert len(ledger.entries()) == 1
    assert "at most 25 queries and 12 labels" in "\n".join(describe(path))


def test_a_mechanism_without_a_bound_for_the_unit_is_refused_at_once() -> None:
    gone = Protection(unit="hospital", adjacency="add-or-remove-one")
    mechanism = DistributedGNMax(
        num_teachers=50, num_classes=4, threshold=None, sigma_party=4, least_honest=6
    )
    seen = hospital_noise(sigma_party=4.0, survivors=8, colluders=2)
    with pytest.raises(InputError, match="takes its noise along"):
        replace(TERMS, mechanisms=(mechanism,), coordinator=seen, protection=gone)


BUDGETED = replace(TERMS, epsilon=50.0)


def test_terms_survive_their_own_text() -> None:
    assert LedgerTerms.from_dict(json.loads(json.dumps(BUDGETED.to_dict()))) == BUDGETED
    assert LedgerTerms.from_dict(replace(BUDGETED, epsilon=None).to_dict()).budget is None


def test_a_sanitised_release_is_paid_from_the_first_row_on(tmp_path: Path) -> None:
    settings = SanitiseSettings.at_order(BUDGETED.budget.order if BUDGETED.budget else 0.0)
    epsilons = []
    for number, sanitise in enumerate((None, settings)):
        path = tmp_path / f"{number}.sqlite"
        with Ledger.create(path, replace(BUDGETED, sanitise=sanitise)) as ledger:
            before = ledger.epsilon()
            assert (before > 0) == (sanitise is not None)
            totals = np.random.default_rng(0).multinomial(50, [0.7, 0.1, 0.1, 0.1], size=6)
            out = MECHANISM.release(totals, SeededNoise(0))
            ledger.charge(
                out.event,
                batch_digest="ab" * 32,
                index=np.arange(6),
                answered=out.answered,
                label=out.label,
            )
            assert ledger.epsilon() > before
        report = verify(path)
        assert report.chain.terms.sanitise == sanitise
        epsilons.append(report.epsilon)
        assert any("A data-dependent" in line for line in describe(path)) == (sanitise is not None)
    # Its RDP is added at every order, and orders above its own are lost.
    assert epsilons[1] >= epsilons[0] + float(settings.cost().flat) > epsilons[0]


def test_whether_patients_are_named_is_a_term_as_any_other(tmp_path: Path) -> None:
    for begun in (False, True):
        path = tmp_path / f"{begun}.sqlite"
        Ledger.create(path, replace(TERMS, by_patient=begun)).close()
        assert verify(path).chain.terms.by_patient is begun
        Ledger.open(path, terms=replace(TERMS, by_patient=begun)).close()
        with pytest.raises(IntegrityError, match="other terms"):
            Ledger.open(path, terms=replace(TERMS, by_patient=not begun))


def test_terms_of_an_earlier_version_which_charged_totals_are_refused() -> None:
    values = TERMS.to_dict()
    assert LedgerTerms.from_dict(values) == TERMS
    for earlier in ({**values, "charged": "totals"}, {k: v for k, v in values.items() if k != "charged"}):
        with pytest.raises(IntegrityError, match="earlier version, which charged noisy totals; go on with"):
            LedgerTerms.from_dict(earlier)


def test_caps_that_keep_the_budget_are_stopped_by_nothing_before(path: Path) -> None:
    """The filter works at one Rényi order, and has less room than the caps' own bound."""
    capped = replace(TERMS, most_asked=300, most_answered=150)
    stated = guaranteed_epsilon(capped)
    assert stated is not None
    kept, missed = (replace(capped, epsilon=epsilon) for epsilon in (stated, 0.999 * stated))
    assert kept.caps_keep_budget and not missed.caps_keep_budget
    assert guaranteed_epsilon(kept) == stated and guaranteed_epsilon(missed) == missed.epsilon
    assert not capped.caps_keep_budget and not replace(kept, most_asked=None).caps_keep_budget
    everything = PrivacyEvent(
        mechanism=MECHANISM,
        asked=300,
        answered=150,
        protection=TERMS.protection,
        noise=TERMS.noise,
        private=TERMS.private,
        coordinator=TERMS.coordinator,
    )
    rows = {"index": np.arange(300), "answered": np.arange(300) < 150}
    label = np.where(rows["answered"], 0, -1)
    with Ledger.create(path, missed) as ledger, pytest.raises(BudgetError):
        ledger.charge(everything, batch_digest="ab" * 32, label=label, **rows)
    path = path.with_name("kept.sqlite")
    with Ledger.create(path, kept) as ledger:
        ledger.charge(everything, batch_digest="ab" * 32, label=label, **rows)
        assert ledger.epsilon() <= stated
        with pytest.raises(IntegrityError, match="terms allow"):
            ledger.charge(
                replace(everything, asked=1, answered=0),
                batch_digest="cd" * 32,
                index=[300],
                answered=[False],
                label=[-1],
            )
    assert verify(path).epsilon <= stated
