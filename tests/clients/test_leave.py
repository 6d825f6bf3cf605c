"""A hospital that leaves in the middle of a study: its app, its log and its account, without a wire."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from builders import make_terms, vary

from pate_fed.flower import prepare_environment

prepare_environment()

from flwr.app import Context, Message, RecordDict

from clients.account import Account
from clients.app import app, note_sent, refuse_bundle
from clients.leave import STATEMENT_FILE, erase, has_left, mark_left, turn_to_answer
from clients.log_check import LogCheck, check_log
from pate_fed.cli.main import main
from pate_fed.data import Schema, pool_digest
from pate_fed.flower.compat import set_identity, stamp
from pate_fed.flower.records import from_flower, to_flower
from pate_fed.identity import Authority, HospitalIdentity, make_request
from pate_fed.identity.keys import is_signed, load_key
from pate_fed.kinds.terms import Terms
from pate_fed.learning import TeacherSettings
from pate_fed.protocol.messages import (
    AnswerReply,
    EndRequest,
    JoinReply,
    JoinRequest,
    Question,
    Record,
    parse_reply,
)
from server.outcome import Receipts

PLAIN = "plain_votes = true\n"
TYPES = {"join": "train.join", "question": "query.answer", "end": "query.end"}


@dataclass
class House:
    """A hospital with an identity, and what its coordinator heard from it."""

    state: Path
    identity: Path
    terms: Terms
    pool: bytes
    receipts: Receipts

    def send(self, request: JoinRequest | Question | EndRequest) -> Record:
        set_identity(run_id=1, node_id=1)
        record = request.to_record()
        message = Message(to_flower(record), 2, TYPES[str(record["kind"])])
        stamp(message)
        context = Context(run_id=1, node_id=2, node_config={}, state=RecordDict(), run_config={})
        reply = from_flower(app(message, context).content)
        note_sent({}, message_type=TYPES[str(record["kind"])], bytes_out=100, reply=reply)
        if reply["kind"] != "ended":
            self.receipts.took("north", parse_reply(reply))
        return reply

    def answer(self, *index: int) -> Record:
        return self.send(Question(terms_digest=self.terms.digest, batch=index[0], index=np.array(index)))

    def end(self) -> None:
        self.send(EndRequest(status="success", exit_code=0, summary="", receipt=self.receipts.of("north")))

    def check(self) -> LogCheck:
        return check_log(self.state, self.identity)


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    rng = np.random.default_rng(0)
    rows = [f"{age},{'ill' if age > 50 else 'well'}" for age in rng.integers(20, 90, 60)]
    (tmp_path / "north.csv").write_text("\n".join(["age,y", *rows]) + "\n")
    pool, buffer = rng.normal(size=(40, 1)), io.BytesIO()
    np.save(buffer, pool)
    terms = vary(
        make_terms(num_classes=2, num_clients=3, least_clients=3, teachers_per_client=2),
        image_shape=(1,),
        pool_size=40,
        pool_digest=pool_digest(pool),
        classes=("ill", "well"),
        table=Schema(label="y", classes=("ill", "well"), columns=(("age", ()),)),
        teacher=TeacherSettings(name="random-forest", trees=2),
        labels=20,
        max_queries=30,
    )
    authority = Authority.init(tmp_path / "authority", address="a:1", terms=terms.to_json(), days=9)
    identity = tmp_path / "identity"
    authority.admit(make_request(identity, "north"), days=9).write(tmp_path / "north.admission")
    HospitalIdentity.offered(identity, tmp_path / "north.admission").take()
    state = tmp_path / "state"
    state.mkdir()
    site = {
        "hospital": "north",
        "data": str(tmp_path / "north.csv"),
        "state_dir": str(state),
        "sum_key": str(identity / "sum.key"),
        "policy": str(tmp_path / "policy.toml"),
    }
    (tmp_path / "policy.toml").write_text(PLAIN)
    (state / "hospital.json").write_text(json.dumps(site))
    monkeypatch.setenv("PATE_FED_SITE", str(state / "hospital.json"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    receipts = Receipts(authority.ledger_key(), terms_digest=terms.digest, folder=tmp_path / "run")
    yield House(state, identity, terms, buffer.getvalue(), receipts)


@pytest.fixture
def taught(house: House) -> House:
    reply = parse_reply(house.send(JoinRequest(terms=house.terms.to_json(), pool=house.pool)))
    assert isinstance(reply, JoinReply)
    return house


def test_what_left_is_in_the_log_and_countersigned_at_the_end(taught: House) -> None:
    assert isinstance(parse_reply(taught.answer(0, 1, 2)), AnswerReply)
    assert taught.answer(0, 1)["kind"] == "refused"
    taught.receipts.took("north", parse_reply(refuse_bundle({})))
    taught.end()
    found = taught.check()
    assert found.broken == []
    assert found.verdict == "verified: whole, in order, signed by north, with the coordinator's receipt"
    assert (found.confirmed, len(found.left)) == (4, 4)
    [booked] = Account("north").bookings()
    assert (booked.study, booked.data, booked.asked) == ("s", "north.csv", True)


def test_another_coordinator_process_goes_on_with_the_receipt(taught: House, tmp_path: Path) -> None:
    taught.answer(0, 1, 2)
    authority = Authority(tmp_path / "authority")
    with open(next((tmp_path / "run").iterdir()), "a") as file:
        file.write("\nnorth 12")  # cut by the crash
    taught.receipts = Receipts(
        authority.ledger_key(), terms_digest=taught.terms.digest, folder=tmp_path / "run"
    )
    taught.answer(3, 4)
    taught.end()
    assert taught.check().confirmed == 3


def test_a_receipt_of_somebody_else_is_not_kept_and_the_study_ends(taught: House, tmp_path: Path) -> None:
    other = Authority.init(tmp_path / "other", address="a:1", terms=taught.terms.to_json(), days=9)
    taught.receipts = Receipts(other.ledger_key(), terms_digest=taught.terms.digest, folder=None)
    taught.answer(0, 1)
    taught.end()
    assert not list(taught.state.glob("receipt-*"))
    assert taught.check().verdict.endswith("without a receipt")


def test_it_answers_nothing_more_and_says_what_was_given(
    taught: House, capsys: pytest.CaptureFixture[str]
) -> None:
    taught.answer(0, 1, 2)
    log = (taught.state / "log.jsonl").read_text()
    assert main(["hospital", "leave", str(taught.state)]) == 2  # nobody can be asked
    assert "--yes" in capsys.readouterr().err and not has_left(taught.state)
    for _ in range(2):
        assert main(["hospital", "leave", str(taught.state), "--yes"]) == 0
        said = capsys.readouterr().out
        assert "answers to 3 queries, in 2 messages" in said
        assert "ε against the coordinator: without a bound" in said and "stay released" in said
    assert not list(taught.state.glob("teacher-*")) and not (taught.state / "pool.npy").exists()
    assert (taught.state / "answered").is_dir() and (taught.state / "terms.json").exists()
    assert (taught.state / "log.jsonl").read_text().startswith(log)
    signed = json.loads((taught.state / STATEMENT_FILE).read_text())
    statement, key = signed["statement"], load_key(taught.identity / "hospital.key")
    text = json.dumps(statement, ensure_ascii=False, indent=1).encode()
    message = b"pate_fed/v1 statement of a hospital that left\n" + text
    assert is_signed(key.public_key(), signed["signature"], message)
    assert [each["kind"] for each in statement["messages"]] == ["joined", "answer"]
    for request in (taught.answer(3, 4), taught.answer(0, 1, 2), _teach(taught)):
        assert request == {"kind": "refused", "party": "north", "code": "LEFT"}
    assert not list(taught.state.glob("teacher-*"))
    taught.end()
    assert taught.check().verdict.startswith("verified") and taught.check().confirmed == 5
    assert Account("north").bookings()[0].asked


def _teach(house: House) -> Record:
    return house.send(JoinRequest(terms=house.terms.to_json(), pool=house.pool))


def test_a_study_that_was_left_before_anything_was_asked_costs_nothing(
    taught: House, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["hospital", "account", "--hospital", "north"]) == 0
    shown = capsys.readouterr().out
    assert "nothing was asked that follows from records: costs nothing" in shown
    assert "all together" not in shown
    assert main(["hospital", "leave", str(taught.state), "--yes"]) == 0
    assert "nothing about its records has left this house" in capsys.readouterr().out
    assert not Account("north").bookings()[0].asked
    assert main(["hospital", "account", "--format", "json"]) == 0  # the only one here
    shown = json.loads(capsys.readouterr().out)
    assert shown["totals"] == [] and shown["studies"][0]["public"] == 0


def test_a_study_beyond_the_limit_over_all_is_refused_before_a_teacher_is_trained(
    house: House, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(PLAIN + "epsilon_public_total = 0.01\n")
    assert _teach(house)["code"] == "POLICY_TOTAL"
    assert not list(house.state.glob("teacher-*")) and not (house.state / "terms.json").exists()
    assert Account("north").bookings() == []
    log = (house.state / "log.jsonl").read_text()
    assert "the policy allows 0.01 over all studies" in log
    policy.write_text(PLAIN + "epsilon_public_total = 1000.0\n")
    assert _teach(house)["kind"] == "joined"
    policy.write_text(
        PLAIN + "epsilon_public_total = 0.01\n"
    )  # stricter since: it is held to it at each question
    assert house.answer(0, 1)["code"] == "POLICY_TOTAL"


def test_an_account_that_cannot_be_written_stops_the_study(house: House, tmp_path: Path) -> None:
    (tmp_path / "home" / "pate_fed").mkdir(parents=True)
    (tmp_path / "home" / "pate_fed" / "account").write_text("x")
    assert _teach(house)["code"] == "DATA"
    assert not list(house.state.glob("teacher-*"))


def test_what_cannot_be_noted_does_not_leave(taught: House) -> None:
    key = taught.identity / "hospital.key"
    key.rename(key.with_name("aside"))  # nothing can be signed
    assert taught.answer(0, 1)["code"] == "LATER"
    key.with_name("aside").rename(key)
    taught.end()
    assert taught.check().broken == []


def test_an_answer_that_is_under_way_is_waited_for_or_thrown_away(
    taught: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(*given: object) -> np.ndarray:
        begun.set()
        assert go_on.wait(20)
        return np.full((2, 2), 1)

    monkeypatch.setattr("clients.kinds.votes.count_votes", slow)
    monkeypatch.setattr("clients.leave._WAIT_S", 0.3)
    replies: list[Record] = []
    answering = threading.Thread(target=lambda: replies.append(taught.answer(5, 6)))
    answering.start()
    assert begun.wait(20)
    assert not mark_left(taught.state)  # marked, though the answer is not there yet
    erase(taught.state)
    go_on.set()
    answering.join()
    assert replies[0]["code"] == "LEFT"
    assert not list(taught.state.glob("teacher-*"))
    monkeypatch.setattr("clients.leave._WAIT_S", 10.0)
    start = time.monotonic()
    with turn_to_answer(taught.state):
        waiting = threading.Thread(target=lambda: mark_left(taught.state))
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive()
    waiting.join()
    assert time.monotonic() - start < 5


def test_a_file_of_answers_that_a_full_disk_cut_short_is_erased_too(tmp_path: Path) -> None:
    for name in ("answer.npz.part", "features.bin.part"):
        (tmp_path / name).write_bytes(b"votes")
    assert erase(tmp_path) == ["features.bin.part", "answer.npz.part"] and not [*tmp_path.iterdir()]


def test_only_what_is_a_hospitals_is_erased(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "teacher-notes.txt").write_text("mine")
    assert main(["hospital", "leave", str(tmp_path), "--yes"]) == 2
    assert "no hospital ran there" in capsys.readouterr().err
    assert (tmp_path / "teacher-notes.txt").exists() and not has_left(tmp_path)
    assert main(["hospital", "leave", "no-such-study", "--yes"]) == 2
    assert "no study of that name" in capsys.readouterr().err
