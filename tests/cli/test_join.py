"""`pate-fed hospital join`: a yes, the doctor, the client; asked once, and never started on a problem."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pate_fed.cli import join


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The command lines that the client was started with."""
    seen: list[list[str]] = []

    def client(command: list[str]) -> int:
        seen.append(command)
        return 4

    monkeypatch.setattr(join, "run_client", client)
    return seen


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How often the machine was looked at; it is well."""
    looked: list[str] = []

    def findings(requirements: Any) -> list[Any]:
        looked.append(requirements.what)
        return []

    monkeypatch.setattr(join, "machine_findings", findings)
    return looked


@pytest.fixture
def demo(demonstration: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "demo"
    shutil.copytree(demonstration, folder)
    (folder / "identity-north" / "admission.json").unlink()
    monkeypatch.chdir(folder)
    return folder


JOIN = (
    "hospital",
    "join",
    "identity-north/north.admission",
    "--dir",
    "identity-north",
    "--data",
    "north.csv",
)


def test_the_first_time_it_asks_and_looks_the_second_it_goes_on(
    demo: Path, run: Any, started: list[list[str]], machine: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = run(*JOIN, "--yes", "--wait", "7", "--quiet")
    assert code == 4  # the client's
    assert out.index("WHO SEES IT") < out.index("accepted by") < out.index("ok       records")
    own = ["--hospital", "north", "--tls-dir", "identity-north", "--data", "north.csv", "--wait", "7.0"]
    assert started == [[*own, "--quiet"]] and machine == ["a hospital"]
    monkeypatch.setattr("sys.stdin", io.StringIO())  # nobody to ask
    code, out, _ = run(*JOIN, "--wait", "7", "--state-dir", "mine")
    assert code == 4 and "WHO SEES IT" not in out and "accepted on" in out
    assert started[1] == [*own[:6], "--state-dir", "mine", *own[6:]] and len(machine) == 1
    assert len((demo / "identity-north" / "consent.jsonl").read_text().splitlines()) == 1


def test_nothing_starts_on_a_problem_or_without_a_yes(
    demo: Path, run: Any, started: list[list[str]], machine: list[str]
) -> None:
    code, _, err = run(*JOIN)
    assert code == 2 and "give --yes" in err
    (demo / "identity-north" / "policy.toml").unlink()
    code, out, _ = run(*JOIN, "--yes")
    assert code == 5 and "plain_votes = true" in " ".join(out.split()) and "not started" in out
    assert started == []


@pytest.mark.parametrize("option", ["--data", "--pool", "--policy"])
def test_a_file_that_is_not_there_is_told_before_the_yes(
    option: str, demo: Path, run: Any, started: list[list[str]]
) -> None:
    code, out, err = run(*JOIN, "--yes", option, "nope.csv")
    assert code == 2 and f"{option} nope.csv: there is no such file or folder" in err
    assert "accepted" not in out and started == []
    assert not (demo / "identity-north" / "consent.jsonl").exists()
    assert not (demo / "identity-north" / "admission.json").exists()
    (demo / "plain").touch()
    code, _, err = run(*JOIN, "--yes", option, "plain/nope.csv")
    assert code == 2 and f"{option} plain/nope.csv: cannot be read (Not a directory)" in err
    code, _, err = run(*JOIN, "--yes", option, "n" * 300)
    assert code == 2 and "cannot be read (File name too long)" in err and started == []


def test_a_coordinator_that_is_not_there_yet_is_waited_for(
    demo: Path, run: Any, started: list[list[str]], machine: list[str]
) -> None:
    assert run(*JOIN, "--yes", "--server", "coordinator..example:9092").code == 4
    assert started[0][-4:-2] == ["--server", "coordinator..example:9092"]


def test_a_study_that_changed_is_asked_about_again(
    demo: Path, run: Any, started: list[list[str]], machine: list[str]
) -> None:
    assert run(*JOIN, "--yes").code == 4
    record = demo / "identity-north" / "consent.jsonl"
    consent = json.loads(record.read_text())
    record.write_text(json.dumps({**consent, "terms": "00" * 32}) + "\n")
    assert run(*JOIN).code == 2
    assert run(*JOIN, "--yes").code == 4
    assert len(record.read_text().splitlines()) == 2


def test_a_folder_without_keys_is_told_where_keys_come_from(demo: Path, run: Any) -> None:
    code, _, err = run(*JOIN[:3], "--dir", "elsewhere", *JOIN[5:])
    assert (code, "elsewhere: holds no hospital.key" in err, "`pate-fed hospital request`" in err) == (
        2,
        True,
        True,
    )
    code, _, err = run("hospital", "terms", "identity-north")
    assert (code, "identity-north: no admission was accepted there yet" in err) == (2, True)
