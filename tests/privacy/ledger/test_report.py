"""The report on a ledger, in words and as plain values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from pate_fed.format import epsilon_text
from pate_fed.privacy import (
    ConfidentGNMax,
    DistributedGNMax,
    Ledger,
    LedgerTerms,
    Protection,
    SeededNoise,
    verify,
)
from pate_fed.privacy.ledger.chain import coordinator_epsilon
from pate_fed.privacy.ledger.report import describe
from pate_fed.privacy.mechanisms.events import hospital_noise

FIFTY = ConfidentGNMax(num_teachers=50, num_classes=4, threshold=30, sigma1=20, sigma2=10)


TERMS = LedgerTerms(
    study_digest="ab" * 32,
    delta=1e-5,
    mechanisms=(FIFTY,),
    protection=Protection(),
    noise=SeededNoise(0).kind,
    private=False,
)


def test_in_words(path: Path, charge: Any) -> None:
    with Ledger.create(path, replace(TERMS, epsilon=3.0)) as ledger:
        made = charge(ledger, 0)
    text = "\n".join(describe(path))
    assert "one record replaced (one vote of a query moves)" in text
    assert "Against another hospital, whatever it knows of its own votes: as against the student" in text
    assert "Against the coordinator: no bound: it sees every hospital's votes" in text
    assert "not private: seeded noise" in text
    assert "Nobody is protected" in text
    assert "Budget: ε=3, never passed" in text
    assert f"{made.asked} queries asked, {made.event.answered} answered" in text
    assert "sigma1=20, sigma2=10" in text
    report = verify(path).to_dict()
    assert report["spent"]["coordinator"] is report["guaranteed"]["coordinator"] is None
    assert report["spent"]["student"] == verify(path).epsilon < report["guaranteed"]["student"] == 3.0
    assert "(3, 1e-5)-differential privacy" in text
    assert "fixed before the first query by the budget ε=3" in text
    assert report["queries_asked"] == made.asked


def test_in_words_with_hospital_noise(path: Path, charge: Any, release: Any) -> None:
    mechanism = DistributedGNMax(
        num_teachers=50, num_classes=4, threshold=None, sigma_party=4, least_honest=6
    )
    seen = hospital_noise(sigma_party=4.0, survivors=8, colluders=2)
    with Ledger.create(path, replace(TERMS, mechanisms=(mechanism,), coordinator=seen)) as ledger:
        charge(ledger, 0, release(0, mechanism=mechanism, coordinator=seen))
        seen_epsilon = coordinator_epsilon(ledger.terms, ledger.events())
        # It sees the noisy totals; everyone else what wins.
        assert seen_epsilon is not None and seen_epsilon > 1.1 * ledger.epsilon() > 0
    text = "\n".join(describe(path))
    shown = epsilon_text(seen_epsilon)
    assert f"Against the coordinator: ({shown}, 1e-5)-differential privacy" in text
    assert "while at most 2 hospitals tell it their noise: it sees only noisy totals of every query" in text
    assert "also for 2 hospitals together" in text
