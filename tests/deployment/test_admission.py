"""TLS and hospitals' keys with real processes: who is refused, and how the study goes on without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from vote_study import make_vote_study

from pate_fed.cli.demo import HOSPITALS
from pate_fed.identity import Authority, HospitalIdentity, make_request
from pate_fed.privacy import verify
from pate_fed.report.watching import read_snapshot, snapshot_rows
from pate_fed.server import main as server_main


def _small(folder: Path) -> Path:
    """The demonstration with few small trees: what is tested here are the identities."""
    made = make_vote_study(folder)
    assert len(made.lines()) == 5
    return folder


def _hospital(rehearsal: Any, name: str, *options: str) -> Any:
    base = ("-m", "pate_fed.client", "--hospital", name, "--data", f"{name}.csv")
    return rehearsal.start(name, *base, *(options or ("--tls-dir", f"identity-{name}")))


@pytest.mark.slow
def test_with_a_revoked_a_foreign_and_a_swapped_hospital_the_others_finish(rehearsal: Any) -> None:
    folder = _small(rehearsal.folder)
    authority = Authority(folder / "authority")
    # West's key answers under north's name; a stranger has keys of another authority for the same address.
    stranger = Authority.init(
        folder / "strange", address=authority.study.address, terms=authority.study.terms, days=9
    )
    own = folder / "identity-stranger"
    stranger.admit(make_request(own, "stranger"), days=9).write(own / "x.admission")
    HospitalIdentity.offered(own, own / "x.admission").take()
    foreign = rehearsal.start(
        "stranger",
        *("-m", "pate_fed.client", "--hospital", "stranger", "--data", "west.csv"),
        *("--tls-dir", "identity-stranger", "--wait", "60"),
    )
    server = rehearsal.start(
        "server",
        *("-m", "pate_fed.server", "--config", "study.toml", "--tls-dir", "authority", "--run-dir", "run"),
        *("--wait", "180"),  # a revoked one never comes; the others may be slow where much else runs
    )
    server.wait_for("listening on")
    authority.revoke("west")
    server.wait_for("west is revoked: shut out")
    # The server waits three minutes for west, which waits one to be admitted.
    west = _hospital(rehearsal, "west", "--tls-dir", "identity-west", "--wait", "60")
    hospitals = [_hospital(rehearsal, name) for name in HOSPITALS if name != "west"]
    west.wait_for("does not admit this hospital's key", 90)
    assert server.wait(400) == 0, server.text
    assert [party.wait(60) for party in hospitals] == [0, 0, 0]
    assert "3 of 4 connected" in server.text
    assert "SUCCESS" in server.last_line
    public = authority.ledger_key().public_key().public_bytes_raw().hex()
    assert verify(folder / "run" / "ledger.sqlite", public_key=public).answered > 0
    assert west.wait(120) == 2
    assert "error: the coordinator does not admit" in west.text
    assert foreign.wait(120) in (1, 2)
    assert "connected;" not in foreign.text
    for party in (*hospitals, west, foreign, server):
        assert "PRIVATE KEY" not in party.text
    for log in folder.rglob("*.log"):
        assert "PRIVATE KEY" not in log.read_text(encoding="utf-8", errors="replace")


@pytest.mark.processes
def test_while_hospitals_connect_everybody_sees_who_is_missing(rehearsal: Any) -> None:
    """On the coordinator's terminal, and for whoever watches; the one that was late takes part."""
    folder = _small(rehearsal.folder)
    server = rehearsal.start(
        "server",
        *("-m", "pate_fed.server", "--config", "study.toml", "--tls-dir", "authority", "--run-dir", "run"),
    )
    hospitals = [_hospital(rehearsal, name) for name in HOSPITALS if name != "west"]
    told = "3 of 4 connected (east, north, south); not yet: west"
    server.wait_for(f"waiting for hospitals: {told}")
    now = read_snapshot(folder / "run")
    assert now is not None
    rows = dict(snapshot_rows(now))
    assert rows["waits for"].startswith(told) and "▶ get ready (3 of 4)" in rows["phases"]
    hospitals.append(_hospital(rehearsal, "west"))
    assert server.wait(400) == 0, server.text
    assert [party.wait(60) for party in hospitals] == [0, 0, 0, 0]
    over = read_snapshot(folder / "run")
    assert over is not None and "waits for" not in dict(snapshot_rows(over)) and not over.result.left_out


def test_a_study_that_changed_after_hospitals_were_admitted_is_not_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = _small(tmp_path)
    study = folder / "study.toml"
    study.write_text(study.read_text().replace("sigma2 = 20.5", "sigma2 = 19.5"))
    arguments = [
        "--config",
        str(study),
        "--tls-dir",
        str(folder / "authority"),
        "--run-dir",
        str(folder / "run"),
    ]
    assert server_main(arguments) == 2
    assert "not the one that" in capsys.readouterr().err
    assert not (folder / "run").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: (folder / "identity-north" / "hospital.key").chmod(0o644), "others can read"),
        (lambda folder: (folder / "identity-north" / "admission.json").unlink(), "was not admitted yet"),
        (
            lambda folder: (folder / "identity-south" / "hospital.key").replace(
                folder / "identity-north" / "hospital.key"
            ),
            "not the key that was admitted as north",
        ),
    ],
)
def test_an_identity_that_will_not_do_is_refused_before_connecting(
    change: Any,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pate_fed.client import main

    folder = _small(tmp_path)
    change(folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "home"))
    command = ["--hospital", "north", "--data", "north.csv", "--tls-dir", "identity-north"]
    assert main(command) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert said.out.startswith("FAILED  hospital=north")
    assert "PRIVATE" not in said.err
    assert not (folder / "hospital-north").exists() and not (folder / "home").exists()
