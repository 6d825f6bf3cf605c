"""Flower's commands as children in private folders: read by lines, ended, and ending with their parent."""

from __future__ import annotations

import os
import signal
import stat
import sys
import time
from pathlib import Path

import pytest

from pate_fed.errors import InputError
from pate_fed.flower import prepare_environment, processes

prepare_environment()

from pate_fed.flower.processes import SECRET, Child, private_folder

PROGRAM = """
import os, sys, time
print(os.environ["FLWR_HOME"])
print(sys.argv[1:])
sys.stdout.write("half a")
sys.stdout.flush()
time.sleep(60)
"""


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


class _Exit(BaseException):
    def __init__(self, code: int) -> None:
        self.code = code


def _exit(code: int) -> None:
    raise _Exit(code)


@pytest.mark.parametrize(
    ("end", "code"),
    [(None, 0), (SystemExit(3), 3), (SystemExit("no address"), 1), (RuntimeError("a fault"), 1)],
    ids=str,
)
def test_the_exit_code_is_the_commands(
    end: BaseException | None, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []

    def run(command: str) -> None:
        seen.append([command, *sys.argv[1:]])
        if end is not None:
            raise end

    monkeypatch.setattr(processes, "_run", run)
    monkeypatch.setattr(processes, "_end_with", lambda parent: None)
    monkeypatch.setattr(os, "_exit", _exit)
    monkeypatch.setattr(sys, "argv", ["child", "flower-superlink", str(os.getppid()), "--insecure"])
    with pytest.raises(_Exit) as caught:
        processes.main()
    assert caught.value.code == code
    assert seen == [["flower-superlink", "--insecure"]]


def test_only_the_two_commands_are_run() -> None:
    with pytest.raises(ValueError, match="unknown command"):
        processes._run("flower-superexec")


def test_a_child_whose_parent_is_gone_ends_gently_and_then_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parents, sent = iter([7, 7, 1]), list[tuple[int, int]]()
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    monkeypatch.setattr(os, "kill", lambda *given: sent.append(given))
    monkeypatch.setattr(os, "_exit", _exit)
    monkeypatch.setattr("pate_fed.flower.processes._WATCH_S", 0.0)
    monkeypatch.setattr("pate_fed.flower.processes._END_S", 0.0)
    with pytest.raises(_Exit) as caught:
        processes._end_with(7)
    assert caught.value.code == 1
    assert sent == [(os.getpid(), signal.SIGTERM)]
    assert next(parents, None) is None  # it stayed as long as the parent was there
