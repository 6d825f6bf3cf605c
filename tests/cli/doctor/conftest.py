"""The demonstration's files, copied; a coordinator's port that really speaks TLS."""

from __future__ import annotations

import argparse
import hashlib
import shutil
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pate_fed.cli.doctor.coordinator import CoordinatorSide
from pate_fed.cli.doctor.hospital import HospitalSide
from pate_fed.cli.doctor.machine import Finding
from pate_fed.cli.main import make_parser
from pate_fed.identity import certificates


@dataclass(frozen=True)
class Site:
    """The demonstration in a folder of its own, which is also where the test runs."""

    folder: Path

    def hospital(self, *options: str) -> dict[str, Finding]:
        return _by_check(HospitalSide(_given(*options)).findings())

    def coordinator(self, *options: str) -> dict[str, Finding]:
        return _by_check(CoordinatorSide(_given(*options)).findings())

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
    return make_parser(only=["doctor"]).parse_args(["doctor", *options])


def _by_check(rows: Iterator[Finding]) -> dict[str, Finding]:
    """The last row of each check; none may tell of a fault that nobody foresaw."""
    found = {row.check: row for row in rows}
    assert not [row for row in found.values() if "the check failed" in row.text]
    return found


@pytest.fixture
def site(demonstration: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    folder = tmp_path / "demo"
    shutil.copytree(demonstration, folder)
    monkeypatch.chdir(folder)
    return Site(folder)


@pytest.fixture
def shift_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], AbstractContextManager[None]]:
    """`with shift_clock(days):` certificates are made and read as if so many days later."""

    @contextmanager
    def shift(days: float) -> Iterator[None]:
        class Clock(datetime):
            @classmethod
            def now(cls, tz: object = None) -> datetime:
                return datetime.now(UTC) + timedelta(days=days)

        with monkeypatch.context() as context:
            context.setattr(certificates, "datetime", Clock)
            yield

    return shift


Serve = Callable[..., int]
_SETTINGS = bytes.fromhex("000000040000000000")  # with which HTTP/2 begins; none is set


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A port on loopback with this certificate; without one it says something that is no TLS.

    With an `authority` it takes connections with a certificate of that authority alone.
    """
    listeners: list[socket.socket] = []

    def start(
        certificate: Path | None = None,
        key: Path | None = None,
        *,
        protocol: str = "h2",
        authority: Path | None = None,
    ) -> int:
        context = None
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, key)
            context.set_alpn_protocols([protocol])
            if authority is not None:
                context.load_verify_locations(authority)
                context.verify_mode = ssl.CERT_REQUIRED
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
                tls.sendall(_SETTINGS)
                while tls.recv(1024):
                    pass
