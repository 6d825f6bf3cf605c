"""The environment of Flower and Ray: nothing phones home."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pate_fed.flower import prepare_environment


def test_nothing_phones_home_even_if_the_environment_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "1")
    monkeypatch.setenv("PATH", "/nowhere")
    prepare_environment()
    assert os.environ["FLWR_TELEMETRY_ENABLED"] == "0"
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert str(Path(sys.executable).parent) in os.environ["PATH"].split(os.pathsep)


def test_telemetry_is_off_inside_flower() -> None:
    code = (
        "from pate_fed.flower import prepare_environment; prepare_environment()\n"
        "from flwr.supercore import telemetry\n"
        "assert not telemetry.FLWR_TELEMETRY_ENABLED.strip() == '1', telemetry.FLWR_TELEMETRY_ENABLED\n"
    )
    environment = {**os.environ, "FLWR_TELEMETRY_ENABLED": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
