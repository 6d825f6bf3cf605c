"""A certificate on the wire: the study's authority lets it in, another authority's is turned away."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from pate_fed.errors import InputError
from pate_fed.identity import Authority, make_request
from pate_fed.identity.keys import KEY_FILE, load_key
from pate_fed.runtime.addresses import (
    channel_credentials,
    check_port,
    free_port,
    is_let_in,
    is_loopback,
    split_address,
)


def _authority(folder: Path) -> Authority:
    return Authority.init(folder, address="127.0.0.1:9092", terms="{}", days=9)


def _admitted(authority: Authority, folder: Path) -> tuple[str, Path]:
    """A hospital's certificate by that authority (PEM), and the file of its key."""
    admission = authority.admit(make_request(folder, "north"), days=9)
    return admission.certificate, folder / KEY_FILE


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return _authority(tmp_path / "authority")


@pytest.fixture
def address(authority: Authority) -> Iterator[str]:
    """A server that takes connections with a certificate of the authority alone."""
    names = ("ca.crt", "server.crt", "server.key")
    root, certificate, key = ((authority.folder / name).read_bytes() for name in names)
    server = grpc.server(ThreadPoolExecutor(1))
    credentials = grpc.ssl_server_credentials(((key, certificate),), root, require_client_auth=True)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


def test_the_studys_own_certificate_is_let_in(authority: Authority, address: str, tmp_path: Path) -> None:
    root = (authority.folder / "ca.crt").read_bytes()
    certificate, key = _admitted(authority, tmp_path / "north")
    own = channel_credentials(root, certificate=certificate, key=load_key(key))
    assert is_let_in(address, own, timeout_s=20)


@pytest.mark.parametrize("stranger", ["hospital", "coordinator"])
def test_who_is_not_of_the_study_is_turned_away(
    stranger: str, authority: Authority, address: str, tmp_path: Path
) -> None:
    """A hospital of another study, and a coordinator whose certificate is of another study."""
    other = _authority(tmp_path / "other")
    admits, expects = (other, authority) if stranger == "hospital" else (authority, other)
    certificate, key = _admitted(admits, tmp_path / "north")
    root = (expects.folder / "ca.crt").read_bytes()
    own = channel_credentials(root, certificate=certificate, key=load_key(key))
    assert not is_let_in(address, own, timeout_s=0.5)


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("h:1", ("h", 1)),
        ("h", ("h", None)),
        ("[::1]:9092", ("::1", 9092)),
        ("[::1]", ("::1", None)),
    ],
)
def test_an_address_is_taken_apart(address: str, found: tuple[str, int | None]) -> None:
    assert split_address(address, option="--server") == found


@pytest.mark.parametrize("address", ["", ":1", "h:0", "h:65536", "h:x", "h:-1"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(InputError, match=r"--server .*HOST:PORT is meant"):
        split_address(address, option="--server")


def test_a_port_is_free_or_taken() -> None:
    check_port("127.0.0.1", free_port(), option="--address")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InputError, match=r"--address 127\.0\.0\.1:.*give another port"):
            check_port("127.0.0.1", taken.getsockname()[1], option="--address")


def test_only_this_machines_own_addresses_are_loopback() -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "0.0.0.0", "192.0.2.1")] == [
        True,
        True,
        False,
        False,
    ]
