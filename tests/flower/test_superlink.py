"""The coordinator's SuperLink, and its Grid: whatever one hospital sends is that one's alone."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from fuzz import mutate_bytes, mutate_record

from pate_fed.flower import prepare_environment

prepare_environment()

from flwr.app import ArrayRecord, Message
from flwr.common.serde import fab_to_proto, message_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    UnregisterNodeRequest,
)
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import (
    InflatableObject,
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.run import Run

from pate_fed.errors import InputError, IntegrityError, PateFedError
from pate_fed.flower.compat import set_identity, stamp
from pate_fed.flower.processes import Child
from pate_fed.flower.records import from_flower, to_flower
from pate_fed.flower.superlink import StudyGrid, SuperLink
from pate_fed.flower.transport import CONTROL_HEADER, LinkGuard, LinkLostError, control_word, has_transport
from pate_fed.protocol.messages import (
    AnswerReply,
    EndReply,
    JoinReply,
    RefusalReply,
    Reply,
    SumReply,
    parse_reply,
)
from pate_fed.runtime.addresses import free_port


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What Flower's command is given; no process is started."""
    given: list[str] = []

    def start(self: Child, command: str, arguments: Sequence[str], *, folder: Path, guard: str = "") -> None:
        given[:] = [command, *arguments, guard]
        self.local_address, self.secret, self.log = "127.0.0.1:1", b"", folder / "superlink.log"

    monkeypatch.setattr(Child, "__init__", start)
    monkeypatch.setattr(Child, "running", property(lambda self: False))
    return given


def test_without_keys_it_says_that_it_is_open(started: list[Any], tmp_path: Path) -> None:
    SuperLink(tmp_path, "127.0.0.1:9092", tls=None)
    assert started[:3] == ["flower-superlink", "--fleet-api-address", "127.0.0.1:9092"]
    assert "--insecure" in started
    assert started[-1] is None  # on one machine there is nobody to guard it against
    assert "--disable-runtime-dependency-installation" in started  # nothing is fetched from a registry


def test_keys_that_are_not_there_are_named(started: list[Any], tmp_path: Path) -> None:
    guard = LinkGuard(most_bytes=1000, hospitals=4)
    with pytest.raises(InputError, match="cannot be read"):
        SuperLink(tmp_path, "127.0.0.1:9092", tls=(tmp_path, guard))
    assert "--insecure" not in started
    assert "--enable-supernode-auth" in started  # only who was admitted connects
    assert started[-1] == guard


