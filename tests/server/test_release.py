"""Releases under masks: what is asked at once, what a void batch costs, what the ledger says was seen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import own_parts
import pytest
from builders import make_terms, vary

from pate_fed.config.sections import Aggregation
from pate_fed.errors import InputError, IntegrityError
from pate_fed.kinds.terms import Terms
from pate_fed.kinds.votes import make_mechanism
from pate_fed.privacy import Ledger, LedgerTerms, Protection, SeededNoise, epsilon_of, total_cost
from pate_fed.privacy.ledger.chain import coordinator_epsilon
from pate_fed.privacy.mechanisms.distributed import party_sigma
from pate_fed.privacy.mechanisms.events import hospital_noise
from pate_fed.privacy.mechanisms.own import own_mechanism
from pate_fed.report.log import RunLog
from pate_fed.report.result import ReleasedBatch
from pate_fed.structure.parts import part_identity
from server.kinds.votes import LabelReleaser
from server.release import Release, ReleaseFailedError, charge, open_ledger, releases_told
from server.state import Totals

MASKED = make_terms(secure_sum=True)
NOISY = vary(MASKED, noise_at="hospitals", sigma_party=party_sigma(5.0, parties=8, colluders=1), colluders=1)
DIGEST = "ab" * 32

Open = Callable[..., LabelReleaser]


@pytest.fixture
def make_releaser(tmp_path: Path) -> Any:
    ledgers: list[Ledger] = []

    def make(terms: Terms) -> LabelReleaser:
        noise, mechanism = SeededNoise(1), make_mechanism(terms)
        ledger_terms = LedgerTerms(
            study_digest=terms.digest,
            delta=terms.delta,
            mechanisms=(mechanism,),
            protection=Protection(),
            noise=noise.kind,
            private=noise.private,
            coordinator=terms.view(terms.least_clients),
        )
        ledgers.append(Ledger.create(tmp_path / f"{len(ledgers)}.sqlite", ledger_terms))
        return LabelReleaser(terms, mechanism, noise=noise, ledger=ledgers[-1])

    yield make
    for ledger in ledgers:
        ledger.close()


def _totals(queries: int, *, voters: int = 10, votes: int = 10) -> Totals:
    value = np.zeros((queries, 3), dtype=np.int64)
    value[:, 1] = votes
    return Totals(np.arange(queries), value, voters)


def _released(releaser: LabelReleaser, totals: Totals) -> Release:
    """Drawn and charged, as a run does it."""
    release = releaser.draw(totals)
    charge(releaser._ledger, release, batch_digest=DIGEST)
    return release


def test_under_hospitals_noise_no_more_is_asked_than_labels_are_left(make_releaser: Open) -> None:
    assert make_releaser(MASKED).room(1000) == 1000
    releaser = make_releaser(NOISY)
    assert releaser.room(1000) == 200
    assert releaser.room(20) == 20
    _released(releaser, _totals(160, votes=100))
    assert releaser._ledger.answered == 160
    assert releaser.room(1000) == 50  # 40 labels are left; fewer than 50 queries are no batch of their own


def test_without_a_threshold_no_query_is_asked_that_would_get_no_label(make_releaser: Open) -> None:
    releaser = make_releaser(vary(NOISY, aggregator="gnmax"))
    _released(releaser, _totals(190, votes=100))
    assert releaser.room(1000) == 10


def test_what_the_coordinator_saw_is_charged_with_who_voted(make_releaser: Open) -> None:
    releaser = make_releaser(NOISY)
    _released(releaser, _totals(5, voters=9))
    [entry] = releaser._ledger.entries()
    assert entry.event.coordinator == hospital_noise(
        sigma_party=NOISY.sigma_party or 0.0, survivors=9, colluders=1
    )
    with pytest.raises(InputError, match="needed"):
        releaser.draw(_totals(5, voters=7))
    seen = coordinator_epsilon(releaser._ledger.terms, releaser._ledger.events())
    # More hospitals than are counted on: less than the noisy totals cost at worst, more than what won.
    totals = total_cost(releaser._ledger.events()).as_totals
    assert seen is not None
    assert releaser._ledger.epsilon() < seen < epsilon_of(totals, releaser._ledger.terms.delta)


@pytest.mark.parametrize("terms", [MASKED, NOISY], ids=["exact", "noisy"])
def test_a_void_batch_is_charged_as_asked_and_never_again(terms: Terms, make_releaser: Open) -> None:
    releaser = make_releaser(terms)
    charge(releaser._ledger, releaser.void(np.arange(30)), batch_digest=DIGEST)
    assert (releaser._ledger.asked, releaser._ledger.answered, releaser.labels_left) == (30, 0, 200)
    [entry] = releaser._ledger.entries()
    assert entry.epsilon > 0
    # The fewest voters there may be: no less noise is on its way, whoever falls silent.
    assert entry.event.coordinator == terms.view(8)
    with pytest.raises(IntegrityError, match="charged before"):
        _released(releaser, _totals(30, voters=10))


def _own_terms(kind: str) -> Terms:
    """Terms of a study whose mechanism is `own_parts:kind`."""
    name = f"own_parts:{kind}"
    made = own_mechanism(
        getattr(own_parts, kind), classes=3, num_teachers=10, identity=part_identity(name, "aggregator")
    )
    return vary(
        make_terms(labels=20, max_queries=30), aggregation=Aggregation(aggregator=name), claim=made.claim
    )


def test_a_mechanism_of_one_s_own_releases_within_the_caps(make_releaser: Open) -> None:
    releaser = make_releaser(_own_terms("Picky"))
    assert releaser.room(1000) == 30
    release = _released(releaser, _totals(30, votes=10))
    assert release.event.answered == 20 and len(release.label) < 30  # it stops with the last label
    assert releaser._ledger.asked == len(release.label) and releaser.room(1000) == 0


@pytest.mark.parametrize("kind", ["Broken", "Beyond"])
def test_a_batch_on_which_a_mechanism_fails_is_charged_and_gives_nothing(
    make_releaser: Open, kind: str
) -> None:
    releaser = make_releaser(_own_terms(kind))
    totals = Totals(np.arange(4), np.array([[7, 2, 1]] * 4), 10)
    with pytest.raises(ReleaseFailedError, match="nothing of this batch was released"):
        releaser.draw(totals)
    charge(releaser._ledger, releaser.void(totals.index), batch_digest=DIGEST)
    assert (releaser._ledger.asked, releaser._ledger.answered) == (4, 0)
    [entry] = releaser._ledger.entries()
    assert entry.batch_digest == DIGEST and entry.epsilon > 0
    assert (releaser._ledger.released()[2] == -1).all()


def test_a_log_with_a_damaged_line_still_tells_that_the_ledger_is_gone(tmp_path: Path) -> None:
    """What the log's own reader would refuse as a whole: a study without its fields, a line of no event."""
    damaged = '{"event": "study"}\n[1]\n{"event": "release", "asked": 7\n'
    (tmp_path / "log.jsonl").write_text(damaged, encoding="utf-8")
    with RunLog(tmp_path / "log.jsonl") as log:
        log.write(ReleasedBatch(batch=0, asked=30, answered=4, epsilon=1.0))
    assert releases_told(tmp_path) == (30,)
    terms = LedgerTerms(
        study_digest=DIGEST,
        delta=1e-5,
        mechanisms=(make_mechanism(MASKED),),
        protection=Protection(),
        noise="system",
        private=True,
    )
    with pytest.raises(IntegrityError, match=r"ledger\.sqlite: is gone, and log\.jsonl tells of 30 queries"):
        open_ledger(tmp_path, terms)
    assert not (tmp_path / "ledger.sqlite").exists()


def test_a_log_that_cannot_be_read_is_no_log_that_tells_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").mkdir()
    with pytest.raises(IntegrityError, match="cannot be read"):
        releases_told(tmp_path)
