"""Whether a coordinator or a hospital is alive, as containers and supervisors ask."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from pate_fed.cli import health
from pate_fed.disk import hold


def test_health(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        listening.listen()
        assert health.main(["coordinator", address]) == 0
    assert health.main(["coordinator", address]) == 1
    assert health.main(["coordinator", "x:y"]) == 2
    assert health.main(["hospital", str(tmp_path)]) == 1
    with hold(tmp_path, what="--state-dir"):
        assert health.main(["hospital", str(tmp_path)]) == 0
    assert health.main(["hospital", str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines() == ["alive", *["not alive"] * 2, "alive", "not alive"]
