"""What holds of a whole study of every kind: one sum, one draw and one row, whoever dies, is away or lies."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dying import dying, takes
from kinds import (
    HOSPITALS,
    STUDY_KINDS,
    CountStudy,
    ExactOwnStudy,
    ExactRoundStudy,
    ExactScoredStudy,
    ExactSumStudy,
    NoisyVoteStudy,
    OwnStudy,
    RoundStudy,
    ScoredStudy,
    StudyKind,
    SumStudy,
    VoteStudy,
    WholeStudy,
)

from clients.base import SummingHospital
from pate_fed.cli.main import main
from pate_fed.privacy import Ledger
from pate_fed.protocol.messages import Refusal, SumReply
from pate_fed.secure_sum import read_reply, read_request
from pate_fed.secure_sum.messages import (
    BatchOpening,
    BatchShares,
    MaskedVector,
    MaskRequest,
    SurvivorConsent,
    SurvivorNotice,
    UnmaskRequest,
    UnmaskShares,
)
from server.masked import MaskedRounds
from server.state import CoordinatorState

# Each coordinator of its own code: that of a study and that of labels. The others share this code.
BOTH_COORDINATORS = (VoteStudy, CountStudy)
# The others two by two, as near to each other as there are: noise at the hospitals, or at the coordinator.
PAIRS: tuple[tuple[type[StudyKind], type[StudyKind]], ...] = (
    *((SumStudy, ExactSumStudy), (RoundStudy, ExactRoundStudy), (OwnStudy, ExactOwnStudy)),
    *((ScoredStudy, ExactScoredStudy), (WholeStudy, NoisyVoteStudy)),
)
assert {*BOTH_COORDINATORS, *(kind for pair in PAIRS for kind in pair)} == {*STUDY_KINDS}


def _kinds(turn: int, moments: dict[str, Any] | None = None) -> pytest.MarkDecorator:
    """Every kind, at every moment of a name where a test has such.

    By default both coordinators at all moments, and at one moment one kind of each pair: with the next `turn`
    the other, so that of two tests one after the other each kind is in one. A moment whose name begins with
    "slow" is left out by default for all of them.
    """
    default = [name for name in moments or [""] if not name.startswith("slow")]
    others = {
        pair[(turn + place) % 2]: default[(turn + place) % len(default)] for place, pair in enumerate(PAIRS)
    }

    def made(kind: type[StudyKind], name: str) -> Any:
        by_default = name in default if kind in BOTH_COORDINATORS else others.get(kind) == name
        marks: Any = [] if by_default else pytest.mark.slow
        if moments is None:
            return pytest.param(kind, id=kind.__name__, marks=marks)
        return pytest.param(kind, moments[name], id=f"{name}-{kind.__name__}", marks=marks)

    names = ("made",) if moments is None else ("made", "moment")
    return pytest.mark.parametrize(
        names, [made(kind, name) for kind in STUDY_KINDS for name in moments or [""]]
    )


@pytest.fixture
def study(made: type[StudyKind], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StudyKind:
    return made(tmp_path, monkeypatch)


@contextmanager
def _instead(when: Callable[[int, Any], bool], do: Callable[[Any, Any, Any], Any]) -> Iterator[None]:
    """Hospitals do something else at the steps that `when` picks by their number and the message."""
    whole = SummingHospital.sum_step

    def step(self: Any, request: Any) -> Any:
        if when(self._site.number, read_request(request.step)):
            return do(self, request, whole)
        return whole(self, request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SummingHospital, "sum_step", step)
        yield


def _away(*_: object) -> Any:
    raise ConnectionError


# Death, and going on.


@_kinds(
    0,
    {
        "before a vector": (MaskedVector, False),
        "after shares": (UnmaskShares, True),
        "slow: after a batch's shares": (BatchShares, True),
        "slow: after a vector": (MaskedVector, True),
        "slow: before a consent": (SurvivorConsent, False),
        "slow: after a consent": (SurvivorConsent, True),
        "slow: before shares": (UnmaskShares, False),
    },
)
def test_a_sum_that_was_cut_off_goes_on_where_it_was(moment: tuple[type, bool], study: StudyKind) -> None:
    reply, after = moment
    with dying(MaskedRounds, "_take", takes(reply), after=after):
        study.run()
    assert not study.entries()
    digest = study.digest
    assert study.run() == 0
    study.check()
    assert study.entries()[0].batch_digest == digest


@_kinds(
    1,
    {
        "before its row": (Ledger, "charge", False),
        "after its row": (Ledger, "charge", True),
        "after the rounds": (MaskedRounds, "collect", True),
        "closed": (MaskedRounds, "close", True),
        "slow: admitted": (MaskedRounds, "admit", True),
        "slow: begun": (CoordinatorState, "begin_batch", True),
    },
)
def test_whenever_the_coordinator_dies_there_is_one_sum_and_one_row(
    moment: tuple[type, str, bool], study: StudyKind
) -> None:
    owner, name, after = moment
    for _ in range(2 if owner is Ledger and not after else 1):
        with dying(owner, name, after=after):
            study.run()
    charged = [(entry.hash, entry.outputs_digest) for entry in study.entries()]
    assert len(charged) == (owner is Ledger and after)
    assert study.run() == 0
    study.check()
    assert charged == [(entry.hash, entry.outputs_digest) for entry in study.entries()][: len(charged)]


# Hospitals that are away, fall silent, or never answer.


@_kinds(2, {"vectors": MaskRequest, "shares": UnmaskRequest, "slow: consents": SurvivorNotice})
def test_too_few_leave_the_sum_open_and_uncharged_and_the_same_command_goes_on(
    moment: type, study: StudyKind, capsys: pytest.CaptureFixture[str]
) -> None:
    with _instead(lambda number, message: number > 2 and isinstance(message, moment), _away):
        for _ in range(2):
            assert study.run() == 4
            assert "nothing is charged for it yet" in capsys.readouterr().err
    assert not study.entries()
    digest = study.digest
    assert study.run() == 0
    study.check(refused=4)  # two hospitals, two tries
    assert study.entries()[0].batch_digest == digest


@_kinds(3)
def test_too_few_at_first_cost_nothing_and_one_that_falls_silent_is_left_out(study: StudyKind) -> None:
    with _instead(lambda number, message: number > 2 and isinstance(message, BatchOpening), _away):
        assert study.run() == 4
    assert not study.entries() and not study.events("answered")
    assert len(study.events("refused")) == 2
    with _instead(lambda number, step: number == 2 and isinstance(step, MaskRequest), _away):
        assert study.run() == 0
    study.check(given=HOSPITALS - 1, refused=2 + study.questions)


@_kinds(4, {"over a death": True, "in one process": False})
def test_what_was_asked_for_and_never_comes_is_spent_and_not_asked_for_again(
    moment: bool, study: StudyKind, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(hospital: Any, request: Any, whole: Any) -> Any:
        return hospital.refuse(Refusal.REPEATED)

    if moment:  # before any share was heard
        with dying(MaskedRounds, "_take", takes(UnmaskShares), after=False):
            study.run()
        capsys.readouterr()
    with _instead(lambda number, message: number > 2 and isinstance(message, UnmaskRequest), refuse):
        # A batch that another process began and that cannot come is void: there may be votes on others.
        assert study.run() == (study.void if moment and study.void != 3 else 4)
    told = capsys.readouterr()
    assert "stays open" not in told.err and ("again" in told.err) == (study.void == 3)
    assert not told.out.startswith("FAILED  ε=0 ")
    assert [entry.event.answered for entry in study.entries()] == [0]
    assert study.metrics()["privacy"]["coordinator"]["epsilon"] != 0
    given = len(study.events("answered"))
    assert given == HOSPITALS
    assert study.run() == study.void
    assert len(study.events("answered")) == given


@_kinds(5)
def test_a_coordinator_that_lost_its_memory_gets_no_second_sum(study: StudyKind) -> None:
    with dying(MaskedRounds, "collect"):
        study.run()
    for path in study.private.iterdir():
        path.unlink()
    assert study.run() == 4
    assert len(study.events("answered")) == HOSPITALS
    assert {event["reason"] for event in study.events("refused")} == {"COORDINATOR"}


# Replies that no honest hospital sends.


def _flipped(vector: MaskedVector, _: Any) -> bytes:
    return replace(vector, vector=vector.vector ^ np.array(1, dtype=vector.vector.dtype)).to_bytes()


def _of_another(vector: MaskedVector, _: Any) -> bytes:
    return replace(vector, party="hospital-0").to_bytes()


def _cut(vector: MaskedVector, _: Any) -> bytes:
    return vector.to_bytes()[:-3]


def _none(vector: MaskedVector, request: Any) -> bytes:
    return bytes(request.step)


@_kinds(6, {"flipped": _flipped, "of another": _of_another, "cut": _cut, "none": _none})
def test_a_reply_that_is_not_its_own_costs_its_sender_alone(
    moment: Callable[[MaskedVector, Any], bytes], study: StudyKind
) -> None:
    def wrong(hospital: Any, request: Any, whole: Any) -> Any:
        reply = whole(hospital, request)
        return SumReply(party=reply.party, step=moment(read_reply(reply.step), request))

    with _instead(lambda number, step: number == 2 and isinstance(step, MaskRequest), wrong):
        assert study.run() == 0
    study.check()
    told = [event["party"] for event in study.left_out()]
    assert len(told) == study.questions and "hospital-0" not in told


@_kinds(7)
def test_wrong_shares_are_thrown_away_and_enough_others_unmask_the_same_total(study: StudyKind) -> None:
    """A hospital that signs wrong shares of its neighbours' secrets is named, and nobody else."""

    def wrong(hospital: Any, request: Any, whole: Any) -> Any:
        reply = whole(hospital, request)
        said = read_reply(reply.step)
        other = replace(said, shares=bytes([said.shares[0] ^ 1]) + said.shares[1:])
        with hospital._store(hospital._agreed()).machine() as machine:
            signed = other.signed(machine._identity)
        return SumReply(party=reply.party, step=signed.to_bytes())

    with _instead(lambda number, step: number == 2 and isinstance(step, UnmaskRequest), wrong):
        assert study.run() == 0
    study.check()
    assert {event["party"] in ("h2", "hospital-2") for event in study.left_out()} == {True}


