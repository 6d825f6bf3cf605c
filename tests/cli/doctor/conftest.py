"""The demonstration's files, made once and copied; a coordinator's port that really speaks TLS."""

from __future__ import annotations

import argparse
import hashlib
import shutil
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from pate_fed.cli.demo import make_demo
from pate_fed.cli.doctor.coordinator import CoordinatorSide
from pate_fed.cli.doctor.findings import Row
from pate_fed.cli.doctor.hospital import HospitalSide
from pate_fed.cli.main import _parser


@dataclass(frozen=True)
class Site:
    """The demonstration in a folder of its own, which is also where the test runs."""

    folder: Path

    def hospital(self, *options: str) -> dict[str, Row]:
        return _by_check(HospitalSide(_given(*options)).rows())

    def coordinator(self, *options: str) -> dict[str, Row]:
        return _by_check(CoordinatorSide(_given(*options)).rows())

    def snapshot(self) -> dict[str, tuple[int, str]]:
        """Every file and folder with its mode and content."""
        return {
            str(path.relative_to(self.folder)): (
                path.stat().st_mode,
                hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
            )
            for path in sorted(self.folder.rglob("*"))
        }


def _given(*options: str) -> argparse.Namespace:
    return _parser().parse_args(["doctor", *options])


def _by_check(rows: Iterator[Row]) -> dict[str, Row]:
    """The last row of each check; none may tell of a fault that nobody foresaw."""
    found = {row.check: row for row in rows}
    assert not [row for row in found.values() if "the check failed" in row.said]
    return found


@pytest.fixture(scope="session")
def demonstration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("doctor") / "demo"
    make_demo(folder, teachers=3, trees=5)
    return folder


@pytest.fixture
def site(demonstration: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    folder = tmp_path / "demo"
    shutil.copytree(demonstration, folder)
    monkeypatch.chdir(folder)
    return Site(folder)


Serve = Callable[..., int]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A port on loopback with this certificate; without one it says something that is no TLS."""
    listeners: list[socket.socket] = []

    def start(certificate: Path | None = None, key: Path | None = None, *, protocol: str = "h2") -> int:
        context = None
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, key)
            context.set_alpn_protocols([protocol])
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)
        threading.Thread(target=_answer, args=(listener, context), daemon=True).start()
        return int(listener.getsockname()[1])

    yield start
    for listener in listeners:
        listener.close()


def _answer(listener: socket.socket, context: ssl.SSLContext | None) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection, suppress(OSError):
            connection.settimeout(5)
            if context is None:
                connection.sendall(b"220 mail.example ESMTP\r\n")
                continue
            with context.wrap_socket(connection, server_side=True) as tls:
                tls.recv(1)
