"""Rounds: a student of past outputs shapes the questions, the ledger shows it, a crash repeats nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate_fed.config.sections import Queries
from pate_fed.errors import IntegrityError
from pate_fed.privacy import (
    ConfidentGNMax,
    InteractiveGNMax,
    Ledger,
    LedgerTerms,
    Protection,
    SeededNoise,
    verify,
)
from pate_fed.privacy.ledger.rows import Provenance, digest_of
from server.kinds.rounds import QueryRound, QueryRounds
from server.state import CoordinatorState, StudentPredictions

POOL, CLASSES, TEACHERS = 400, 3, 20
NOISE = {"threshold": 8.0, "sigma1": 2.0, "sigma2": 2.0}
SIZE = {"num_teachers": TEACHERS, "num_classes": CLASSES}
CONFIDENT = ConfidentGNMax(**SIZE, **NOISE)
AGAINST = InteractiveGNMax(**SIZE, **NOISE, confidence=0.9)
TRUTH = np.arange(POOL) % CLASSES
TOTALS = TEACHERS * np.eye(CLASSES, dtype=np.int64)[TRUTH]


def _terms(epsilon: float | None = None) -> LedgerTerms:
    noise = SeededNoise(1)
    return LedgerTerms(
        study_digest="ab" * 32,
        delta=1e-5,
        epsilon=epsilon,
        mechanisms=(CONFIDENT, AGAINST),
        protection=Protection(),
        noise=noise.kind,
        private=noise.private,
        most_asked=300,
        most_answered=200,
    )


class _Study:
    """A coordinator in small: rounds, a ledger, and a student that is right on all but the last class."""

    def __init__(
        self,
        folder: Path,
        strategy: str = "random",
        epsilon: float | None = None,
        order: np.ndarray | None = None,
        own: Any = None,
    ) -> None:
        self.folder, self.learnt = folder, list[int]()
        path = folder / "ledger.sqlite"
        self.ledger = Ledger.open(path) if path.exists() else Ledger.create(path, _terms(epsilon))
        queries = Queries(strategy=strategy, rounds=2)
        self.rounds = QueryRounds(
            queries,
            self.ledger,
            CoordinatorState(None, run_dir=folder),
            order=np.arange(POOL) if order is None else order,
            against=AGAINST,
            learn=self._learn,
            own=own,
        )

    def _learn(self, number: int, index: np.ndarray, label: np.ndarray) -> StudentPredictions:
        self.learnt.append(number)
        assert (label == TRUTH[index]).mean() > 0.9
        said = np.full((POOL, CLASSES), 0.01, dtype=np.float32)
        said[np.arange(POOL), np.minimum(TRUTH, 1)] = 0.98
        return StudentPredictions(said / said.sum(axis=1, keepdims=True))

    def ask(self, size: int = 300) -> np.ndarray:
        size = self.rounds.limit(min(size, 300 - sum(event.asked for event in self.ledger.events())))
        index = self.rounds.choose(size)
        said, provenance = self.rounds.predictions(index), self.rounds.current().provenance
        noise = SeededNoise(len(self.ledger.entries()))
        if said is None:
            released = CONFIDENT.release(TOTALS[index], noise)
        else:
            released = AGAINST.release(TOTALS[index], noise, predictions=said)
        self.ledger.charge(
            released.event,
            batch_digest=f"{len(self.ledger.entries()):064x}",
            index=index,
            answered=released.answered,
            label=released.label,
            provenance=provenance,
        )
        return index


@pytest.fixture
def study(tmp_path: Path) -> Iterator[_Study]:
    made = _Study(tmp_path)
    yield made
    made.ledger.close()


def test_the_first_round_asks_without_a_student_and_ends_at_its_part_of_the_labels(study: _Study) -> None:
    assert study.rounds.current().predictions is None
    assert len(study.ask()) == 100  # as many as labels are due: no query is asked for nothing
    assert study.learnt == []
    study.ask()
    while study.rounds.current().number == 1:
        study.ask()
    assert study.learnt == [2]
    answered = sum(event.answered for event in study.ledger.events())
    asked = sum(event.asked for event in study.ledger.events())
    assert 100 <= answered < 150 or asked >= 150


def test_inputs_are_asked_about_in_the_order_that_is_given(tmp_path: Path) -> None:
    order = np.random.default_rng(0).permutation(POOL)
    study, asked = _Study(tmp_path, order=order), list[int]()
    while study.rounds.current().number == 1:
        asked += study.ask().tolist()
    asked += study.ask().tolist()  # its student is as sure of all, so nothing else decides
    assert asked == order[: len(asked)].tolist()
    study.ledger.close()


def test_a_strategy_of_one_s_own_is_told_what_the_row_s_provenance_names(tmp_path: Path) -> None:
    told: list[tuple[int, int, str | None, int]] = []

    def own(left: np.ndarray, size: int, index: np.ndarray, label: np.ndarray, now: QueryRound) -> np.ndarray:
        assert (TRUTH[index] != label).sum() <= len(index) / 10
        learnt_to = None if now.provenance is None else now.provenance.learnt_to
        told.append((now.number, len(index), learnt_to, len(left)))
        return left[::-1][:size]

    study = _Study(tmp_path, order=np.arange(POOL - 7), own=own)
    first = study.ask()
    assert first.tolist() == list(range(POOL - 8, POOL - 8 - len(first), -1))
    while study.rounds.current().number == 1:
        study.ask()
    before = study.ledger.entries()
    known = sum(entry.event.answered for entry in before)
    for _ in range(2):
        study.ask(20)
    assert all(each[1:3] == (0, None) for each in told if each[0] == 1)  # the first round rests on nothing
    later = [each for each in told if each[0] == 2]
    # The second batch of a round is told of no more labels than its first: those that its row names.
    assert [each[1:3] for each in later] == [(known, before[-1].hash)] * 2
    assert later[1][3] == later[0][3] - 20
    study.ledger.close()


def test_later_rounds_answer_contradictions_and_confirm_what_the_student_knows(study: _Study) -> None:
    while study.rounds.current().number == 1:
        study.ask()
    before = len(study.ledger.entries())
    index = study.ask()
    entry = study.ledger.entries()[before]
    assert entry.event.mechanism == AGAINST and entry.provenance is not None
    _, answered, _ = study.ledger.released()
    last = slice(len(answered) - len(index), None)
    contradicted = TRUTH[index] == 2
    assert answered[last][contradicted].mean() > 0.9
    assert answered[last][~contradicted].mean() < 0.1
    reinforced = study.rounds.reinforced()
    assert (reinforced[: last.start] == -1).all()
    assert (reinforced[last][answered[last]] == -1).all()
    silent = ~answered[last] & ~contradicted
    assert (reinforced[last][silent] == TRUTH[index][silent]).all()
    places, labels = study.rounds.labels()
    assert len(places) == len(np.unique(places)) == len(labels) > answered.sum()


def test_no_query_is_asked_twice_whatever_is_chosen(tmp_path: Path) -> None:
    study = _Study(tmp_path, "least-confident")
    asked = [study.ask(70) for _ in range(4)]
    study.ledger.close()
    together = np.concatenate(asked)
    assert len(np.unique(together)) == len(together)


def test_a_restart_goes_on_with_the_same_student_and_learns_nothing_again(study: _Study) -> None:
    while study.rounds.current().number == 1:
        study.ask()
    study.ask(20)
    reinforced, chosen = study.rounds.reinforced(), study.rounds.choose(30)
    study.ledger.close()
    again = _Study(study.folder)
    assert again.rounds.current().number == 2 and again.learnt == []
    assert (again.rounds.reinforced() == reinforced).all()
    assert (again.rounds.choose(30) == chosen).all()
    again.ask(20)
    bases = {entry.provenance for entry in again.ledger.entries()[-2:]}
    assert len(bases) == 1 and None not in bases
    again.ledger.close()
    assert verify(study.folder / "ledger.sqlite").chain.entries[-1].provenance in bases


def test_a_restart_before_the_first_release_of_a_round_keeps_what_was_learnt(study: _Study) -> None:
    while study.rounds.current().number == 1:
        study.ask()
    assert study.learnt == [2]
    study.ledger.close()
    again = _Study(study.folder)
    index = again.ask(10)
    assert again.learnt == []
    assert len(index) == 10
    again.ledger.close()


@pytest.mark.parametrize("harm", ["gone", "changed"])
def test_predictions_that_are_not_the_ledgers_stop_the_study(study: _Study, harm: str) -> None:
    while study.rounds.current().number == 1:
        study.ask()
    study.ask(20)
    study.ledger.close()
    path = study.folder / "round-2.npz"
    if harm == "gone":
        path.unlink()
    else:
        with np.load(path) as kept:
            said = {name: np.roll(kept[name], 1, axis=1) for name in kept}
        np.savez(path, **said)
    again = _Study(study.folder)
    with pytest.raises(IntegrityError, match=r"round-2\.npz"):
        again.rounds.current()
    again.ledger.close()


def test_a_budget_is_shared_by_the_rounds(tmp_path: Path) -> None:
    study = _Study(tmp_path, epsilon=60.0)
    budget = study.ledger.terms.budget
    assert budget is not None
    while study.rounds.current().number == 1:
        study.ask(100)
    assert 0.4 < budget.share_spent(study.ledger.events()) < 0.9
    study.ledger.close()


def test_a_choice_by_anything_but_earlier_rows_is_refused(study: _Study) -> None:
    study.ask(20)
    foreign = Provenance(round=2, strategy="random", learnt_to="12" * 32, predictions=digest_of())
    released = CONFIDENT.release(TOTALS[200:210], SeededNoise(5))
    with pytest.raises(IntegrityError, match="no earlier row"):
        study.ledger.charge(
            released.event,
            batch_digest="ff" * 32,
            index=np.arange(200, 210),
            answered=released.answered,
            label=released.label,
            provenance=foreign,
        )
    assert len(study.ledger.entries()) == 1
