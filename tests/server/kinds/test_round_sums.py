"""Sums in rounds from a coordinator's view: each round on its row, and what stands where they end early."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dying import dying
from kinds import ASKED, HOSPITALS, ROUNDS, ExactRoundStudy, RoundStudy, WholeStudy

import server.base
from clients.base import SummingHospital
from pate_fed.cli.main import main
from pate_fed.errors import IntegrityError
from pate_fed.learning.features.residuals import unpack_weights
from pate_fed.learning.students.class_sums import SumsStudent
from pate_fed.privacy.ledger import verify_independent
from pate_fed.privacy.ledger.report import describe, verify_run
from pate_fed.privacy.ledger.terms import guaranteed_epsilon
from pate_fed.protocol.messages import Refusal
from pate_fed.secure_sum import read_request
from pate_fed.secure_sum.messages import MaskRequest, UnmaskRequest
from server.kinds.sums import RoundCourse
from server.state import CoordinatorState


def _kinds(turn: int) -> pytest.MarkDecorator:
    """Noise at the hospitals, and in turn one of the others, which share its code; the rest are slow."""
    others = (ExactRoundStudy, WholeStudy)
    slow = pytest.param(others[(turn + 1) % 2], marks=pytest.mark.slow)
    return pytest.mark.parametrize(
        "made", [RoundStudy, others[turn % 2], slow], ids=lambda kind: kind.__name__
    )


@pytest.fixture
def study(made: type[RoundStudy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RoundStudy:
    return made(tmp_path, monkeypatch)


def _given(study: RoundStudy, number: int) -> bytes:
    with np.load(study.run_dir / f"round-{number}.npz") as held:
        return bytes(held["weights"].tobytes())


def _patch(
    patch: pytest.MonkeyPatch, number: int, kind: type, who: Any, reason: Refusal = Refusal.REPEATED
) -> None:
    """Have some hospitals refuse one step of a round."""
    whole = SummingHospital.sum_step

    def step(self: Any, request: Any) -> Any:
        if (
            who(self._site.number)
            and isinstance(read_request(request.step), kind)
            and request.batch == number
        ):
            return self.refuse(reason)
        return whole(self, request)

    patch.setattr(SummingHospital, "sum_step", step)


@_kinds(0)
def test_each_round_is_a_row_that_names_what_it_was_asked_with(study: RoundStudy) -> None:
    assert study.run() == 0
    study.check()
    entries = study.entries()
    assert len({entry.batch_digest for entry in entries}) == 1 + ROUNDS
    assert entries[0].provenance is None
    for place, entry in enumerate(entries[1:], 1):
        told = entry.provenance
        assert (told.round, told.learnt_to) == (place + 1, entries[place - 1].hash)
        assert told.predictions == hashlib.sha256(_given(study, place + 1)).hexdigest()
    report = verify_run(study.run_dir)
    spent = [entry.epsilon for entry in entries]
    assert spent == sorted(spent) and len(set(spent)) == 1 + ROUNDS
    assert spent[-1] == pytest.approx(guaranteed_epsilon(report.chain.terms), rel=1e-9)
    assert 0.999 < spent[-1] <= 1
    assert len(verify_independent.verify(study.run_dir)) == 3
    assert "released at most 3 times" in "\n".join(describe(study.run_dir / "ledger.sqlite"))
    # The student is of all rounds: it says of the pool what the last row has.
    student = SumsStudent.load(study.run_dir / "student.npz")
    label = student.predict(study.pool())
    with np.load(study.run_dir / "labels.npz") as labels:
        assert np.array_equal(labels["label"][labels["answered"]], label)
    told = (study.run_dir / "report.html").read_text(encoding="utf-8")
    assert "at most 3 releases" in told and "once</" not in told


@pytest.mark.parametrize(
    ("made", "owner", "name", "nth", "after"),
    [
        # Every place of the plain kind (of noise after the second round only), and of each other one the two
        # before and after which rounds differ.
        *((RoundStudy, server.base, "charge", nth, after) for nth in (2, 3) for after in (False, True)),
        *((RoundStudy, RoundCourse, "_with_noise", 2, after) for after in (False, True)),
        *(
            pytest.param(RoundStudy, RoundCourse, "_with_noise", 3, after, marks=pytest.mark.slow)
            for after in (False, True)
        ),
        # Weights are made twice.
        *((RoundStudy, CoordinatorState, "keep_weights", nth, nth == 1) for nth in (1, 2)),
        *((RoundStudy, CoordinatorState, "keep_weights", nth, nth == 2) for nth in (1, 2)),
        *((made, server.base, "charge", 2, True) for made in (ExactRoundStudy, WholeStudy)),
        *((made, CoordinatorState, "keep_weights", 2, False) for made in (ExactRoundStudy, WholeStudy)),
    ],
)
def test_whenever_the_coordinator_dies_a_round_has_one_sum_one_draw_and_one_row(
    owner: Any, name: str, nth: int, after: bool, study: RoundStudy
) -> None:
    count = 0

    def is_nth(*_: object) -> bool:  # asked before and after each call
        nonlocal count
        count += 1
        return count == 2 * nth - (not after)

    with dying(owner, name, is_nth, after=after):
        study.run()
    before = {path.name: path.read_bytes() for path in study.private.glob("totals-*")}
    charged = [(entry.hash, entry.batch_digest) for entry in study.entries()]
    for number in range(2, 2 + ROUNDS):
        path = study.run_dir / f"round-{number}.npz"
        before |= {path.name: path.read_bytes()} if path.exists() else {}
    with dying(RoundCourse, "learn", after=False):
        study.run()
    for folder in (study.private, study.run_dir):
        for path in folder.iterdir():
            assert before.get(path.name, b"") in (b"", path.read_bytes() if path.is_file() else b"")
    assert study.run(hospitals=0) == 0
    study.check()
    assert [(entry.hash, entry.batch_digest) for entry in study.entries()][: len(charged)] == charged


@_kinds(1)
def test_rounds_that_end_for_good_after_the_second_leave_what_was_released(
    study: RoundStudy, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        _patch(patch, 2, UnmaskRequest, lambda number: number > 2)
        assert study.run() == 4
    told = capsys.readouterr()
    assert "what the rounds before released stands" in told.err
    assert "ε counts as spent at every hospital that was asked" in told.err
    # Three rounds are paid for; the third has the labels that the two before make.
    counts = [(entry.event.asked, entry.event.answered) for entry in study.entries()]
    assert counts == [(ASKED, 0), (ASKED, 0), (ASKED, ASKED)]
    assert study.entries()[-1].epsilon > 0.999
    answered = len(study.events("answered"))
    assert study.run() == 0
    assert len(study.events("answered")) == answered  # nobody is asked again
    verify_run(study.run_dir)
    assert study.metrics()["queries_answered"] == ASKED
    student = SumsStudent.load(study.run_dir / "student.npz")
    shape = student.weights.shape
    assert np.array_equal(student.weights, unpack_weights(_given(study, 3), shape))


@_kinds(2)
def test_a_hospital_that_leaves_after_the_second_round_is_in_the_sums_before(
    study: RoundStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    _patch(monkeypatch, 2, MaskRequest, lambda number: number == 2, Refusal.LEFT)
    assert study.run() == 0
    counts = dict.fromkeys(("answered", "refused"), 0)
    for path in study.parties.glob("*2/log.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            event = json.loads(line)["event"]
            counts[event] = counts.get(event, 0) + 1
    assert (counts["answered"], counts["refused"]) == (ROUNDS, 1)
    assert len(study.events("answered")) == HOSPITALS * (1 + ROUNDS) - 1
    verify_run(study.run_dir)


@_kinds(3)
def test_weights_that_are_not_those_on_the_ledger_end_it(
    study: RoundStudy, capsys: pytest.CaptureFixture[str]
) -> None:
    with dying(RoundCourse, "learn", after=False):
        study.run()
    path = study.run_dir / "round-3.npz"
    with np.load(path) as held:
        changed = held["weights"].copy()
    changed[0] ^= 1
    np.savez(path, weights=changed)
    assert study.run() == IntegrityError.exit_code
    assert "not what the ledger names as the weights" in capsys.readouterr().err


@_kinds(4)
def test_a_round_removed_from_the_ledger_or_moved_is_found(study: RoundStudy) -> None:
    assert study.run() == 0
    assert main(["ledger", "verify", str(study.run_dir)]) == 0
    metrics = study.metrics()
    metrics["privacy"]["student"]["data_independent"] *= 0.99  # as if the last round were cheaper
    (study.run_dir / "metrics.json").write_text(json.dumps(metrics), encoding="utf-8")
    assert main(["ledger", "verify", str(study.run_dir)]) == 6


def test_what_is_asked_next_follows_from_released_sums_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exact totals that were kept are not looked at: with others in their place the weights are the same."""
    study = ExactRoundStudy(tmp_path, monkeypatch)
    with dying(CoordinatorState, "keep_weights", after=False):
        study.run()
    [entry] = study.entries()
    exact = study.private / f"totals-{entry.batch_digest}.npz"
    with np.load(exact) as held:
        arrays = {**held, "value": held["value"] * 0}
    np.savez(exact, **arrays)
    with dying(CoordinatorState, "keep_weights", after=True):
        study.run()
    first = _given(study, 2)
    (study.run_dir / "round-2.npz").unlink()
    np.savez(exact, **{**arrays, "value": arrays["value"] + 7})
    assert study.run() == 0
    assert _given(study, 2) == first
