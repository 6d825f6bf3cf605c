"""Four real hospitals, of which one leaves in the middle: each log is proven, and what left is receipted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pate_fed.cli.consent import confirm_in
from pate_fed.cli.main import main
from pate_fed.cli.terms import make_terms_of
from pate_fed.identity import Authority, HospitalIdentity, make_request

NAMES = ("north", "east", "south", "west")
POLICY = "epsilon_coordinator_total = 1000.0\ndelta = 1e-5\n"


def _study(rehearsal: Any) -> None:
    """Twelve batches of five queries, under masks, with noise at the hospitals."""
    text = rehearsal.write_tables(private=False).replace("seed = 5\n", "")
    (rehearsal.folder / "south.csv").write_bytes((rehearsal.folder / "east.csv").read_bytes())
    for before, after in (
        ("num_clients = 3", "num_clients = 4"),
        ("batch_size = 30", "batch_size = 5\nmax_queries = 60"),
        ("[student]", '[secrecy]\nsecure_sum = true\nnoise_at = "hospitals"\n[student]'),
    ):
        assert before in text
        text = text.replace(before, after)
    (rehearsal.folder / "study.toml").write_text(text, encoding="utf-8")


def _admit(folder: Path, address: str) -> None:
    terms = make_terms_of(folder / "study.toml", num_hospitals=4)
    port = address.rpartition(":")[2]
    authority = Authority.init(folder / "authority", address=f"localhost:{port}", terms=terms, days=9)
    for admission in authority.admit_all(
        [make_request(folder / f"id-{name}", name) for name in NAMES], days=9
    ):
        identity = folder / f"id-{admission.hospital}"
        admission.write(identity / "admission")
        HospitalIdentity.offered(identity, identity / "admission").take()
        (identity / "policy.toml").write_text(POLICY)
        confirm_in(identity / "policy.toml", admission.hospitals)


@pytest.mark.slow
def test_each_log_is_proven_and_a_hospital_may_leave_in_the_middle(
    rehearsal: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = rehearsal.folder
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    _study(rehearsal)
    _admit(folder, rehearsal.address)
    server = rehearsal.start(
        "server",
        *("-m", "pate_fed.server", "--config", "study.toml", "--tls-dir", "authority", "--run-dir", "run"),
    )
    hospitals = {
        name: rehearsal.start(
            name,
            *("-m", "pate_fed.client", "--hospital", name),
            *("--data", f"{name}.csv", "--tls-dir", f"id-{name}"),
            *("--state-dir", f"state-{name}", "--policy", f"id-{name}/policy.toml"),
        )
        for name in NAMES
    }
    hospitals["west"].wait_for("answered under masks: ")
    assert main(["hospital", "leave", str(folder / "state-west"), "--yes"]) == 0
    assert "west left table on" in capsys.readouterr().out
    assert server.wait(300) == 0, server.text
    assert [hospitals[name].wait(60) for name in NAMES] == [0] * 4
    assert "this hospital has left the study" in hospitals["west"].text
    votes = {name: hospitals[name].text.count("answered under masks: ") for name in NAMES}
    assert {votes[name] for name in NAMES[:3]} == {12} and 1 <= votes["west"] < 12

    for name in NAMES:
        capsys.readouterr()
        code = main(["hospital", "log", str(folder / f"state-{name}"), "--verify", "--format", "json"])
        found = json.loads(capsys.readouterr().out)
        assert code == 0 and found["broken"] == [], found
        receipted = f"verified: whole, in order, signed by {name}, with the coordinator's receipt"
        assert found["verdict"] == receipted
        # The terms, four steps a batch, and a refusal for each batch after leaving.
        assert found["confirmed"] == len(found["left"]) >= 12
        assert main(["hospital", "account", "--dir", str(folder / f"id-{name}")]) == 0
        assert "all together: ε=" in capsys.readouterr().out

    statement = json.loads((folder / "state-west" / "left-the-study.json").read_text())["statement"]
    assert statement["queries_answered"] == 5 * votes["west"]
    assert statement["epsilon_at_most"]["coordinator"] > 0
    assert not list((folder / "state-west").glob("teacher-*"))
    assert not (folder / "run" / "private").exists()

    log = folder / "state-north" / "log.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"rows": 5', b'"rows": 4', 1))
    assert main(["hospital", "log", str(folder / "state-north"), "--verify"]) == 6
    assert "NOT verified" in capsys.readouterr().out
    # A hospital that left does not connect again.
    again = rehearsal.start(
        "again",
        *("-m", "pate_fed.client", "--hospital", "west", "--data", "west.csv", "--tls-dir", "id-west"),
        *("--state-dir", "state-west"),
    )
    assert again.wait(60) == 5 and "has left the study" in again.text
