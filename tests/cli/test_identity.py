"""`pate-fed study`, `hospital` and `demo`: the commands as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clients.journal import Journal
from pate_fed.cli import demo
from pate_fed.cli.main import main
from pate_fed.identity import Authority
from pate_fed.protocol.messages import Refusal


def _run(capsys: pytest.CaptureFixture[str], *command: str) -> tuple[int, str, str]:
    code = main(command)
    said = capsys.readouterr()
    return code, said.out, said.err


def test_from_a_new_study_to_a_revoked_hospital(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = _run(capsys, "demo", "hospitals", "demo")
    assert code == 0
    assert out.count("python -m pate_fed.client --hospital") == 4
    init = ("study", "init", "ca", "--config", "demo/study.toml", "--address", "here.example:9092")
    code, out, _ = _run(capsys, *init)
    assert code == 0
    fingerprint = out.split("another way): ")[1].split()[0]
    public = Authority(Path("ca")).ledger_key().public_key().public_bytes_raw().hex()
    assert f"--public-key {public}" in out
    assert _run(capsys, "hospital", "request", "--name", "north", "--dir", "id")[0] == 0
    assert _run(capsys, "study", "admit", "id/north.req", "--dir", "ca")[0] == 0
    wrong = ("hospital", "accept", "north.admission", "--dir", "id", "--fingerprint", "00" * 32)
    code, _, err = _run(capsys, *wrong)
    assert code == 6
    assert "do not join" in err
    code, out, _ = _run(capsys, *wrong[:-1], fingerprint)
    assert (code, "here.example:9092" in out) == (0, True)
    assert "what they cost at most: 'breast-cancer': up to " in out
    assert "against the public, no bound against the coordinator, for one record" in out
    assert _run(capsys, "study", "list", "--dir", "ca")[1] == "north  364 days left\n"
    assert _run(capsys, "study", "revoke", "north", "--dir", "ca")[0] == 0
    assert _run(capsys, "study", "list", "--dir", "ca")[1] == ""
    code, _, err = _run(capsys, "study", "revoke", "north", "--dir", "ca")
    assert code == 2
    assert "admitted: none" in err


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("study", "init", "ca", "--config", "none.toml", "--address", "h:1"), "none.toml"),
        (("study", "init", "ca", "--config", "none.toml", "--address", "h"), "HOST:PORT"),
        (("study", "admit", "x.req", "--days", "0"), "1 to 3650 days"),
        (("study", "admit", "x.req"), "x.req"),
        (("hospital", "log", "."), "log.jsonl"),
        (("hospital", "request", "--name", "a/b"), "hospital's name"),
    ],
)
def test_mistakes_are_named(
    command: tuple[str, ...],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = _run(capsys, *command)
    assert code == 2
    assert words in err
    assert list(tmp_path.iterdir()) == []


def test_a_hospitals_log_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = Journal(tmp_path)
    journal.note("taught", teacher=0)
    journal.note("voted", queries=30, bytes=480)
    journal.note("handled", seconds=4.454343)
    journal.note("sent", message_type="query.votes", bytes=1589)
    journal.note("sent", message_type="query.end", bytes=400)
    journal.note("policy", reason="POLICY_DAY", sentence="too many today: 3 more")
    journal.note("refused", reason="POLICY_DAY")
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"time": 1, "eve')
    code, out, _ = _run(capsys, "hospital", "log", str(tmp_path))
    lines = out.splitlines()
    assert code == 0
    assert lines[-1] == "in all: 30 queries answered, 1 requests refused, 1989 bytes sent, 1 lines cut"
    for line, words in zip(
        lines,
        (
            "trained teacher 1",
            "voted on 30",
            "took 4.5 s",
            "1589 bytes",
            "400 bytes",
            "3 more",
            Refusal.POLICY_DAY.value,
        ),
        strict=False,
    ):
        assert words in line
    code, out, _ = _run(capsys, "hospital", "log", str(tmp_path), "--format", "json")
    assert json.loads(out.splitlines()[-1])["bytes"] == 1989


def test_a_demonstration_that_waits_is_run_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[demo.Demo] = []
    monkeypatch.setattr(demo, "run_demo", lambda made: seen.append(made) or 0)
    folder = tmp_path / "demo"
    command = ("demo", "hospitals", str(folder))
    assert _run(capsys, *command)[0] == 0
    key = (folder / "authority" / "ca.key").read_bytes()
    assert _run(capsys, *command, "--run")[0] == 0  # the README's two lines, one after the other
    assert [made.folder for made in seen] == [folder]
    assert (folder / "authority" / "ca.key").read_bytes() == key
    (folder / "run").mkdir()
    code, _, err = _run(capsys, *command, "--run")
    assert code == 2 and "holds a study already" in err


@pytest.mark.slow
def test_the_demonstration_runs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "hospitals", str(tmp_path / "demo"), "--run"]) == 0
    out = capfd.readouterr().out
    assert "SUCCESS  ε=" in out
    for name in ("north", "east", "south", "west"):
        assert "SUCCESS" in (tmp_path / "demo" / f"{name}.log").read_text(encoding="utf-8").splitlines()[-1]
