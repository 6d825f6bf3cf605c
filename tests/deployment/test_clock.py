"""A clock that is wrong by a day, and certificates near their end: a sentence before anything is sent.

The clock of a real process is shifted where it matters: for certificates by their dates, and for the time
that Flower signs every message with by a module that the hospital's processes load first.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from vote_study import make_vote_study

from pate_fed.client import main as client_main
from pate_fed.identity import certificates
from pate_fed.server import main as server_main

# Loaded by every Python process before anything else; datetime itself cannot be changed, Flower's use can.
SHIFT = """
import importlib.abc, importlib.util, sys
class Late(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "flwr.supercore.date":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            from datetime import timedelta
            now = module.now
            module.now = lambda: now() - timedelta(days=1)
        spec.loader.exec_module = exec_module
        return spec
sys.meta_path.insert(0, Late())
"""


def _demo(folder: Path, days: float) -> None:
    """The demonstration as it was, or will be, made so many days from now."""

    class Clock(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:
            return datetime.now(UTC) + timedelta(days=days)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificates, "datetime", Clock)
        make_vote_study(folder)


SERVER = ("--config", "study.toml", "--tls-dir", "authority", "--run-dir", "run")
CLIENT = ("--hospital", "north", "--data", "north.csv", "--tls-dir", "identity-north")


@pytest.mark.parametrize(
    ("days", "words"),
    [(2.5, "is this machine's clock"), (-91, "expired on")],
    ids=["clock behind", "expired"],
)
def test_certificates_and_clock_are_held_together_at_the_start(
    days: float,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _demo(tmp_path, days)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATE_FED_SITE", "")  # the command sets it; the fixture takes it away again
    for main, options in ((server_main, SERVER), (client_main, CLIENT)):
        assert main(options) == 2
        told = capsys.readouterr()
        assert words in told.err
        assert told.out.splitlines()[-1].startswith("FAILED")


@pytest.mark.processes
def test_certificates_that_are_about_to_expire_are_told_of_and_serve(rehearsal: Any) -> None:
    _demo(rehearsal.folder, -80)
    parties = [
        rehearsal.start("server", "-m", "pate_fed.server", *SERVER),
        rehearsal.start("north", "-m", "pate_fed.client", *CLIENT),
    ]
    for party in parties:
        party.wait_for("expires in 9 days")
        party.process.terminate()
        assert party.wait(90) == 130, party.text


@pytest.mark.slow
def test_a_hospital_whose_clock_is_a_day_late_is_told_so(rehearsal: Any) -> None:
    folder = rehearsal.folder
    make_vote_study(folder)
    (folder / "shift").mkdir()
    (folder / "shift" / "sitecustomize.py").write_text(SHIFT, encoding="utf-8")
    rehearsal.start(
        "server",
        *("-m", "pate_fed.server", "--config", "study.toml", "--tls-dir", "authority", "--run-dir", "run"),
    )
    root = Path(__file__).resolve().parents[2]
    north = rehearsal.start(
        "north",
        *("-m", "pate_fed.client", "--hospital", "north", "--data", "north.csv"),
        *("--tls-dir", "identity-north"),
        PYTHONPATH=f"{folder / 'shift'}:{root}",
    )
    assert north.wait(240) == 2, north.text
    assert (
        "this machine's clock is more than 5 seconds ahead of the coordinator's or 5 minutes behind"
        in north.text
    )
    assert north.last_line.startswith("FAILED  hospital=north")
