"""A process that plays parties on a node: the same versions, a folder of its own or one that all see."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pate_fed.errors import InputError
from pate_fed.flower import prepare_environment
from pate_fed.flower.party_process import PROBE_FILE, PartyProcess, PartySetup, installed_here
from pate_fed.runtime.object_store import ObjectStore

prepare_environment()

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from pate_fed.flower.compat import set_identity, stamp

NODE = "0123456789abcdef"


def _enter(folder: Path, things: Any, data: Any) -> ClientApp:
    (folder / "party-0").mkdir()
    app = ClientApp()

    @app.query("answer")
    def answer(message: Message, context: Context) -> Message:
        if data == "broken":
            raise RuntimeError("a party's fault")
        return Message(RecordDict(), reply_to=message)

    return app


def _work(**changes: Any) -> PartySetup:
    values: dict[str, Any] = {"enter": _enter, "things": "study", "installed": installed_here(), "run": "r1"}
    values["disk"] = lambda folder, number: folder / f"party-{number}"
    return PartySetup(**{**values, **changes})


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    """As the driver makes it: the probe is locked by another process."""
    folder = tmp_path / "shared" / "pate-fed-x"
    folder.mkdir(parents=True)
    (folder / PROBE_FILE).write_text("probe")
    code = "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX); print(); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(folder / PROBE_FILE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        yield folder
        holder.kill()


def _ask(process: PartyProcess) -> Message:
    set_identity(run_id=1, node_id=1)
    message = Message(RecordDict(), 2, "query.answer")
    stamp(message)
    config: dict[str, Any] = {"partition-id": 0}
    context = Context(run_id=1, node_id=2, node_config=config, state=RecordDict(), run_config={})
    reply, seconds = process.answer(message, context)
    assert seconds >= 0 and reply.metadata.reply_to_message_id == message.metadata.message_id
    return reply


def test_it_answers_on_a_folder_of_its_node_that_is_gone_after_the_last_one(temporary: Path) -> None:
    first, second = PartyProcess(_work(), NODE), PartyProcess(_work(enter=lambda *_: ClientApp()), NODE)
    first.enter("data")
    second.enter("data")
    folder = temporary / "pate-fed-r1-01234567"
    assert (folder / "party-0").is_dir() and folder.stat().st_mode & 0o777 == 0o700
    assert not _ask(first).has_error()
    first.leave()
    assert folder.exists()
    second.leave()
    assert not folder.exists()


def test_a_partys_fault_is_a_message(temporary: Path) -> None:
    process = PartyProcess(_work(), NODE)
    process.enter("broken")
    reply = _ask(process)
    assert reply.has_error() and "party's fault" not in str(reply.error.reason)


def test_other_versions_are_refused() -> None:
    installed = {**installed_here(), "torch": "0.1"}
    with pytest.raises(InputError, match=r"node 01234567 of the cluster has torch .*, this command 0\.1"):
        PartyProcess(_work(installed=installed), NODE).enter("data")


def test_a_shared_folder_with_the_probe_and_its_lock_is_taken(shared: Path, temporary: Path) -> None:
    process = PartyProcess(_work(shared=shared, probe="probe"), NODE)
    process.enter("data")
    assert (shared / "party-0").is_dir() and not (temporary / "pate-fed-r1-01234567").exists()
    process.leave()
    assert shared.exists()  # the driver takes it away


def test_a_folder_that_is_not_the_drivers_or_shows_no_locks_is_refused(shared: Path, tmp_path: Path) -> None:
    for folder, probe, words in (
        (tmp_path / "none" / "pate-fed-x", "probe", "another folder, or cannot be written"),
        (shared, "other", "it is another folder"),
    ):
        with pytest.raises(InputError, match=words):
            PartyProcess(_work(shared=folder, probe=probe), NODE).enter("data")
    unseen = tmp_path / "unseen" / "pate-fed-x"
    unseen.mkdir(parents=True)
    (unseen / PROBE_FILE).write_text("probe")
    with pytest.raises(InputError, match="locks of other nodes are not seen"):
        PartyProcess(_work(shared=unseen, probe="probe"), NODE).enter("data")
    with open(unseen / PROBE_FILE) as free:  # it let go of it
        fcntl.flock(free, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_study_that_a_node_cannot_read_names_the_node() -> None:
    def fail(*_: Any) -> ClientApp:
        raise InputError("teacher 'mine:make': there is no module mine")

    with pytest.raises(InputError, match="node 01234567 of the cluster: teacher 'mine:make'"):
        PartyProcess(_work(enter=fail), NODE).enter("data")


def test_on_an_object_store_another_process_goes_on_and_late_answers_are_not_sent(tmp_path: Path) -> None:
    """The same party at two processes: what it answered stays, and one that was overtaken answers anew."""
    store, told = ObjectStore("memory://test-party-process"), list[str]()

    def enter(folder: Path, things: Any, data: Any) -> ClientApp:
        app, disk = ClientApp(), folder / "party-0"

        @app.query("answer")
        def answer(message: Message, context: Context) -> Message:
            disk.mkdir(exist_ok=True)
            claims = sorted(path.name for path in disk.iterdir())
            told.append(f"{data} saw {claims}")
            if data == "second" and len(told) == 2:  # meanwhile the first answers once more
                assert not _ask(first).has_error()
            (disk / f"claim-{len(claims)}").write_text(data)
            return Message(RecordDict(), reply_to=message)

        return app

    store.check(b"probe", first=True)
    first, second = (
        PartyProcess(_work(enter=enter, store="memory://test-party-process", probe="probe"), NODE)
        for _ in range(2)
    )
    try:
        first.enter("first")
        second.enter("second")
        assert not _ask(first).has_error()
        assert not _ask(second).has_error()
        assert told == [
            "first saw []",
            "second saw ['claim-0']",
            "first saw ['claim-0']",
            "second saw ['claim-0', 'claim-1']",
        ]
        store.put("party-0/00000004", b"damaged")
        assert _ask(first).error.reason == "IntegrityError"
    finally:
        first.leave()
        second.leave()
        store.remove()
    assert not list(tmp_path.glob("pate-fed-*"))
