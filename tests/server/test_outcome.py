"""Who took part in a study, who was told how it ended, and what is kept of that."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pate_fed.flower import prepare_environment

prepare_environment()

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.supercore.task_identity import TaskIdentity

from pate_fed.errors import IntegrityError
from pate_fed.flower.records import from_flower, to_flower
from pate_fed.flower.transport import Untold
from pate_fed.identity.bundle import BUNDLE_FILE
from pate_fed.identity.keys import Receipt
from pate_fed.protocol.messages import END, EndReply, EndRequest, JoinReply, Refusal, RefusalReply
from server import outcome
from server.outcome import HOSPITALS, Audience, Receipts
from server.process import finished_study

TERMS = "ab" * 32
SUCCESS = EndRequest(status="success", exit_code=0, summary="ε=1 δ=1e-5 labels=9")
NAMES = {1: "north", 2: "east", 3: "west"}


def _audience(run_dir: Path | None, *parties: str) -> Audience:
    made = Audience(run_dir, terms_digest=TERMS)
    made.joins(parties or NAMES.values())
    made.ends(SUCCESS)
    return made


@pytest.fixture(autouse=True)
def in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages are made in a run of Flower's."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class _Grid:
    """Nodes that are connected; each answers what it was sent with the next of its replies, if it has one."""

    def __init__(self, online: Iterable[int]) -> None:
        self.online, self.replies, self.sent = set(online), dict[int, list[Any]](), list[Message]()
        self._open = dict[str, Message]()

    def get_node_ids(self) -> list[int]:
        return sorted(self.online)

    def push_messages(self, messages: Iterable[Message]) -> Iterator[str]:
        for message in messages:
            key = str(len(self.sent))
            message.metadata.__dict__["_message_id"] = key
            self._open[key] = message
            self.sent.append(message)
            yield key

    def pull_messages(self, keys: Iterable[str]) -> Iterator[Message]:
        for key in list(keys):
            left = self.replies.get(self._open[key].metadata.dst_node_id, [])
            if left:
                made = left.pop(0)
                content = made if isinstance(made, Error) else to_flower(made.to_record())
                yield Message(content, reply_to=self._open[key])

    def asked(self) -> list[int]:
        return [message.metadata.dst_node_id for message in self.sent]


def _heard(name: str) -> EndReply:
    return EndReply(party=name)


def _looks(audience: Audience, grid: Any, names: Any = NAMES) -> Iterator[Untold]:
    return audience.telling(grid, names)


def test_each_is_told_once_and_who_comes_later_then() -> None:
    audience, grid = _audience(None), _Grid([1, 2])
    looks = _looks(audience, grid)
    assert next(looks) == Untold(pending=2, parties=("east", "north", "west"))
    grid.replies = {1: [_heard("north")], 2: [_heard("east")]}
    assert next(looks) == Untold(pending=0, parties=("west",))
    assert next(looks) == Untold(pending=0, parties=("west",)) and grid.asked() == [1, 2]
    grid.online.add(3)
    grid.replies[3] = [_heard("west")]
    assert next(looks) == Untold(pending=0, parties=())
    assert [message.metadata.message_type for message in grid.sent] == [END] * 3
    assert EndRequest.from_record(from_flower(grid.sent[0].content)) == SUCCESS


def test_who_went_before_it_answered_is_told_again_and_either_answer_counts() -> None:
    audience, grid = _audience(None, "west"), _Grid([3])
    looks = _looks(audience, grid)
    next(looks)
    grid.online.clear()
    assert next(looks) == Untold(pending=0, parties=("west",))
    grid.online.add(3)
    assert next(looks).pending == 1 and grid.asked() == [3, 3]
    grid.replies[3] = [_heard("west")]  # to the first one: it was cut off, and not dead
    assert next(looks).parties == ()


@pytest.mark.parametrize(
    "first",
    [RefusalReply(party="west", code=Refusal.LATER.name), Error(code=ErrorCode.NODE_UNAVAILABLE, reason="")],
)
def test_who_cannot_hear_it_now_is_told_again(first: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome, "_AGAIN_S", 0.0)
    audience, grid = _audience(None, "west"), _Grid([3])
    grid.replies[3] = [first]
    looks = _looks(audience, grid)
    assert next(looks) == Untold(pending=0, parties=("west",))
    grid.replies[3] = [_heard("west")]
    assert next(looks).parties == () and grid.asked() == [3, 3]


@pytest.mark.parametrize(
    "reply", [RefusalReply(party="west", code=Refusal.FAULT.name), Error(code=2, reason="ValueError")]
)
def test_whose_program_fails_is_not_asked_for_ever(reply: Any) -> None:
    audience, grid = _audience(None, "west"), _Grid([3])
    grid.replies[3] = [reply]
    looks = _looks(audience, grid)
    assert [next(looks) for _ in range(3)][-1] == Untold(pending=0, parties=("west",))
    assert grid.asked() == [3]


def test_a_stranger_and_one_that_is_revoked_are_told_nothing() -> None:
    audience, grid = _audience(None), _Grid([1, 9])
    names = {1: "north", 2: "east"}
    assert next(_looks(audience, grid, names)).parties == ("east", "north")
    assert grid.asked() == [1]


def test_without_keys_a_hospital_is_known_by_its_answer() -> None:
    audience, grid = _audience(None), _Grid([41, 42])
    grid.replies = {41: [_heard("west")], 42: [_heard("somebody")]}
    assert next(_looks(audience, grid, None)).parties == ("east", "north")


def test_with_a_key_nobody_answers_in_anothers_name() -> None:
    audience, grid = _audience(None), _Grid([1])
    grid.replies[1] = [_heard("west")]
    assert next(_looks(audience, grid)).parties == ("east", "west")


def test_another_process_knows_who_was_told_and_has_the_receipts(tmp_path: Path) -> None:
    key, reply = Ed25519PrivateKey.generate(), JoinReply(party="west", terms_digest=TERMS)
    Receipts(key, terms_digest=TERMS, folder=tmp_path).took("west", reply)
    audience, grid = _audience(tmp_path), _Grid([1])
    audience.leaves("east")
    grid.replies[1] = [_heard("north")]
    next(_looks(audience, grid))
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}
    again = Audience(tmp_path)
    assert (again.untold(), again.took_part, again.exit_code) == (("west",), ("north", "west"), 0)
    assert again.terms_digest == TERMS
    again.set_admitted(NAMES, {}, key=key)
    notice = again.notice_for("west")
    assert (notice.status, notice.summary) == (SUCCESS.status, SUCCESS.summary)
    assert Receipt.read(notice.receipt, key.public_key()).hospital == "west"
    assert again.notice_for("north").receipt == ""
    again.ends(SUCCESS)  # another end, which nobody has heard
    assert Audience(tmp_path).untold() == ("north", "west")
    assert Audience(tmp_path, terms_digest="cd" * 32).took_part == ()


def test_a_damaged_list_is_named(tmp_path: Path) -> None:
    _audience(tmp_path)
    (tmp_path / HOSPITALS).write_bytes(b"\0" * 20)
    with pytest.raises(IntegrityError, match=HOSPITALS):
        Audience(tmp_path)


def test_only_a_success_of_the_very_study_is_told_again(tmp_path: Path) -> None:
    def told(same: bool = True) -> Path | None:
        return finished_study(str(tmp_path), lambda held: same)

    assert finished_study(None, lambda held: True) is None and told() is None
    (tmp_path / "study.toml").touch()
    (tmp_path / "metrics.json").write_text('{"status": "success"}')
    assert told() is None  # of a release that kept no list
    _audience(tmp_path)
    assert told() == tmp_path and told(same=False) is None
    (tmp_path / "metrics.json").write_text('{"status": "failed"}')
    assert told() is None


def test_the_student_goes_to_those_that_took_part_alone_and_only_after_a_success(tmp_path: Path) -> None:
    (tmp_path / BUNDLE_FILE).write_bytes(b"bundle")
    audience = _audience(tmp_path, "north", "east")
    assert audience.notice_for("north").student == b""  # nobody here has a key
    audience.receipts = Receipts(Ed25519PrivateKey.generate(), terms_digest=TERMS, folder=None)
    assert [audience.notice_for(name).student for name in ("north", "west", "")] == [b"bundle", b"", b""]
    audience.leaves("north")
    assert audience.notice_for("north").student == b""
    again = Audience(tmp_path)  # of the same command, for a hospital that was away
    again.set_admitted({}, {}, key=Ed25519PrivateKey.generate())
    assert again.notice_for("east").student == b"bundle"
    again.ends(EndRequest(status="failed", exit_code=4, summary=""))
    assert again.notice_for("east").student == b""
    (tmp_path / "other").mkdir()
    bare = _audience(tmp_path / "other", "east")
    bare.set_admitted({}, {}, key=Ed25519PrivateKey.generate())
    assert bare.notice_for("east").student == b""  # a run without a student


def test_a_student_is_on_its_way_to_some_hospitals_at_a_time() -> None:
    grid = _Grid(range(1, 40))
    names = {node: f"h{node}" for node in range(1, 40)}
    looks = _looks(_audience(None, *names.values()), grid, names)
    assert next(looks).pending == 16
    grid.replies = {node: [_heard(names[node])] for node in range(1, 5)}
    next(looks)
    next(looks)
    assert len(grid.asked()) == 20
