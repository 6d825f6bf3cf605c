"""README's five commands in terminals, folders and accounts as they are: a success is one, and says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pate_fed.cli.demo import HOSPITALS

ROOT = str(Path(__file__).resolve().parents[2])
PROXY = "http://127.0.0.1:9"
NOBODY = ("setpriv", "--reuid", "54321", "--regid", "54321", "--clear-groups")  # no account of the system
POSIX = {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
# What differs from a user with a home and a UTF-8 terminal. None takes a variable away.
CASES: dict[str, dict[str, str | None]] = {
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "posix": {**POSIX},
    "umlauts, latin-1": {"PYTHONIOENCODING": "latin-1"},
    "full": {},
    "closed": {},
    "cron": {"PATH": "/usr/bin:/bin", "LANG": None, "TERM": None},
    "proxy": {
        "ALL_PROXY": "socks5://127.0.0.1:9",
        "https_proxy": PROXY,
        "http_proxy": PROXY,
        "no_proxy": "x",
    },
    "no home": {"HOME": None},
    "home in the state's variable alone": {"HOME": "/nonexistent"},
}


def _shell(case: str, err: str) -> str:
    where = {"full": f"> /dev/full 2>> '{err}'", "closed": "<&- >&- 2>&-"}
    return f"""exec "$0" "$@" {where.get(case, f"< /dev/null >> out 2>> '{err}'")}"""


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.processes if case in ("ascii", "full") else pytest.mark.slow)
        for case in CASES
    ],
)
def test_the_five_commands_where_they_run(case: str, tmp_path: Path) -> None:
    who = NOBODY if case == "no home" else ()
    probe = [*who, sys.executable, "-c", "import numpy"]
    if who and (os.getuid() != 0 or subprocess.run(probe, capture_output=True, check=False).returncode):
        pytest.skip("no other user can run this Python here")
    tmp_path.chmod(0o777)
    for each in [*tmp_path.parents][:2] if who else ():  # of this test run
        each.chmod(0o711)
    environment: dict[str, str | None] = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path / "home"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "LANG": "C.UTF-8",
        "PYTHONPATH": ROOT,
        "OMP_NUM_THREADS": "1",
        **CASES[case],
    }

    def start(name: str, folder: Path, *command: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*who, "sh", "-c", _shell(case, f"{tmp_path}/{name}.err"), sys.executable, "-m", *command],
            cwd=folder,
            env={key: value for key, value in environment.items() if value is not None},
        )

    demo = tmp_path / ("Köln Übung" if case.startswith("umlauts") else "demo")
    made = start("demo", tmp_path, "pate_fed.cli", "demo", "hospitals", str(demo)).wait(240)
    assert made == (2 if case == "full" else 0)  # its output is lost
    options = ("--config", "study.toml", "--tls-dir", "authority", "--run-dir", "run")
    begun: dict[str, Any] = {"server": start("server", demo, "pate_fed.server", *options)}
    for name in HOSPITALS:
        given = ("--hospital", name, "--data", f"{name}.csv", "--tls-dir", f"identity-{name}")
        begun[name] = start(name, demo, "pate_fed.client", *given)
    try:
        codes = {name: process.wait(240) for name, process in begun.items()}
    finally:
        for process in begun.values():
            process.kill()
    told = {path.stem: path.read_text(encoding="utf-8", errors="replace") for path in tmp_path.glob("*.err")}
    assert set(codes.values()) == {0}, told
    assert not [name for name, text in told.items() if "Traceback" in text], told
    metrics = (demo / "run" / "metrics.json").read_text(encoding="utf-8")
    assert '"status": "success"' in metrics
    if case in ("ascii", "posix"):
        assert (demo / "out").read_bytes().isascii() and b"SUCCESS  epsilon=1 delta=1e-5" in (
            demo / "out"
        ).read_bytes()