# Verification.


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Callable[[type[StudyKind], Path], Path]:
    """A copy of the run directory of a study of a kind, which is run once."""
    runs: dict[type[StudyKind], Path] = {}

    def copied(made: type[StudyKind], to: Path) -> Path:
        if made not in runs:
            with pytest.MonkeyPatch.context() as patch:
                study = made(tmp_path_factory.mktemp("study"), patch)
                assert study.run() == 0
                runs[made] = study.run_dir
        return Path(shutil.copytree(runs[made], to / "run"))

    return copied


def _row(statement: str) -> Callable[[Path], None]:
    """Change the ledger as somebody could who may write the file."""

    def change(run_dir: Path) -> None:
        connection = sqlite3.connect(run_dir / "ledger.sqlite")
        guards = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for (name,) in guards:
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute(statement)
        connection.commit()
        connection.close()

    return change


def _label(run_dir: Path) -> None:
    with np.load(run_dir / "labels.npz") as held:
        columns = dict(held)
    np.savez(run_dir / "labels.npz", **{**columns, "label": 1 - columns["label"]})


def _metrics(change: Callable[[Any], object]) -> Callable[[Path], None]:
    def write(run_dir: Path) -> None:
        figures = json.loads((run_dir / "metrics.json").read_text(encoding="utf-8"))
        change(figures)
        (run_dir / "metrics.json").write_text(json.dumps(figures), encoding="utf-8")

    return write


TAMPERED = {
    "a cheaper row": _row("UPDATE entries SET epsilon = 0.1 WHERE seq = 1"),
    "a row removed": _row("DELETE FROM entries WHERE seq = 1"),
    "another label": _row("UPDATE released SET label = 1 - label WHERE seq = 1"),
    "another label beside": _label,
    "a smaller ε": _metrics(lambda figures: figures["privacy"]["student"].update(data_independent=0.01)),
    "another δ": _metrics(lambda figures: figures["privacy"].update(delta=1e-9)),
    "another unit": _metrics(lambda figures: figures["privacy"].update(unit="nobody")),
    "more answers": _metrics(lambda figures: figures.update(queries_answered=61)),
}


@_kinds(8)
def test_what_does_not_fit_the_ledger_is_found(
    made: type[StudyKind],
    finished: Callable[[type[StudyKind], Path], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = finished(made, tmp_path)
    assert main(["ledger", "verify", str(whole), *made.verify]) == 0
    for name, tamper in TAMPERED.items():
        (folder := tmp_path / name).mkdir()
        tamper(run_dir := finished(made, folder))
        assert main(["ledger", "verify", str(run_dir), *made.verify]) == 6, name
    capsys.readouterr()
