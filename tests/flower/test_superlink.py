"""The coordinator's SuperLink: what it is started with, and a sentence where it does not start or is gone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from pate_fed.flower import prepare_environment

prepare_environment()

from pate_fed.errors import InputError, PateFedError
from pate_fed.flower.guard_settings import LinkGuard
from pate_fed.flower.processes import Child
from pate_fed.flower.superlink import ServerTls, SuperLink


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What Flower's command is given; no process is started."""
    given: list[str] = []

    def start(self: Child, command: str, arguments: Sequence[str], *, folder: Path, guard: str = "") -> None:
        given[:] = [command, *arguments, guard]
        self.local_address, self.secret, self.log = "127.0.0.1:1", b"", folder / "superlink.log"

    monkeypatch.setattr(Child, "__init__", start)
    monkeypatch.setattr(Child, "running", property(lambda self: False))
    return given


def test_without_keys_it_says_that_it_is_open(started: list[str], tmp_path: Path) -> None:
    SuperLink(tmp_path, "127.0.0.1:9092", tls=None)
    assert started[:3] == ["flower-superlink", "--fleet-api-address", "127.0.0.1:9092"]
    assert "--insecure" in started
    assert started[-1] == ""  # on one machine there is nobody to guard it against
    assert "--disable-runtime-dependency-installation" in started  # nothing is fetched from a registry


def test_keys_that_are_not_there_are_named(started: list[str], tmp_path: Path) -> None:
    guard = LinkGuard(most_bytes=1000, hospitals=4)
    tls = ServerTls(
        ca=tmp_path / "ca.crt", certificate=tmp_path / "s.crt", key=tmp_path / "s.key", guard=guard
    )
    with pytest.raises(InputError, match="cannot be read"):
        SuperLink(tmp_path, "127.0.0.1:9092", tls=tls)
    assert "--insecure" not in started
    assert "--enable-supernode-auth" in started  # only who was admitted connects
    assert started[-1] == guard.to_json()


def test_one_that_ends_before_it_serves_is_a_sentence_with_its_log(
    started: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = SuperLink(tmp_path, "127.0.0.1:9092", tls=None)
    with pytest.raises(PateFedError, match=r"did not start: see .*superlink\.log"):
        link.wait_until_ready(lambda: False)
    monkeypatch.setattr(Child, "running", property(lambda self: True))
    link.wait_until_ready(lambda: True)  # who interrupts waits no longer
    link.close_run(completed=True)  # none was opened
