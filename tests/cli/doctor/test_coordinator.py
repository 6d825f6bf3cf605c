"""`pate-fed doctor` at the coordinator: study, keys, hospitals and port, each with its fault."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pate_fed.cli.doctor.machine import PROBLEM, WARNING, Finding, Requirements
from pate_fed.cli.main import main
from pate_fed.identity import Authority

STUDY = ("--config", "study.toml", "--tls-dir", "authority")


def _edit(folder: Path, old: str, new: str) -> None:
    path = folder / "study.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def _revoke(folder: Path, *names: str) -> None:
    for name in names:
        Authority(folder / "authority").revoke(name)


def _swap_key(folder: Path) -> None:
    other = Authority.init(folder / "else", address="127.0.0.1:1", terms="{}", days=9)
    (other.folder / "server.key").replace(folder / "authority" / "server.key")


def test_a_coordinator_that_is_ready(site: Any) -> None:
    before = site.snapshot()
    found = site.coordinator(*STUDY, "--run-dir", "run")
    assert list(found) == ["study", "pool", "keys", "hospitals", "quorum", "address", "run"]
    assert {row.severity for row in found.values()} == {"ok"}
    assert found["hospitals"].text == "4 admitted: east, north, south, west"
    assert found["quorum"].text == "3 of 4 hospitals must answer each batch"
    assert site.snapshot() == before


@pytest.mark.parametrize(
    ("fault", "options", "check", "code", "words"),
    [
        (lambda f: _edit(f, "quorum", "quorom"), (), "study", 2, "did you mean quorum"),
        (lambda f: (f / "pool.csv").unlink(), (), "pool", 2, "no such file"),
        (lambda f: _edit(f, "epsilon = 3.0", "epsilon = 0.001"), (), "pool", 2, "not even one query fits"),
        (lambda f: _edit(f, "sigma2 = 20.5", "sigma2 = 19.5"), (), "keys", 2, "would refuse it"),
        (lambda f: (f / "authority/server.key").chmod(0o644), (), "keys", 2, "chmod 600"),
        (lambda f: (f / "authority/ledger.key").chmod(0o604), (), "keys", 2, "chmod 600"),
        (lambda f: (f / "authority/server.key").write_text("x"), (), "keys", 2, "not a key of"),
        (_swap_key, (), "keys", 2, "is not the key of server.crt"),
        (lambda f: (f / "authority/server.crt").unlink(), (), "keys", 2, "server.crt: cannot be read"),
        (lambda f: (f / "authority/hospitals/west.crt").write_text("x"), (), "hospitals", 2, "not a certi"),
        (lambda f: _revoke(f, "north", "west"), (), "quorum", 4, "but 2 can connect: admit 1 more"),
        (lambda f: None, ("--address", "127.0.0.1:99999"), "address", 2, "HOST:PORT is meant"),
        (lambda f: None, ("--address", "192.0.2.1:9092"), "address", 2, "cannot listen there"),
        (lambda f: None, ("--run-dir", "study.toml"), "run", 2, "a file of that name exists"),
        (lambda f: None, ("--run-dir", "."), "run", 2, "run of another study"),
        (lambda f: None, ("--num-hospitals", "0"), "study", 2, "--num-clients"),
    ],
)
def test_a_fault_is_named_with_its_cure(
    fault: Callable[[Path], object], options: tuple[str, ...], check: str, code: int, words: str, site: Any
) -> None:
    fault(site.folder)
    before = site.snapshot()
    row = site.coordinator(*STUDY, *options)[check]
    assert (row.severity, row.exit_code) == (PROBLEM, code), row
    assert words in row.text
    assert site.snapshot() == before


def test_a_port_that_is_taken_or_another_than_hospitals_were_told(site: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        row = site.coordinator(*STUDY, "--address", address)["address"]
        assert (row.severity, row.exit_code) == (PROBLEM, 2)
        assert "Address already in use" in row.text and "give another port" in row.text
    row = site.coordinator(*STUDY, "--address", address)["address"]
    assert row.severity == WARNING
    assert "hospitals were told 127.0.0.1:" in row.text


def test_hospitals_that_are_missing_or_cannot_connect(site: Any, shift_clock: Any) -> None:
    _revoke(site.folder, "west")
    row = site.coordinator(*STUDY)["quorum"]
    assert row.severity == WARNING and "3 can connect so far, so none of these may fail" in row.text
    authority = Authority(Path("authority"))
    with shift_clock(-30):
        authority.admit(Path("identity-east/east.req"), days=20)
    found = site.coordinator(*STUDY)
    assert found["hospitals"].severity == WARNING
    assert "east's certificate expired" in found["hospitals"].text
    assert (found["quorum"].severity, found["quorum"].exit_code) == (PROBLEM, 4)


def test_what_masks_and_seeds_mean_is_said(site: Any) -> None:
    _edit(site.folder, "[privacy]", '[secrecy]\nsecure_sum = true\nnoise_at = "hospitals"\n[privacy]')
    _edit(site.folder, "[study]", "[study]\nseed = 3")
    found = site.coordinator("--config", "study.toml")
    assert "under masks stay to its end; the noise of 2 of them is counted on" in found["quorum"].text
    assert found["study"].severity == WARNING and "protects nobody" in found["study"].text


def test_the_machine_is_held_to_as_many_hospitals_as_the_study_has(
    site: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def looked_at(requirements: Requirements, device: str) -> Iterator[Finding]:
        asked.append(requirements.what)
        return iter(())

    monkeypatch.setattr("pate_fed.cli.doctor.machine.machine_findings", looked_at)
    main(["doctor", *STUDY, "--num-hospitals", "4"])
    capsys.readouterr()
    assert asked == ["a coordinator of 4 hospitals"]
