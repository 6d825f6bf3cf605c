"""A signal that comes while a library is being imported ends a process as at any other time.

Such an interruption may get lost on its way out, become another error, or end the process as if SIGINT had:
all three were seen in the first second of a hospital's process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

# Loaded by Python before anything else: the signal comes with one import of the process's, and meets this.
SIGNAL = """
import importlib.abc, os, signal, sys
class Signalled(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != {module!r}:
            return None
        sys.meta_path.remove(self)
        try:
            {send}
        except BaseException as error:
            {then}
        return None
sys.meta_path.insert(0, Signalled())
"""
SEND = "os.kill(os.getpid(), signal.{})"
FATES = {
    "swallowed": (SEND.format("SIGTERM"), "pass"),
    "made another": (SEND.format("SIGTERM"), "raise RuntimeError('cannot build the model') from error"),
    "in compiled code": (f"exec({SEND.format('SIGINT')!r})", "raise"),
}


@pytest.mark.parametrize(
    ("party", "fate"),
    [
        pytest.param("hospital", "in compiled code", marks=pytest.mark.processes),
        pytest.param("coordinator", "swallowed", marks=pytest.mark.processes),
        # Processes: the rest of what was seen once takes longer than it tells more.
        *(
            pytest.param(party, fate, marks=pytest.mark.slow)
            for party, fate in (
                ("hospital", "swallowed"),
                ("hospital", "made another"),
                ("simulation", "made another"),
            )
        ),
    ],
)
def test_a_signal_during_an_import_is_heard(party: str, fate: str, rehearsal: Any) -> None:
    study = rehearsal.write_tables(private=party == "simulation")
    (rehearsal.folder / "study.toml").write_text(study, encoding="utf-8")
    send, then = FATES[fate]
    hook = rehearsal.folder / "hook"
    hook.mkdir()
    module = "clients.app" if party == "hospital" else "server.app"
    text = SIGNAL.format(module=module, send=send, then=then)
    (hook / "sitecustomize.py").write_text(text, encoding="utf-8")
    command = {
        "hospital": ("client", "--hospital", "n", "--data", "north.csv", "--server", rehearsal.address),
        "coordinator": ("server", "--config", "study.toml"),
        "simulation": ("simulation", "--config", "study.toml"),
    }[party]
    name, *options = (*command, *([] if party == "simulation" else ["--insecure"]))
    root = Path(__file__).resolve().parents[2]
    started = rehearsal.start(party, "-m", f"pate_fed.{name}", *options, PYTHONPATH=f"{hook}:{root}")
    assert started.wait(180) == 130, started.text
    assert "Traceback" not in started.text
    assert started.last_line.startswith("ABORTED")
