"""`pate-fed doctor` on the connection to the coordinator: real sockets, and every fault with its cure."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from pate_fed.cli.doctor import network
from pate_fed.cli.doctor.findings import PROBLEM, WARNING
from pate_fed.identity import Authority, certificates

NORTH = ("--hospital", "north", "--tls-dir", "identity-north")
SERVER = (Path("authority/server.crt"), Path("authority/server.key"))


def _new_server(folder: Path, host: str) -> tuple[Path, Path]:
    """Another certificate of the study's authority, for this host."""
    authority = Authority(folder / "authority")
    key = serialization.load_pem_private_key((authority.folder / "server.key").read_bytes(), None)
    made = certificates.issue(
        authority.certificate,
        authority._ca_key(),
        name="coordinator",
        public=key.public_key(),
        days=90,
        hosts=[host],
    )
    path = folder / "other.crt"
    path.write_bytes(certificates.to_pem(made))
    return path, authority.folder / "server.key"


def test_a_certificate_for_another_host(site: Any, serve: Any) -> None:
    port = serve(*_new_server(site.folder, "coordinator.example"))
    row = site.hospital(*NORTH, "--server", f"127.0.0.1:{port}")["TLS"]
    assert (row.severity, row.exit_code) == (PROBLEM, 2)
    assert "is for coordinator.example, not for 127.0.0.1: give one of these" in row.text


def test_a_certificate_that_has_expired_or_is_not_yet_valid(site: Any, serve: Any, shift_clock: Any) -> None:
    for days, words in ((-91, "expired on"), (5, "is this machine's clock right")):
        with shift_clock(days):
            made = _new_server(site.folder, "127.0.0.1")
        row = site.hospital(*NORTH, "--server", f"127.0.0.1:{serve(*made)}")["TLS"]
        assert (row.severity, row.exit_code) == (PROBLEM, 2)
        assert words in row.text
    with shift_clock(-80):
        made = _new_server(site.folder, "127.0.0.1")
    row = site.hospital(*NORTH, "--server", f"127.0.0.1:{serve(*made)}")["TLS"]
    assert row.severity == WARNING and "expires in 9 days" in row.text


def test_a_proxy_that_opens_tls_and_programs_that_are_no_coordinator(site: Any, serve: Any) -> None:
    proxy = Authority.init(site.folder / "proxy", address="127.0.0.1:1", terms="{}", days=9).folder
    for port, words in (
        (serve(proxy / "server.crt", proxy / "server.key"), "a proxy that opens TLS"),
        (serve(), "speaks no TLS"),
        (serve(*SERVER, protocol="http/1.1"), "speaks no HTTP/2"),
    ):
        row = site.hospital(*NORTH, "--server", f"127.0.0.1:{port}")["TLS"]
        assert (row.severity, row.exit_code) == (PROBLEM, 2)
        assert words in row.text


def test_a_coordinator_that_does_not_take_this_hospitals_certificate(
    site: Any, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "_PATIENCE_S", 1.0)
    other = Authority.init(site.folder / "other", address="127.0.0.1:1", terms="{}", days=9).folder
    port = serve(*SERVER, authority=other / "ca.crt")
    row = site.hospital(*NORTH, "--server", f"127.0.0.1:{port}")["TLS"]
    assert (row.severity, row.exit_code) == (PROBLEM, 2)
    assert "does not take this hospital's certificate" in row.text


def test_a_port_on_which_nobody_listens_or_nobody_answers(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_PATIENCE_S", 0.3)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        closed = f"127.0.0.1:{probe.getsockname()[1]}"
        found = site.hospital(*NORTH, "--server", closed)
        assert found["coordinator"].severity == WARNING  # the coordinator may come later
        assert "nobody listens" in found["coordinator"].text
        assert "TLS" not in found
    with socket.create_server(("127.0.0.1", 0), backlog=0) as busy:
        address = busy.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:  # fill the queue, after which the system drops connections unanswered
            each.setblocking(False)
            each.connect_ex(address)
        row = site.hospital(*NORTH, "--server", f"127.0.0.1:{address[1]}")["coordinator"]
        for each in waiting:
            each.close()
    assert (row.severity, row.exit_code) == (PROBLEM, 1)
    assert "outbound TCP" in row.text
