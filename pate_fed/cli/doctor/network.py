"""The connection from a hospital to its coordinator: name, port, TLS. Nothing is sent over it."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from cryptography import x509

from pate_fed.cli.doctor.findings import CheckResult
from pate_fed.errors import InputError, PateFedError
from pate_fed.identity import HospitalIdentity
from pate_fed.identity.certificates import days_left, expiry_warnings
from pate_fed.identity.keys import load_key

_PATIENCE_S = 6.0
_NOT_YET, _EXPIRED, _OTHER_HOSTS = 9, 10, (62, 64)  # X509_V_ERR_* of OpenSSL
_GRPC = "h2"


def connect(host: str, port: int) -> CheckResult:
    """Make a TCP connection, and end it.

    Raises:
        PateFedError: it does not, and waiting will hardly change that.
    """
    try:
        with socket.create_connection((host, port), timeout=_PATIENCE_S):
            return CheckResult(f"{host} answers on port {port}")
    except ConnectionRefusedError:
        silent = (
            f"nobody listens on port {port} of {host}: the coordinator is not started yet, or a firewall is "
            "in the way; a hospital that is started now waits for it (--wait)"
        )
        return CheckResult(warnings=(silent,))
    except (socket.gaierror, UnicodeError) as error:
        raise PateFedError(f"{host}: no address is known for this name; is it spelt right?") from error
    except TimeoutError as error:
        raise PateFedError(
            f"{host} port {port}: no answer within {_PATIENCE_S:.0f} s; let this machine make outbound TCP "
            "connections to it (firewall, VPN), and see that the coordinator's machine is on"
        ) from error
    except OSError as error:
        raise PateFedError(
            f"{host} port {port}: out of reach ({error.strerror}); is the network up?"
        ) from error


def shake_hands(host: str, port: int, identity: HospitalIdentity) -> CheckResult:
    """Make TLS connections: the coordinator's certificate must be of the study's authority, for this host.

    Then the hospital shows its own, as it will when the study runs.

    Raises:
        InputError: the coordinator shows another one or none, or does not take the hospital's.
    """
    ca = identity.ca_path
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cafile=str(ca))
    context.set_alpn_protocols([_GRPC])
    try:
        with _connected(context, host, port) as tls:
            shown, version = _certificate(tls), tls.version()
            speaks_grpc = tls.selected_alpn_protocol() == _GRPC
    except ssl.SSLCertVerificationError as error:
        raise InputError(_refused(error, host, port)) from error
    except (ssl.SSLError, ConnectionError, TimeoutError) as error:
        raise InputError(
            f"what answers at {host} port {port} speaks no TLS: a coordinator with --insecure, another "
            "program, or a proxy; ask the coordinator for the right port"
        ) from error
    if not speaks_grpc:
        raise InputError(f"what answers at {host} port {port} speaks no HTTP/2: not the coordinator's port")
    _show_own(host, port, identity)
    warnings = expiry_warnings(shown, "the coordinator's")
    return CheckResult(
        f"{version} with certificates of this study's authority on both sides, the coordinator's for {host}, "
        f"{days_left(shown)} days left",
        tuple(f"{text}: ask for a new study init" for text in warnings),
    )


def _show_own(host: str, port: int, identity: HospitalIdentity) -> None:
    """Connect with the hospital's certificate, which the coordinator asks for before it reads a byte."""
    from pate_fed.runtime.addresses import channel_credentials, is_let_in

    credentials = channel_credentials(
        identity.ca_path.read_bytes(),
        certificate=identity.admission.certificate,
        key=load_key(identity.key_path),
    )
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if not is_let_in(address, credentials, timeout_s=_PATIENCE_S):
        raise InputError(
            f"the coordinator at {host} port {port} does not take this hospital's certificate: it is of "
            "another study init, or not valid by the coordinator's clock; ask to be admitted again"
        )


@contextmanager
def _connected(context: ssl.SSLContext, host: str, port: int) -> Iterator[ssl.SSLSocket]:
    with (
        socket.create_connection((host, port), timeout=_PATIENCE_S) as raw,
        context.wrap_socket(raw, server_hostname=host) as tls,
    ):
        yield tls


def _certificate(tls: ssl.SSLSocket) -> x509.Certificate:
    shown = tls.getpeercert(binary_form=True)
    assert shown is not None  # of a server there always is one
    return x509.load_der_x509_certificate(shown)


def _refused(error: ssl.SSLCertVerificationError, host: str, port: int) -> str:
    """What is wrong with the certificate, read once more without believing it."""
    blind = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
    with _connected(blind, host, port) as tls:
        shown = _certificate(tls)
    if error.verify_code == _EXPIRED:
        ended = shown.not_valid_after_utc.date()
        return f"the coordinator's certificate expired on {ended}: it needs a new study init"
    if error.verify_code == _NOT_YET:
        start = shown.not_valid_before_utc.date()
        return f"the coordinator's certificate is valid from {start} on: is this machine's clock right?"
    if error.verify_code in _OTHER_HOSTS:
        return (
            f"the coordinator's certificate is for {', '.join(_hosts(shown)) or 'no host'}, not for {host}: "
            "give one of these names in --server"
        )
    return (
        f"the certificate at {host} port {port} is from {shown.issuer.rfc4514_string()}, not from this "
        "study's authority: another coordinator, or a proxy that opens TLS and must let this one pass"
    )


def _hosts(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
