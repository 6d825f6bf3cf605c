"""One run of a sweep as a process: how it ends, and that it never outlives the sweep."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from pate_fed.cli import sweep_child
from pate_fed.errors import QuorumError
from pate_fed.runtime.signals import INTERRUPTED


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [(None, 0, ""), (QuorumError("too few"), 4, "too few\n"), (KeyboardInterrupt(), INTERRUPTED, "")],
)
def test_it_ends_with_the_study_s_code_and_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException | None,
    code: int,
    told: str,
) -> None:
    asked: list[tuple[Path, Path]] = []

    def simulate(study: Path, *, run_dir: Path, quiet: bool) -> None:
        asked.append((study, run_dir))
        if error is not None:
            raise error

    monkeypatch.setattr("pate_fed.cli.simulate.simulate", simulate)
    monkeypatch.setattr(sweep_child, "_end_with", lambda parent: None)
    monkeypatch.setattr(sys, "argv", ["sweep_child", "a.toml", "runs/a", "1"])
    assert sweep_child.main() == code
    assert asked == [(Path("a.toml"), Path("runs/a"))]
    assert capsys.readouterr() == ("", told)


def test_it_asks_itself_to_stop_once_the_sweep_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    parents, sent = [7, 7, 1], list[Any]()
    monkeypatch.setattr(os, "getppid", lambda: parents.pop(0))
    monkeypatch.setattr(os, "kill", lambda *signalled: sent.append(signalled))
    monkeypatch.setattr(sweep_child, "_WATCH_S", 0)
    sweep_child._end_with(7)
    assert sent == [(os.getpid(), signal.SIGTERM)] and not parents
