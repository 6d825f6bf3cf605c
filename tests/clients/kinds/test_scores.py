"""Counts of held-out records at a hospital: one record, one count, whatever weights come."""

from __future__ import annotations

from dataclasses import fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kinds import HOSPITALS, RECORDS, ScoredSums

from clients.account import PUBLIC, StudyCost
from clients.hospital import Hospital
from clients.kinds.sums import _FEATURES, ScoredSide
from clients.local import local_site
from pate_fed.errors import InputError, IntegrityError
from pate_fed.kinds.rounds import RoundTerms, ScoredTerms
from pate_fed.learning.features.residuals import ScoreRows, packed_size
from pate_fed.privacy.bounds.cost import epsilon_of
from pate_fed.privacy.ledger.terms import guaranteed_epsilon
from pate_fed.protocol.messages import Refusal


@pytest.fixture(scope="module")
def kind(tmp_path_factory: pytest.TempPathFactory) -> ScoredSums:
    made = ScoredSums(tmp_path_factory.mktemp("scored"))
    for number, settings in enumerate(made.settings):  # a key that is drawn may hold out nobody of so few
        (settings.state_dir / "teachers.key").write_bytes(sha256(f"key {number}".encode()).digest())
    made.close()
    return made


def _asks(kind: ScoredSums) -> ScoredTerms:
    return ScoredTerms.of(kind.terms)


def _side(kind: ScoredSums, number: int, **changes: Any) -> ScoredSide:
    site = local_site(kind.settings[number])
    terms = replace(kind.terms, **changes) if changes else kind.terms
    return ScoredSide(site.under(terms), terms, Hospital(site).log)


