"""What outlives a coordinator: kept before it is used, private, damage named, gone at the end."""

from __future__ import annotations

import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pate_fed.errors import IntegrityError
from pate_fed.protocol.heads import Head, Statement
from pate_fed.protocol.messages import Question
from server.state import CoordinatorState, SanitisedDraw, StudentPredictions, Totals

INDEX = np.arange(2, dtype=np.int64)
VOTES = np.arange(6, dtype=np.int64).reshape(2, 3)
TOTALS = Totals(INDEX, VOTES, 3)


def _question(batch: int = 0) -> Question:
    return Question(terms_digest="0" * 64, batch=batch, index=INDEX + 10 * batch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "private"


@pytest.fixture
def state(folder: Path) -> CoordinatorState:
    return CoordinatorState(folder, run_dir=folder.parent)


def test_a_batch_goes_on_with_the_votes_that_are_there(state: CoordinatorState, folder: Path) -> None:
    assert state.last_batch is None
    state.begin_batch(replace(_question(), measured=1), asked=True)
    state.keep_answer("north.1", VOTES)
    again = CoordinatorState(folder)
    again.begin_batch(replace(_question(), measured=1), asked=True)
    assert list(again.answers()) == ["north.1"]
    np.testing.assert_array_equal(again.answers()["north.1"], VOTES)
    last = again.last_batch
    assert last is not None and (last.question.batch, last.question.measured, last.asked) == (0, 1, True)
    assert last.digest == replace(_question(), measured=1).digest != _question().digest
    np.testing.assert_array_equal(last.question.index, INDEX)


def test_another_batch_or_a_charge_forgets_the_votes(state: CoordinatorState) -> None:
    state.begin_batch(_question(), asked=True)
    for forget in (lambda: state.begin_batch(_question(1), asked=False), state.forget_answers):
        state.keep_answer("north", VOTES)
        state.keep_sum_reply(0, "north", b"shares")
        forget()
        assert state.answers() == {} and state.sum_replies(0) == []
        assert state.last_batch is not None and not state.last_batch.asked


def test_a_statement_that_a_full_disk_cut_short_is_none(state: CoordinatorState, folder: Path) -> None:
    stated = Statement(head=Head(3, b"h" * 32))
    for party in ("north", "east.part"):
        state.keep_statement(party, stated)
    (folder / "north.head.part").write_bytes(b"")
    assert set(state.statements()) == {"north", "east.part"}


def _kept(state: CoordinatorState, step: int) -> list[bytes]:
    return [path.read_bytes() for path in state.sum_replies(step)]


def test_how_far_a_sum_came_and_what_came_of_it_is_kept(state: CoordinatorState, folder: Path) -> None:
    state.begin_batch(_question(), asked=False)
    state.keep_sum_reply(0, "north", b"shares")
    state.begin_batch(_question(), asked=True, step=1)
    state.keep_sum_reply(1, "north", b"vector")
    again = CoordinatorState(folder)
    assert (_kept(again, 0), _kept(again, 1), _kept(again, 2)) == (
        [b"shares"],
        [b"vector"],
        [],
    )
    last = again.last_batch
    assert last is not None and (last.step, last.asked) == (1, True)
    for _ in range(2):  # one that is revoked before the step is closed
        again.forget_sum_reply(1, "north")
        assert (_kept(state, 0), _kept(state, 1)) == ([b"shares"], [])


def test_what_a_question_rests_on_is_kept_with_it(state: CoordinatorState, folder: Path) -> None:
    question = replace(_question(3), given=b"weights \0 of a round")
    state.begin_batch(question, asked=True)
    last = CoordinatorState(folder).last_batch
    assert last is not None and last.digest == question.digest != _question(3).digest
    assert replace(last.question, terms_digest=question.terms_digest).digest == question.digest


def test_a_note_that_does_not_say_all_is_damaged(state: CoordinatorState, folder: Path) -> None:
    state.keep_roster(b"roster")
    (folder / "batch.json").write_text('{"batch": 3, "digest": "ab", "index": [1, 2], "asked": true}')
    with pytest.raises(IntegrityError, match="the note of the last batch"):
        _ = state.last_batch


def test_that_nothing_is_left_to_ask_is_known_to_another_process(
    state: CoordinatorState, folder: Path
) -> None:
    assert not state.all_asked
    state.note_all_asked()
    assert CoordinatorState(folder).all_asked


def test_keys_and_roster_stay_the_same(state: CoordinatorState, folder: Path) -> None:
    assert state.identity().public == CoordinatorState(folder).identity().public
    assert state.roster == b""
    state.keep_roster(b"roster")
    assert CoordinatorState(folder).roster == b"roster"


def test_totals_are_there_or_not(state: CoordinatorState, folder: Path) -> None:
    state.keep_totals("a" * 64, TOTALS)
    found = CoordinatorState(folder).totals("a" * 64)
    assert found is not None and found.voters == 3 and state.totals("b" * 64) is None
    np.testing.assert_array_equal(found.index, INDEX)
    np.testing.assert_array_equal(found.value, VOTES)


def test_a_simulation_leaves_nothing_private(tmp_path: Path) -> None:
    state = CoordinatorState(None, run_dir=tmp_path)
    state.begin_batch(_question(), asked=True)
    state.keep_answer("north", VOTES)
    state.keep_roster(b"roster")
    state.keep_totals("a" * 64, TOTALS)
    state.keep_sum_reply(0, "north", b"shares")
    state.note_all_asked()
    assert state.sum_replies(0) == [] and not state.all_asked
    state.remove_private()
    assert state.checkpoint(INDEX, INDEX) is None and state.identity().public
    assert (state.last_batch, state.answers(), state.roster, state.totals("a" * 64)) == (None, {}, b"", None)
    assert list(tmp_path.iterdir()) == []


def _predictions() -> StudentPredictions:
    return StudentPredictions(VOTES.astype(np.float32))


WRITES: dict[str, Callable[[CoordinatorState], object]] = {
    "identity": lambda state: state.identity(),
    "roster": lambda state: state.keep_roster(b"roster"),
    "note": lambda state: state.begin_batch(_question(), asked=True),
    "votes": lambda state: state.keep_answer("north", VOTES),
    "reply under masks": lambda state: state.keep_sum_reply(0, "north", b"shares"),
    "all asked": lambda state: state.note_all_asked(),
    "totals": lambda state: state.keep_totals("a" * 64, TOTALS),
    "checkpoint": lambda state: state.checkpoint(INDEX, INDEX),
    "predictions": lambda state: state.keep_predictions(2, _predictions()),
}


@pytest.mark.parametrize("name", WRITES)
def test_what_is_kept_is_private_and_outlives_a_power_cut(
    name: str, state: CoordinatorState, folder: Path, synced: list[str]
) -> None:
    """Until its folder is synced, a file that was renamed may be gone: asked twice, ε too small."""
    WRITES[name](state)
    files = [path for path in folder.parent.rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} <= {0o600}
    if files:
        assert synced[-2:] == [f"{files[0]}.part", str(files[0].parent)]
    if name != "predictions":  # these are public
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert str(folder.parent) in synced  # where the folder itself is named
        assert not files or files[0].parent == folder


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("batch.json", lambda state: state.last_batch),
        ("answer-north.npz", lambda state: state.answers()),
        (f"totals-{'a' * 64}.npz", lambda state: state.totals("a" * 64)),
        ("../round-2.npz", lambda state: state.predictions(2)),
    ],
)
def test_damage_is_named(
    name: str, read: Callable[[CoordinatorState], object], state: CoordinatorState, folder: Path
) -> None:
    for write in WRITES.values():
        write(state)
    read(state)
    (folder / name).write_bytes((folder / name).read_bytes()[:40])
    with pytest.raises(IntegrityError, match=Path(name).name.replace(".", r"\.")):
        read(state)


def test_nothing_private_stays_at_the_end(state: CoordinatorState, folder: Path) -> None:
    for write in WRITES.values():
        write(state)
    state.remove_private()
    state.remove_private()
    assert [path.name for path in folder.parent.iterdir()] == ["round-2.npz"]
    np.testing.assert_array_equal(state.predictions(2).probabilities, _predictions().probabilities)


def test_a_sanitised_epsilon_is_kept_and_private(state: CoordinatorState, folder: Path) -> None:
    assert state.sanitised is None
    state.keep_sanitised(SanitisedDraw(epsilon=4.001, deviation_do_not_publish=0.25))
    assert CoordinatorState(folder).sanitised == SanitisedDraw(epsilon=4.001, deviation_do_not_publish=0.25)
    [path] = folder.glob("sanitised*")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text('{"epsilon": "4"}')
    with pytest.raises(IntegrityError, match="sanitised"):
        _ = state.sanitised
