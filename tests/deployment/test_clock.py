"""A clock that is wrong by a day, and certificates near their end: a sentence before anything is sent.

The clock of a real process is shifted where it matters: for certificates by their dates, and for the time
that Flower signs every message with by a module that the hospital's processes load first.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
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


SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long by(void) { const char *text = getenv("TEST_CLOCK_AHEAD"); return text ? atol(text) : 0; }
int clock_gettime(clockid_t id, struct timespec *now) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(id, now);
    if (id == CLOCK_REALTIME) now->tv_sec += by();
    return code;
}
int gettimeofday(struct timeval *now, void *zone) {
    int (*real)(struct timeval *, void *) = dlsym(RTLD_NEXT, "gettimeofday");
    int code = real(now, zone);
    now->tv_sec += by();
    return code;
}
time_t time(time_t *now) {
    time_t (*real)(time_t *) = dlsym(RTLD_NEXT, "time");
    time_t found = real(NULL) + by();
    if (now) *now = found;
    return found;
}
"""


@pytest.fixture
def wall_clock(tmp_path: Path) -> Path:
    """A library that shifts what a process reads of the wall clock, and no wait."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs a C compiler and Linux's preloading")
    source, library = tmp_path / "clock.c", tmp_path / "clock.so"
    source.write_text(SHIM, encoding="utf-8")
    built = [compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    if subprocess.run(built, capture_output=True, check=False).returncode:
        pytest.skip("the compiler here makes no shared library")
    return library


DAY = 86_400
FLOWERS = "this machine's clock is more than 5 seconds ahead of the coordinator's or 5 minutes behind"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("who", "ahead", "told"),
    [
        ("north", DAY, "north cannot connect: its clock is 24 h 00 min ahead of this machine's"),
        ("north", -DAY, "north cannot connect: its clock is 24 h 00 min behind this machine's"),
        ("server", DAY, "north cannot connect: its clock is 24 h 00 min behind this machine's"),
    ],
)
def test_a_wall_clock_that_is_another_is_told_on_both_screens(
    who: str, ahead: int, told: str, rehearsal: Any, wall_clock: Path
) -> None:
    _demo(rehearsal.folder, -3)
    shifted = {"LD_PRELOAD": str(wall_clock), "TEST_CLOCK_AHEAD": str(ahead)}
    server = rehearsal.start(
        "server", "-m", "pate_fed.server", *SERVER, **(shifted if who == "server" else {})
    )
    north = rehearsal.start("north", "-m", "pate_fed.client", *CLIENT, **(shifted if who == "north" else {}))
    server.wait_for(told, 120)
    north.wait_for(FLOWERS, 60)
    server.process.terminate()
    assert server.wait(60) == 130, server.text
    assert server.text.count("cannot connect: its clock") == 1


@pytest.mark.slow
@pytest.mark.parametrize("who", ["north", "server"])
def test_a_wall_clock_that_is_a_year_ahead_is_told_at_the_start(
    who: str, rehearsal: Any, wall_clock: Path
) -> None:
    _demo(rehearsal.folder, 0)
    command = {"north": ("pate_fed.client", *CLIENT), "server": ("pate_fed.server", *SERVER)}[who]
    shifted = {"LD_PRELOAD": str(wall_clock), "TEST_CLOCK_AHEAD": str(365 * DAY)}
    party = rehearsal.start(who, "-m", *command, **shifted)
    assert party.wait(120) == 2, party.text
    assert "or set this machine's clock (" in party.text


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
