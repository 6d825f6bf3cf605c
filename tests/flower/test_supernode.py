"""A request is answered by the installed app; one that came with any code but the shim is refused unread."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pate_fed.flower import prepare_environment

prepare_environment()

import httpx
from flwr.app import Context, Error, Message, RecordDict
from flwr.app.message import make_message
from flwr.clientapp import ClientApp
from flwr.common.constant import SubStatus

from pate_fed.flower import supernode
from pate_fed.flower.compat import set_identity, stamp
from pate_fed.flower.processes import Child
from pate_fed.flower.records import build_bundle, from_flower, to_flower
from pate_fed.flower.supernode import SuperNode
from pate_fed.flower.transport import NodeGuard

REFUSED = {"kind": "refused", "party": "north", "code": "POLICY"}
ASKED = {"kind": "question", "party": "coordinator"}


class _Node:
    """A SuperNode without a process: `bundle` comes with a request, what goes back is noted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.bundle, self.arguments = build_bundle(), list[str]()
        self.sent, self.ends, self.guard = list[Message](), list[Any](), None

        def start(
            child: Child, command: str, arguments: Sequence[str], *, folder: Path, guard: Any = None
        ) -> None:
            self.arguments[:], self.guard = [command, *arguments], guard
            child.local_address, child.secret = "127.0.0.1:1", b""

        monkeypatch.setattr(Child, "__init__", start)
        monkeypatch.setattr(SuperNode, "_acquire", lambda _: "token")
        monkeypatch.setattr(supernode, "HeartbeatSender", lambda _: _Heart(self.ends))
        monkeypatch.setattr(supernode, "pull_task", lambda _, *, most_bytes: self._request())
        monkeypatch.setattr(supernode, "push_message", lambda _, reply, __: self.sent.append(reply))
        monkeypatch.setattr(
            supernode, "push_task_output", lambda client, context, status, _: self.ends.append(status)
        )
        self.node = SuperNode(folder, "127.0.0.1:9092", tls=None)

    def _request(self) -> tuple[Message, Context, bytes]:
        set_identity(run_id=1, node_id=1)
        message = Message(to_flower(dict(ASKED)), 2, "query.answer")
        stamp(message)
        context = Context(run_id=1, node_id=2, node_config={}, state=RecordDict(), run_config={})
        return message, context, self.bundle


class _Heart:
    def __init__(self, ends: list[Any]) -> None:
        self._ends = ends

    def start(self) -> None:
        """No heart beats here."""

    def stop(self) -> None:
        self._ends.append("the heart")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> _Node:
    return _Node(monkeypatch, tmp_path)


def _app(*, fails: bool = False) -> ClientApp:
    app = ClientApp()

    @app.query("answer")
    def votes(message: Message, context: Context) -> Message:
        if fails:
            raise RuntimeError("Ann Smith, born 1931")
        return Message(to_flower({**from_flower(message.content), "party": "north"}), reply_to=message)

    return app


def test_the_installed_app_answers(made: _Node) -> None:
    done = made.node.answer_next(_app(), refuse_bundle=lambda: pytest.fail("it was the shim"))
    assert done is not None
    assert (done.message_type, done.request, done.reply) == (
        "query.answer",
        ASKED,
        {**ASKED, "party": "north"},
    )
    assert done.bytes_out > 0
    assert made.ends == ["the heart", SubStatus.COMPLETED]


@pytest.mark.parametrize("lost", ["pull_task", "push_message", "push_task_output"])
def test_a_supernode_that_is_gone_costs_the_reply_alone(
    lost: str, made: _Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Flower's client would try for ever, or interrupt this very process."""

    def gone(*_: object, **__: object) -> None:
        raise httpx.ConnectError("refused")

    monkeypatch.setattr(supernode, lost, gone)
    done = made.node.answer_next(_app(), refuse_bundle=lambda: pytest.fail("it was the shim"))
    assert (done is None) == (lost != "push_task_output") and made.ends[0] == "the heart"


@pytest.mark.parametrize("status", [401, 503, None])
def test_a_task_that_is_gone_interrupts_nobody(status: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    request = httpx.Request("POST", "http://127.0.0.1:1/")

    def send(*_: object, **__: object) -> httpx.Response:
        if status is None:
            raise httpx.ConnectError("refused")
        return httpx.Response(status, request=request)

    monkeypatch.setattr(httpx.Client, "send", send)
    made = SuperNode.__new__(SuperNode)
    made.local_address, made.secret = "127.0.0.1:1", b""
    client = made._connect(supernode.Caller.app("token"))
    assert supernode.beating(client)()
    client.close()


def test_any_other_code_is_refused_and_neither_it_nor_the_app_sees_the_request(made: _Node) -> None:
    made.bundle += b"\0"
    done = made.node.answer_next(_app(fails=True), refuse_bundle=lambda: dict(REFUSED))
    assert done is not None
    assert done.request is None
    assert done.reply == from_flower(made.sent[0].content) == REFUSED


def test_no_text_of_a_fault_leaves(made: _Node) -> None:
    done = made.node.answer_next(_app(fails=True), refuse_bundle=lambda: dict(REFUSED))
    assert done is not None
    [reply] = made.sent
    assert reply.has_error()
    assert "Ann" not in str(reply.error.reason)
    assert (done.reply, done.bytes_out) == ({}, 0)


@pytest.mark.parametrize("failure", [ValueError("no message"), KeyError("Mesage"), MemoryError()])
def test_a_message_that_cannot_be_read_is_dropped(
    failure: Exception,
    made: _Node,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def garbage(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr(supernode, "pull_task", garbage)
    assert made.node.answer_next(_app(), refuse_bundle=lambda: dict(REFUSED)) is None
    assert not made.sent and made.ends == ["the heart", SubStatus.FAILED]
    assert "came and was dropped" in capsys.readouterr().err


def test_a_message_without_content_is_answered_with_an_error(
    made: _Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    message, context, bundle = made._request()
    empty = make_message(metadata=message.metadata, error=Error(code=1, reason="none"))
    monkeypatch.setattr(supernode, "pull_task", lambda _, *, most_bytes: (empty, context, bundle))
    done = made.node.answer_next(_app(), refuse_bundle=lambda: dict(REFUSED))
    assert done is not None and done.request is None
    [reply] = made.sent
    assert reply.has_error()


def test_nothing_waits_nothing_is_answered(made: _Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SuperNode, "_acquire", lambda _: None)
    assert made.node.answer_next(_app(), refuse_bundle=lambda: dict(REFUSED)) is None
    assert not made.sent


def test_with_keys_both_sides_must_show_the_studys_authority(made: _Node, tmp_path: Path) -> None:
    assert made.arguments == ["flower-supernode", "--superlink", "127.0.0.1:9092", "--insecure"]
    assert not made.guard
    guard = NodeGuard(key=str(tmp_path / "north.key"), certificate="PEM", most_bytes=1000)
    SuperNode(tmp_path, "h:1", tls=(tmp_path / "ca.crt", guard))
    assert made.guard is guard
    assert "--insecure" not in made.arguments
    assert made.arguments[3:] == [
        *("--root-certificates", str(tmp_path / "ca.crt")),
        *("--auth-supernode-private-key", str(tmp_path / "north.key")),
    ]
