"""Leaving from the command line: who is asked, what is shown, and what a damaged file means."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import make_label_terms, make_sum_terms, make_terms

from clients.account import Account, state_id
from clients.journal import Journal
from clients.leave import STATEMENT_FILE, has_left
from clients.log import LOG_FILE, HospitalLog
from clients.log_check import check_log
from clients.state_dir import LOCAL_SITE, LocalSettings
from pate_fed.config.sections import About
from pate_fed.kinds.terms import Terms
from pate_fed.protocol.messages import AnswerReply, Question, SumReply


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The state directory of a hospital without keys, before it agreed to a study."""
    folder = tmp_path / "state"
    folder.mkdir()
    LocalSettings(hospital="north", data="north.csv", state_dir=folder).write(folder / LOCAL_SITE)
    return folder


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accounts of these hospitals are nobody else's."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))


def agree(state: Path, terms: Terms) -> None:
    (state / "terms.json").write_text(terms.to_json(), encoding="utf-8")


def statement(state: Path) -> Any:
    return json.loads((state / STATEMENT_FILE).read_text(encoding="utf-8"))


def test_before_it_agreed_to_a_study_nothing_was_given(state: Path, run: Any) -> None:
    (state / "teacher-0.pt").touch()
    code, out, _ = run("hospital", "leave", str(state), "--yes")
    assert code == 0 and has_left(state)
    assert "north leaves a study that it has not agreed to yet" in out
    assert "erased: teacher-0.pt" in out and "north left before it agreed to a study on " in out
    assert "answers to 0 queries, in 0 messages in all\nnothing about its records has left this house" in out
    signed = statement(state)
    assert signed["signature"] is None and signed["statement"]["cannot_be_taken_back"] == []
    assert signed["statement"]["epsilon_at_most"] == {"delta": None, "public": None, "coordinator": None}
    code, again, _ = run("hospital", "leave", str(state), "--yes")
    assert code == 0 and "leaves" not in again and again in out  # the same statement, of the same day
    assert statement(state) == signed


def test_claims_tell_what_was_answered_where_the_log_is_lost(state: Path, run: Any) -> None:
    terms = make_terms(sigma1=12.0, sigma2=8.0, max_queries=7, labels=4)
    (state / "terms.json").write_text(terms.to_json(), encoding="utf-8")
    question = Question(terms_digest=terms.digest, batch=0, index=np.arange(7))
    Journal(state).claim(question)
    code, out, _ = run("hospital", "leave", str(state), "--yes")
    assert code == 0 and "north leaves the study 's'" in out
    assert "answers to 7 queries, in 0 messages in all" in out
    assert "ε against the public: at most " in out and "ε against the coordinator: without a bound" in out
    assert "stay released" in out and "What was spent of ε stays spent" in out
    most = statement(state)["statement"]["epsilon_at_most"]
    assert most["public"] > 0 and most["coordinator"] is None and most["delta"] == terms.privacy.delta


NOTHING = "nothing about its records has left this house"


def test_what_left_of_private_labels_is_told_and_what_did_not_is_struck(state: Path, run: Any) -> None:
    terms = make_label_terms()
    agree(state, terms)
    np.save(state / "response.npy", np.zeros((50, 2), dtype=np.int64))  # drawn: what is claimed may have left
    assert Account("north").book(terms, state=state_id(state), data="", policy=None) is None
    code, out, _ = run("hospital", "leave", str(state), "--yes")
    assert code == 0 and "erased: response.npy" in out and NOTHING in out
    assert not Account("north").bookings()[0].asked
    (state / STATEMENT_FILE).unlink()
    HospitalLog(state).record("handled", kind=AnswerReply.kind, sha256="0" * 64)
    code, out, _ = run("hospital", "leave", str(state), "--yes")
    assert code == 0 and "given: answers about its labels, in 1 message in all" in out
    assert "ε against the public: at most 1, at δ=0" in out
    assert "ε against the coordinator: at most 1, at δ=0" in out and "stay released" in out


@pytest.mark.parametrize("kind", [AnswerReply.kind, SumReply.kind])
@pytest.mark.parametrize("there", [True, False])
def test_a_logged_reply_with_private_data_has_left(kind: str, there: bool, state: Path, run: Any) -> None:
    if there:
        agree(state, make_terms(secure_sum=True, sigma1=40.0, sigma2=40.0))
    HospitalLog(state).record("handled", kind=kind, sha256="0" * 64)
    code, out, _ = run("hospital", "leave", str(state), "--yes")
    assert code == 0 and NOTHING not in out and "What was spent of ε stays spent" in out
    assert "without a bound" in out  # against the coordinator, or as no terms say how much it is
    assert ("north left a study whose terms are gone on " in out) is not there