def test_one_that_ends_before_it_serves_is_a_sentence_with_its_log(
    started: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = SuperLink(tmp_path, "127.0.0.1:9092", tls=None)
    with pytest.raises(PateFedError, match=r"did not start: see .*superlink\.log"):
        link.wait_until_ready(lambda: False)
    monkeypatch.setattr(Child, "running", property(lambda self: True))
    link.wait_until_ready(lambda: True)  # who interrupts waits no longer
    link.close_run(completed=True)  # none was opened


RUN = 7
REPLIES: tuple[Reply, ...] = (
    JoinReply(party="north", terms_digest="ab" * 32, enrolment=b"\1" * 90),
    AnswerReply(party="north", batch_digest="cd" * 32, answer=np.eye(4, 3, dtype=np.int64)),
    SumReply(party="north", step=b"\2\3" * 60),
    EndReply(party="north"),
    RefusalReply(party="north", code="CAPS"),
)


class _Link:
    """A SuperLink's side: what nodes announced, and those parts of it that have arrived."""

    def __init__(self) -> None:
        self.announced: list[tuple[Any, Any]] = []
        self.parts: dict[str, bytes] = {}
        self.gone: set[str] = set()
        self.pulled: Counter[str] = Counter()
        self.confirmed: list[str] = []
        self.told: set[str] = set()

    def PullMessages(self, request: Any) -> Any:
        assert not self.told & set(request.message_ids), "what it told of once it calls unavailable"
        sent, self.announced = self.announced, []
        self.told |= {message.metadata.reply_to_message_id for message, _ in sent}
        return SimpleNamespace(
            messages_list=[message for message, _ in sent], message_object_trees=[tree for _, tree in sent]
        )

    def PullObject(self, request: Any) -> Any:
        content = self.parts.get(request.object_id)
        self.pulled[request.object_id] += content is not None
        return SimpleNamespace(
            object_found=request.object_id not in self.gone,
            object_available=content is not None,
            object_content=content,
        )

    def ConfirmMessageReceived(self, request: Any) -> None:
        self.confirmed.append(request.message_object_id)


class _Study:
    """A grid on such a link; `reply` sends a node's answer to a question."""

    def __init__(self) -> None:
        set_identity(run_id=RUN, node_id=1)
        self.link = _Link()
        self.grid = StudyGrid("127.0.0.1:1", True, None, token="t")
        self.grid._run = Run.create_empty(run_id=RUN)
        vars(self.grid)["_client"] = self.link

    def ask(self, node: int) -> Message:
        question = Message(to_flower({"kind": "x"}), node, "query.answer", ttl=100)
        stamp(question)
        return question

    def reply(self, question: Message, record: dict[str, Any], **changes: Any) -> dict[str, bytes]:
        return self.send(question, Message(to_flower(record), reply_to=question), **changes)

    def send(self, question: Message, reply: Message, *, inside: str | None = None) -> dict[str, bytes]:
        """Announce a reply to `question`; its parts, not yet arrived. `inside` is what it says it answers."""
        with no_object_id_recompute():
            parts: dict[str, InflatableObject] = get_all_nested_objects(reply)
            proto = message_to_proto(reply)
            proto.metadata.message_id = reply.object_id
            contents = {name: part.deflate() for name, part in parts.items()}
            if inside is not None:
                told = question.metadata.message_id.encode()
                assert told in contents[reply.object_id]
                contents[reply.object_id] = contents[reply.object_id].replace(told, inside.encode())
            self.link.announced.append((proto, get_object_tree(reply)))
        return contents

    def pull(self, *questions: Message) -> list[Message]:
        return list(self.grid.pull_messages([each.metadata.message_id for each in questions]))


VOTES = REPLIES[1].to_record()


def test_replies_come_as_they_are_whole() -> None:
    study = _Study()
    first, second = study.ask(2), study.ask(3)
    contents = study.reply(first, VOTES)
    study.link.parts |= study.reply(second, REPLIES[0].to_record())
    (got,) = study.pull(first, second)
    assert parse_reply(from_flower(got.content)) == REPLIES[0]
    assert study.pull(first) == []  # its parts are on their way
    study.link.parts |= contents
    (got,) = study.pull(first)
    np.testing.assert_array_equal(from_flower(got.content)["answer"], VOTES["answer"])
    assert got.metadata.reply_to_message_id == first.metadata.message_id
    assert len(study.link.confirmed) == 2


def test_an_upload_that_never_ends_is_not_fetched_again_with_every_look() -> None:
    study = _Study()
    question = study.ask(2)
    contents = study.reply(question, VOTES)
    *first, last = [part.object_id for part in iterate_object_tree(study.link.announced[0][1])]
    study.link.parts |= {name: contents[name] for name in first}
    for _ in range(5):
        assert study.pull(question) == []
    study.link.parts[last] = contents[last]
    (got,) = study.pull(question)
    assert not got.has_error()
    assert study.link.pulled == dict.fromkeys(contents, 1)


def test_an_upload_that_was_given_up_is_an_error_of_its_sender() -> None:
    study = _Study()
    first, second = study.ask(2), study.ask(3)
    study.link.gone |= set(study.reply(first, REPLIES[0].to_record()))
    study.link.parts |= study.reply(second, VOTES)
    bad, good = study.pull(first, second)
    assert bad.has_error() and bad.metadata.reply_to_message_id == first.metadata.message_id
    assert not good.has_error()


def test_what_is_no_message_is_an_error_of_its_sender() -> None:
    study = _Study()
    first, second = study.ask(2), study.ask(3)
    contents = study.reply(first, REPLIES[0].to_record())
    for name, content in contents.items():
        if content.startswith(b"Message"):
            contents[name] = ArrayRecord({}).deflate()
    study.link.parts |= contents
    study.link.parts |= study.reply(second, VOTES)
    bad, good = study.pull(first, second)
    assert bad.has_error() and bad.metadata.src_node_id == 2
    assert not good.has_error()


def test_an_array_that_grows_without_end_is_an_error_of_its_sender() -> None:
    study = _Study()
    first, second = study.ask(2), study.ask(3)
    contents = study.reply(first, {**VOTES, "answer": np.zeros((60_000, 2), dtype=np.int64)})
    for name, content in contents.items():
        if content.startswith(b"Array "):  # its one chunk 100,000 times: 100 GB
            assert b'"arraychunk_ids": [0]' in content
            head, _, body = content.partition(b"\0")
            body = body.replace(b"[0]", b"[0" + b",0" * 99_999 + b"]")
            contents[name] = b" ".join([*head.split(b" ")[:-1], b"%d" % len(body)]) + b"\0" + body
    study.link.parts |= contents
    study.link.parts |= study.reply(second, VOTES)
    bad, good = study.pull(first, second)
    assert bad.has_error() and bad.metadata.src_node_id == 2
    assert not good.has_error()


def test_nobody_answers_a_question_that_another_one_was_asked() -> None:
    study = _Study()
    own, anothers = study.ask(2), study.ask(3)
    study.link.parts |= study.reply(own, VOTES, inside=anothers.metadata.message_id)
    (got,) = study.pull(own, anothers)
    assert got.has_error()
    assert got.metadata.reply_to_message_id == own.metadata.message_id


def test_a_superlink_that_is_gone_says_so() -> None:
    study = _Study()

    def gone(request: Any) -> None:
        raise httpx.ConnectError("no")

    study.link.PullObject = gone  # type: ignore[assignment]
    question = study.ask(2)
    study.reply(question, VOTES)
    with pytest.raises(PateFedError, match="SuperLink is gone"):
        study.pull(question)


@pytest.mark.parametrize("status", [401, 403, 500])
def test_a_superlink_that_has_given_the_study_up_interrupts_nobody(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a minute in which the coordinator's machine slept."""
    interrupts, tries = list[int](), list[int]()

    def send(_: httpx.Client, request: httpx.Request, **__: object) -> httpx.Response:
        tries.append(status)
        return httpx.Response(status, request=request)

    monkeypatch.setattr(httpx.Client, "send", send)
    monkeypatch.setattr("os.kill", lambda pid, number: interrupts.append(number))
    grid = StudyGrid("127.0.0.1:1", True, None, token="given up")
    grid.set_run(Run.create_empty(run_id=1))
    for call in (grid.get_nodes, lambda: grid.pull_messages(["a"])):
        with pytest.raises(LinkLostError, match="has given this study up"):
            call()
    assert interrupts == [] and tries == [status] * 2
    grid.close()


def _fuzz(count: int) -> None:
    """Replies of every kind, mutated in their fields, or in the bytes that travel."""
    study, rng = _Study(), np.random.default_rng(0)
    read = 0
    for number in range(count):
        good = REPLIES[number % len(REPLIES)].to_record()
        question, other = study.ask(2), study.ask(3)
        if number % 2:
            contents = study.reply(question, mutate_record(good, rng))
        else:
            contents = study.reply(question, good)
            name = list(contents)[rng.integers(len(contents))]
            contents[name] = mutate_bytes(contents[name], rng)
        study.link.parts = contents  # what both have is there once, under its digest, and whole
        study.link.parts |= study.reply(other, {**VOTES, "party": "east"})
        replies = {each.metadata.reply_to_message_id: each for each in study.pull(question, other)}
        assert replies.keys() == {each.metadata.message_id for each in (question, other)}
        assert not replies[other.metadata.message_id].has_error()
        got = replies[question.metadata.message_id]
        if got.has_error():
            continue
        try:
            reply = parse_reply(from_flower(got.content))
        except IntegrityError:
            continue
        read += 1
        assert isinstance(reply, tuple(type(each) for each in REPLIES))
    assert 0 < read < count / 2


def test_mutated_replies_are_read_or_refused() -> None:
    _fuzz(600)


@pytest.mark.slow
def test_10_000_mutated_replies_are_read_or_refused() -> None:
    _fuzz(10_000)


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[SuperLink]:
    """A SuperLink as a study starts it, in a process of its own."""
    if not has_transport():
        pytest.skip("this Flower's SuperNodes speak no gRPC: no deployment is served")
    link = SuperLink(tmp_path / "link", f"127.0.0.1:{free_port()}", tls=None)
    try:
        link.wait_until_ready(lambda: False)
        yield link
    finally:
        link.stop()


def test_no_other_process_of_the_machine_submits_a_run_or_registers_a_node(serving: SuperLink) -> None:
    """As any user of it may try, who reaches the port and has not the secret."""
    stranger = ControlHttpClient.from_server_address(
        server_address=serving.local_address,
        insecure=True,
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
    )
    bundle = b"a bundle of a stranger"
    fab = fab_to_proto(Fab(hashlib.sha256(bundle).hexdigest(), bundle, {}))
    key = ec.generate_private_key(ec.SECP384R1()).public_key()
    pem = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    for call in (
        lambda: stranger.StartRun(StartRunRequest(fab=fab)),
        lambda: stranger.RegisterNode(RegisterNodeRequest(public_key=pem, name="stranger")),
        lambda: stranger.ListNodes(ListNodesRequest()),
        lambda: stranger.UnregisterNode(UnregisterNodeRequest(node_id=1)),
    ):
        with pytest.raises(httpx.HTTPStatusError, match="401"):
            call()
    stranger.close()
    paths = httpx.get(f"http://{serving.local_address}/openapi.json")
    assert paths.status_code == 401
    for word in ("", "0" * 64, control_word(b"another secret")):
        got = httpx.post(
            f"http://{serving.local_address}/v1/control/start-run", headers={CONTROL_HEADER: word}
        )
        assert got.status_code == 401
    # Its own are executed, and nobody else's are there.
    assert len(serving._control.ListRuns(ListRunsRequest()).run_dict) == 0
    assert len(serving._control.ListNodes(ListNodesRequest()).nodes_info) == 0
    grid, _ = serving.open_run()
    assert list(grid.get_node_ids()) == []
    serving.close_run(completed=True)
    commands = Path(f"/proc/{serving._process.pid}/cmdline").read_bytes()
    assert serving.secret not in commands and control_word(serving.secret).encode() not in commands
