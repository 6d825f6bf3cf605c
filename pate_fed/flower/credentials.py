"""A hospital's own certificate on the wire, and whether a coordinator lets it in."""

from __future__ import annotations

import grpc
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec


def channel_credentials(
    authority: bytes | None, *, certificate: str, key: ec.EllipticCurvePrivateKey
) -> grpc.ChannelCredentials:
    """TLS with a certificate on both sides: `authority` and the hospital's own `certificate` are PEM."""
    pem = key.private_bytes(  # in memory alone: the file is in OpenSSH's format, which gRPC does not read
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return grpc.ssl_channel_credentials(authority, pem, certificate.encode())


def is_let_in(address: str, credentials: grpc.ChannelCredentials, *, timeout_s: float) -> bool:
    """Whether the coordinator at `address` takes the certificate; nothing is sent over the connection.

    In TLS 1.3 a client has shaken hands before its certificate is looked at: only the first bytes of HTTP/2
    that come back say that it was taken.
    """
    with grpc.secure_channel(address, credentials) as channel:
        ready = grpc.channel_ready_future(channel)
        try:
            ready.result(timeout=timeout_s)
        except grpc.FutureTimeoutError:
            return False
        finally:
            ready.cancel()
    return True
