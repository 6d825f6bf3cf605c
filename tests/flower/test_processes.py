"""Children are started in private folders, read line by line and ended; addresses are taken apart."""

from __future__ import annotations

import socket
import stat
import sys
import time
from pathlib import Path

import pytest

from pate_fed.errors import InputError
from pate_fed.flower import processes
from pate_fed.flower.processes import (
    SECRET,
    Child,
    check_port,
    free_port,
    is_loopback,
    private_folder,
    split_address,
)

PROGRAM = """
import os, sys, time
print(os.environ["FLWR_HOME"])
print(sys.argv[1:])
sys.stdout.write("half a")
sys.stdout.flush()
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("h:1", ("h", 1)),
        ("h", ("h", None)),
        ("[::1]:9092", ("::1", 9092)),
        ("[::1]", ("::1", None)),
    ],
)
def test_an_address_is_taken_apart(address: str, found: tuple[str, int | None]) -> None:
    assert split_address(address, option="--server") == found


@pytest.mark.parametrize("address", ["", ":1", "h:0", "h:65536", "h:x", "h:-1"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(InputError, match=r"--server .*HOST:PORT is meant"):
        split_address(address, option="--server")


def test_a_port_is_free_or_taken() -> None:
    check_port("127.0.0.1", free_port(), option="--address")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InputError, match=r"--address 127\.0\.0\.1:.*give another port"):
            check_port("127.0.0.1", taken.getsockname()[1], option="--address")


def test_only_this_machines_own_addresses_are_loopback() -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "0.0.0.0", "192.0.2.1")] == [
        True,
        True,
        False,
        False,
    ]


def test_a_folder_is_private_or_told_of(tmp_path: Path) -> None:
    made = private_folder(tmp_path / "a" / "b")
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file: the folder cannot be made"):
        private_folder(tmp_path / "file")


def test_a_child_is_read_by_whole_lines_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_started", lambda command: [sys.executable, "-c", PROGRAM, command])
    child = Child("flower-superlink", ["--insecure"], folder=tmp_path / "state")
    lines: list[str] = []
    end = time.monotonic() + 60
    while len(lines) < 2:
        assert time.monotonic() < end
        time.sleep(0.02)
        lines += child.new_lines()
    assert lines[0] == str(tmp_path / "state" / "flwr")  # nothing of it lies in the user's home
    assert "'--isolation', 'process'" in lines[1] and "'--insecure'" in lines[1]
    assert child.secret.decode() not in lines[1]
    assert child.running and child.new_lines() == []
    assert (tmp_path / "state" / SECRET).read_bytes() == child.secret
    child.stop()
    child.stop()
    assert not child.running
    assert not (tmp_path / "state" / SECRET).exists()
    files = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
