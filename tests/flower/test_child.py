"""Flower's commands as children: they end with their parent, and their exit code is the command's."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from pate_fed.flower import child, prepare_environment
from pate_fed.flower.environment import GUARD

prepare_environment()

from pate_fed.flower import guard


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

    monkeypatch.setattr(child, "_run", run)
    monkeypatch.setattr(child, "_end_with", lambda parent: None)
    monkeypatch.setattr(os, "_exit", _exit)
    monkeypatch.setattr(sys, "argv", ["child", "flower-superlink", str(os.getppid()), "--insecure"])
    with pytest.raises(_Exit) as caught:
        child.main()
    assert caught.value.code == code
    assert seen == [["flower-superlink", "--insecure"]]


def test_what_the_environment_holds_is_put_around_the_command_once(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[str, str]] = []
    monkeypatch.setattr(guard, "install", lambda *given: done.append(given))
    monkeypatch.setenv(GUARD, "{}")
    for _ in range(2):
        with pytest.raises(ValueError, match="unknown command"):
            child._run("flower-superexec")
    assert done == [("flower-superexec", "{}")]


def test_only_the_two_commands_are_run() -> None:
    with pytest.raises(ValueError, match="unknown command"):
        child._run("flower-superexec")


def test_a_child_whose_parent_is_gone_ends_gently_and_then_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parents, sent = iter([7, 7, 1]), list[tuple[int, int]]()
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    monkeypatch.setattr(os, "kill", lambda *given: sent.append(given))
    monkeypatch.setattr(os, "_exit", _exit)
    monkeypatch.setattr("pate_fed.flower.child._WATCH_S", 0.0)
    monkeypatch.setattr("pate_fed.flower.child._GRACE_S", 0.0)
    with pytest.raises(_Exit) as caught:
        child._end_with(7)
    assert caught.value.code == 1
    assert sent == [(os.getpid(), signal.SIGTERM)]
    assert next(parents, None) is None  # it stayed as long as the parent was there