def test_replies_without_private_data_give_nothing(state: Path, run: Any) -> None:
    agree(state, make_terms(secure_sum=True))
    for kind in ("taught", "refused", "ended"):
        HospitalLog(state).record("handled", kind=kind, sha256="0" * 64)
    code, out, _ = run("hospital", "leave", str(state), "--yes")
    assert code == 0 and f"answers to 0 queries, in 3 messages in all\n{NOTHING}" in out


@pytest.mark.parametrize(
    ("agreed", "gave"),
    [(make_sum_terms(), "class sums"), (make_terms(), "votes"), (make_label_terms(), "private labels")],
)
def test_what_stays_released_is_named(agreed: Terms, gave: str, state: Path, run: Any) -> None:
    agree(state, agreed)
    kind = SumReply.kind if agreed.asks.kind == "class-sums" else AnswerReply.kind
    HospitalLog(state).record("handled", kind=kind, sha256="0" * 64)
    code, out, _ = run("hospital", "leave", str(state), "--yes")
    assert (
        code == 0 and f"Labels that were released with this hospital's {gave} in them stay released." in out
    )


def test_what_is_agreed_to_while_the_user_is_asked_is_told_of(
    state: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answers_meanwhile(_: str) -> str:
        agree(state, make_label_terms())
        HospitalLog(state).record("handled", kind=AnswerReply.kind, sha256="0" * 64)
        return "yes"

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", answers_meanwhile)
    code, out, _ = run("hospital", "leave", str(state))
    assert code == 0 and NOTHING not in out and "at most 1, at δ=0" in out


@pytest.mark.parametrize(("said", "code"), [("yes", 0), (" YES ", 0), ("y", 2), ("", 2)])
def test_who_sits_at_a_terminal_is_asked(
    state: Path, run: Any, monkeypatch: pytest.MonkeyPatch, said: str, code: int
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _: said)
    found = run("hospital", "leave", str(state))
    assert found.code == code and has_left(state) is (code == 0)
    assert ("leaving wants a yes" in found.err) is (code == 2)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"hospital": 1, "data": "x", "state_dir": "y"}'])
def test_a_damaged_site_file_is_named_and_nothing_is_erased(state: Path, run: Any, text: str) -> None:
    (state / "teacher-0.pt").touch()
    (state / LOCAL_SITE).write_text(text, encoding="utf-8")
    code, out, err = run("hospital", "leave", str(state), "--yes")
    assert code == 2 and out == "" and "hospital.json: not a hospital's site file" in err
    assert (state / "teacher-0.pt").exists() and not has_left(state)


@pytest.mark.parametrize("text", ["", "[]", '{"statement": {}, "signature": null}'])
def test_a_damaged_statement_is_named(state: Path, run: Any, text: str) -> None:
    assert run("hospital", "leave", str(state), "--yes").code == 0
    (state / STATEMENT_FILE).chmod(0o600)
    (state / STATEMENT_FILE).write_text(text, encoding="utf-8")
    code, _, err = run("hospital", "leave", str(state), "--yes")
    assert code == 2 and f"{STATEMENT_FILE}: not a statement of" in err


