"""Addresses and ports of this machine, and what is open to whom."""

from __future__ import annotations

import argparse
import socket
from typing import TYPE_CHECKING

from pate_fed.errors import InputError, naming_refusal

if TYPE_CHECKING:
    import grpc
    from cryptography.hazmat.primitives.asymmetric import ec


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port that is free on `host` now."""
    with _socket(host) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def check_port(host: str, port: int, *, option: str) -> None:
    """Make sure that one may listen there; an InputError where not."""
    with naming_refusal(
        f"{option} {host}:{port}: cannot listen there", "; give another port, or none for one that is free"
    ):
        with _socket(host) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))


def _socket(host: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)


def split_address(address: str, *, option: str) -> tuple[str, int | None]:
    """Host and port, None where left out, of HOST:PORT or [HOST]:PORT; an InputError for all else."""
    host, separator, port = address.rpartition(":")
    if not separator or address.endswith("]"):
        host, port = address, ""
    host = host.removeprefix("[").removesuffix("]")
    if not host or (port and not (port.isdigit() and 0 < int(port) < 65536)):
        raise InputError(f"{option} {address}: HOST:PORT is meant, such as 127.0.0.1:9092")
    return host, int(port) if port else None


def is_loopback(host: str) -> bool:
    """Whether every address of `host` is on this machine's loopback."""
    try:
        found = socket.getaddrinfo(host, None)
    except OSError:
        return False
    addresses = {entry[4][0] for entry in found}
    return all(str(address).startswith("127.") or address == "::1" for address in addresses)


def channel_credentials(
    authority: bytes | None, *, certificate: str, key: ec.EllipticCurvePrivateKey
) -> grpc.ChannelCredentials:
    """TLS with a certificate on both sides: `authority` and the hospital's own `certificate` are PEM."""
    import grpc
    from cryptography.hazmat.primitives import serialization

    pem = key.private_bytes(  # in memory alone: the file is in OpenSSH's format, which gRPC does not read
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return grpc.ssl_channel_credentials(authority, pem, certificate.encode())


def is_let_in(address: str, credentials: grpc.ChannelCredentials, *, timeout_s: float) -> bool:
    """Whether the coordinator at `address` takes the certificate; nothing is sent over the connection.

    In TLS 1.3 a client has shaken hands before its certificate is looked at: only the first bytes of HTTP/2
    that come back say that it was taken.
    """
    import grpc

    with grpc.secure_channel(address, credentials) as channel:
        ready = grpc.channel_ready_future(channel)
        try:
            ready.result(timeout=timeout_s)
        except grpc.FutureTimeoutError:
            return False
        finally:
            ready.cancel()
    return True


def check_security(arguments: argparse.Namespace, host: str, *, where: str, keys: str) -> None:
    """Hold --tls-dir, --insecure and --insecure-anywhere to each other and to `host`.

    `where` names the option that the host came with, `keys` what belongs into --tls-dir.

    Raises:
        InputError: they contradict each other, or votes would cross a network unprotected.
    """
    open_ = arguments.insecure or arguments.insecure_anywhere
    if arguments.tls_dir is not None:
        if open_:
            raise InputError("--tls-dir and --insecure: one of the two")
        return
    if arguments.insecure_anywhere and not arguments.insecure:
        raise InputError(
            "--insecure-anywhere: say it twice, as votes are then open to the network: --insecure too"
        )
    if not open_:
        raise InputError(f"give --tls-dir with {keys}, or --insecure on one machine only")
    if not is_loopback(host) and not arguments.insecure_anywhere:
        raise InputError(
            f"--insecure with {where}: votes would cross the network unprotected; use --tls-dir, or add "
            "--insecure-anywhere to say that you mean it"
        )