def _given(kind: ScoredSums, content: bytes | None = None, *, fill: int | None = None) -> bytes:
    asks = _asks(kind)
    size = ScoreRows.size(asks.dimension, 2, asks.bins)
    if content is not None:
        return content
    if fill is not None:
        return np.full(size // 4, fill, dtype="<i4").tobytes()
    return np.random.default_rng(8).integers(-(2**31), 2**31, size // 4).astype("<i4").tobytes()


def _question(kind: ScoredSums, given: bytes, *, shift: int = 0) -> Any:
    places = _asks(kind).places(kind.terms) + shift
    return replace(kind.question(batch=_asks(kind).rounds + 1, index=places), given=given)


@pytest.mark.parametrize("fill", [None, 0, 2**31 - 1, -(2**31), -1])
def test_whatever_weights_come_a_patient_has_one_count_or_less_in_all(
    kind: ScoredSums, fill: int | None
) -> None:
    """The weights' bytes are the coordinator's: extreme ones, and edges that fall or are below 0."""
    asks = _asks(kind)
    assert kind.terms.privacy.unit == "patient"
    for number in range(HOSPITALS):
        side = _side(kind, number)
        found = side.answer(_question(kind, _given(kind, fill=fill)))
        patients = side.site.own_patients()
        assert patients is not None and found.shape == (asks.rows(kind.terms), 2) and found.min() >= 0
        held_out = side.site.held_out(asks.held_out)
        units = len(np.unique(patients[held_out]))
        # Two rows a patient: one count, or two halves of it, each rounded down.
        assert units * (asks.count - 1) <= found.sum() <= units * asks.count


def test_a_patient_more_changes_its_own_count_and_nothing_else(kind: ScoredSums) -> None:
    """Neighbours by brute force: without each patient in turn, the rest is counted and summed as before."""
    side, asks = _side(kind, 0), _asks(kind)
    question, first = _question(kind, _given(kind)), kind.question()
    patients, everyone = side.site.own_patients(), side.site.own_records()
    assert patients is not None
    whole = [side.answer(each) for each in (question, first)]
    moved = np.zeros(2, dtype=np.int64)
    for left_out in np.unique(patients):
        rest = everyone[patients != left_out]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(side.site), "own_records", lambda _, rest=rest: rest)
            patch.setattr(type(side.site), "keep_held_out", lambda *_, **__: None)  # as if always so
            _FEATURES.clear()  # a process has one set of records for its life
            counts, sums = (_side(kind, 0).answer(each) for each in (question, first))
        by_counts, by_sums = (before - after for before, after in zip(whole, (counts, sums), strict=True))
        moved += [bool(by_counts.any()), bool(by_sums.any())]
        assert not (by_counts.any() and by_sums.any())  # in the one or in the other
        assert by_counts.min() >= 0 and (by_counts**2).sum() <= asks.count**2
        assert (by_sums**2).sum() <= asks.squared_norm * asks.first**2
    assert moved.sum() == len(np.unique(patients)) and moved.min() > 0


def test_who_is_held_out_stays_so_in_another_process(kind: ScoredSums) -> None:
    one, two = (_side(kind, 1).site.held_out(0.2) for _ in range(2))
    assert np.array_equal(one, two) and 0 < one.sum() < RECORDS
    patients = _side(kind, 1).site.own_patients()
    assert patients is not None and not set(patients[one]) & set(patients[~one])
    others = [_side(kind, number).site.held_out(0.2) for number in range(HOSPITALS)]
    assert len({tuple(each) for each in others}) > 1  # each by a key of its own


def test_records_or_a_key_that_are_others_after_the_first_answer_are_not_counted(kind: ScoredSums) -> None:
    """A record that is written otherwise falls on another side, and would be in sums and counts."""
    side, question, first = _side(kind, 2), _question(kind, _given(kind)), kind.question()
    whole, key = side.answer(first), side.site.state_dir / "teachers.key"
    before = key.read_bytes()
    for lost in (True, False):
        key.unlink() if lost else key.write_bytes(sha256(b"another").digest())
        for each in (question, first):
            with pytest.raises(InputError, match="the key that holds some out"):
                _side(kind, 2).answer(each)
    key.write_bytes(before)
    data = side.site.dataset
    rounded = replace(data, private_images=np.round(data.private_images, 1))
    for changed in (rounded, replace(data, private_labels=1 - data.private_labels)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(side.site), "dataset", changed)
            with pytest.raises(InputError, match="not those of this study's first answer"):
                side.answer(question)
    note = side.site.state_dir / "held-out.sha256"
    with pytest.MonkeyPatch.context() as patch:  # the note is gone after an answer: nothing says what was
        patch.setattr("clients.journal.Journal.answered", lambda *_, **__: 1)
        held = note.read_bytes()
        note.unlink()
        with pytest.raises(InputError, match="the note of both"):
            _side(kind, 2).answer(question)
        note.write_bytes(held)
        note.chmod(0o600)
    assert note.stat().st_mode & 0o777 == 0o600 and np.array_equal(_side(kind, 2).answer(first), whole)


def test_what_is_no_question_of_the_study_is_refused(kind: ScoredSums) -> None:
    side, right = _side(kind, 0), _given(kind)
    assert side.refusal(_question(kind, right)) is None
    bad = (
        _question(kind, right[:-4]),
        _question(kind, b""),
        _question(kind, right, shift=1),
        replace(_question(kind, right), measured=1),
        replace(_question(kind, right), index=_asks(kind).places(kind.terms)[:-1]),
        replace(_question(kind, right), index=np.zeros(0, dtype=np.int64)),
    )
    for question in bad:
        assert side.refusal(question) is Refusal.MALFORMED
    with pytest.raises(IntegrityError, match="bytes"):
        _asks(kind).score_rows(kind.terms, _question(kind, right[:-4]))


def test_no_sum_leaves_after_the_counts(tmp_path: Path) -> None:
    """A coordinator that asks for counts first has no sums of this hospital any more."""
    kind = ScoredSums(tmp_path)
    kind.close()
    counts = _question(kind, _given(kind))
    batch, given = kind.open(counts), []
    for requests in batch.rounds():
        for party, step in requests.items():
            reply = kind.send(int(party[-1]), counts, step, given=counts.given)
            given.append(type(reply).__name__)
            batch.take(reply)
    assert "MaskedVector" in given and "SumRefused" not in given
    kind.show()
    sums = kind.question(batch=1)
    reply = kind.send(0, sums, kind.open(sums).opening)
    assert getattr(reply, "code", None) == "CAPS"


def test_rows_are_those_that_were_sent(kind: ScoredSums) -> None:
    rng = np.random.default_rng(2)
    rows = ScoreRows(
        weights=rng.normal(0, 1, (7, 3)).round(3),
        offset=np.array([0.5, 0.0, -0.5]),
        edges=np.sort(rng.random((3, 4))),
        squared_norm=2**20,
    )
    again = ScoreRows.of_bytes(rows.to_bytes(), (7, 3), bins=5, squared_norm=2**20)
    np.testing.assert_allclose(again.weights, rows.weights, atol=2**-16)
    np.testing.assert_allclose(again.edges, rows.edges, atol=2**-29)
    assert len(rows.to_bytes()) == ScoreRows.size(7, 3, 5) == packed_size(7, 3) + 4 * 3 * 5
    features = rng.integers(0, 1000, (500, 7))
    found = again(features)
    assert np.array_equal(found, np.concatenate([again(features[place : place + 1]) for place in range(500)]))
    assert found.min() >= 0 and found.max() < 15


def test_terms_out_of_range_are_refused(kind: ScoredSums) -> None:
    asks = _asks(kind)
    for bad in ({"held_out": 0.0}, {"held_out": 0.6}, {"bins": 0}, {"count": 0}, {"count": 2**27}):
        with pytest.raises(InputError, match=next(iter(bad))):
            replace(asks, **bad)
    with pytest.raises(InputError, match="record or patient is meant"):
        replace(kind.terms, privacy=replace(kind.terms.privacy, unit="hospital"))
    assert asks.signed == asks.longest and replace(asks, rounds=0).signed == asks.longest // 2
    plain = {each.name: getattr(asks, each.name) for each in fields(RoundTerms) if each.name != "kind"}
    whole = RoundTerms(**plain | {"rounds": 0})  # with the unit hospital its first question has signs, too
    assert whole.signed == whole.longest
    ledger = kind.terms.ledger_terms(noise="as agreed", private=True)
    assert ledger.counts is not None and ledger.most_summed == asks.labels * (1 + asks.rounds)


def test_a_hospital_s_account_takes_sums_and_counts_for_the_larger_of_both(kind: ScoredSums) -> None:
    """As the study states it; two studies add up: a record may be counted in one, and summed in the other."""
    cost = StudyCost.of(kind.terms)
    ledger = kind.terms.ledger_terms(noise="as agreed", private=True)
    stated = guaranteed_epsilon(ledger)
    [found] = cost.bounds(cost.stated, PUBLIC)
    assert stated is not None and epsilon_of(found, kind.terms.delta) == pytest.approx(stated, rel=1e-9)
    sums = ledger.mechanisms[0].cost(ledger.most_summed or 0, 0, ledger.protection)
    assert epsilon_of(sums, kind.terms.delta) == pytest.approx(stated, rel=1e-4)
    assert epsilon_of(found + found, kind.terms.delta) > 1.3 * stated