def test_what_cannot_be_marked_changes_nothing(
    state: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    (state / "teacher-0.pt").touch()
    monkeypatch.setattr("clients.leave.write_private", full)
    code, _, err = run("hospital", "leave", str(state), "--yes")
    assert code == 2 and "cannot be written (No space left on device); nothing has changed" in err
    assert (state / "teacher-0.pt").exists() and not has_left(state)


def test_what_cannot_be_erased_is_erased_by_doing_it_again(
    state: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (state / "teacher-0.pt").touch()

    def read_only(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr("clients.leave.Path.unlink", read_only)
        code, _, err = run("hospital", "leave", str(state), "--yes")
    assert code == 2 and "not all could be erased (Read-only file system); do it again" in err
    assert has_left(state) and not (state / STATEMENT_FILE).exists()
    code, out, _ = run("hospital", "leave", str(state))  # it has left: nobody is asked again
    assert code == 0 and "erased: teacher-0.pt" in out and (state / STATEMENT_FILE).exists()


def test_terms_that_cannot_be_read_are_named_and_nothing_is_erased(state: Path, run: Any) -> None:
    (state / "teacher-0.pt").touch()
    (state / "terms.json").write_bytes(b"\xff")
    code, out, err = run("hospital", "leave", str(state), "--yes")
    assert code == 2 and out == "" and "the study's terms cannot be read (not UTF-8 text)" in err
    (state / "terms.json").unlink()
    (state / "terms.json").mkdir()
    code, _, err = run("hospital", "leave", str(state), "--yes")
    assert code == 2 and "the study's terms cannot be read (Is a directory)" in err
    assert (state / "teacher-0.pt").exists() and not has_left(state)


def test_a_statement_that_cannot_be_written_is_written_by_doing_it_again(
    state: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("clients.leave.state_leaving", full)
        code, _, err = run("hospital", "leave", str(state), "--yes")
    assert code == 2 and "without a statement (No space left on device); do it again" in err
    assert has_left(state) and not (state / STATEMENT_FILE).exists()
    assert run("hospital", "leave", str(state)).code == 0 and (state / STATEMENT_FILE).exists()


# After a study that has ended: `hospital tidy`.

WORK = ("teacher-0.pt", "features.bin", "answer.npz", "tmp/x", "secure_sum/study.state")
STAYS = (
    "teachers.key",
    "held-out.sha256",
    "receipt-1.json",
    "answered/1",
    "account.id",
    "secure_sum/roster.txt",
)


def ended(state: Path, terms: Terms, status: str = "success") -> None:
    """A study that ended there, with all that a hospital keeps of one."""
    agree(state, terms)
    for name in (*WORK, *STAYS, "student.bundle", "pool.npy"):
        (state / name).parent.mkdir(exist_ok=True)
        (state / name).write_text(name)
    HospitalLog(state).record("ended", status=status, terms=terms.digest)


def erased_by(state: Path) -> dict[str, str]:
    lines = map(json.loads, (state / LOG_FILE).read_text().splitlines())
    return {each["name"]: each["sha256"] for each in lines if each["event"] == "erased"}


def test_tidying_erases_what_an_ended_study_needs_no_more_and_logs_each(state: Path, run: Any) -> None:
    about = About(retention="two years")
    ended(state, make_terms(about=about))
    code, out, _ = run("hospital", "tidy", str(state))
    assert code == 0 and out.startswith("retention, by the terms: two years\nerased: ")
    assert erased_by(state) == {name: hashlib.sha256(name.encode()).hexdigest() for name in WORK}
    assert all((state / name).read_text() == name for name in (*STAYS, "student.bundle", "pool.npy"))
    assert check_log(state, None).broken == [] and not has_left(state)
    assert "erased features.bin (sha256 " in run("hospital", "log", str(state)).out
    code, out, _ = run("hospital", "tidy", str(state), "--student")
    assert code == 0 and "2 files erased" in out and not (state / "student.bundle").exists()
    assert run("hospital", "tidy", str(state), "--student").out.count("0 files erased") == 1
    assert all((state / name).read_text() == name for name in STAYS)


@pytest.mark.parametrize("status", ["failed", "aborted", "of another study"])
def test_a_study_that_may_go_on_is_not_tidied(status: str, state: Path, run: Any) -> None:
    ended(state, make_terms(), status)
    if status == "of another study":
        HospitalLog(state).record("ended", status="success", terms=make_terms(study="other").digest)
    code, _, err = run("hospital", "tidy", str(state))
    assert code == 2 and "has not ended with success" in err and "hospital leave" in err
    assert all((state / name).exists() for name in WORK) and erased_by(state) == {}


def test_answers_that_serve_later_studies_are_not_tidied(state: Path, run: Any) -> None:
    ended(state, make_label_terms())
    code, _, err = run("hospital", "tidy", str(state))
    assert code == 2 and "serves later studies" in err and all((state / name).exists() for name in WORK)


def test_a_hospital_that_runs_is_not_tidied(state: Path, run: Any) -> None:
    ended(state, make_terms())
    with (state / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as another process: of another open file
        code, _, err = run("hospital", "tidy", str(state))
    assert code == 2 and "one at a time is meant" in err and (state / "features.bin").exists()


def test_what_cannot_be_logged_is_not_erased(state: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ended(state, make_terms())

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("clients.leave.HospitalLog.record", full)
    code, _, err = run("hospital", "tidy", str(state))
    assert code == 2 and "not all could be erased (No space left on device); do it again" in err
    assert all((state / name).exists() for name in WORK)
