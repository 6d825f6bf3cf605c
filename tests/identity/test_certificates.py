"""The study's certificates: for whom they are, and what reads them."""

from __future__ import annotations

import ssl
from contextlib import suppress

from cryptography import x509

from pate_fed.identity import (
    Authority,
    certificates,
)


def test_the_server_is_known_by_its_address_and_on_its_own_machine(authority: Authority) -> None:
    certificate = certificates.load_certificate(authority.folder / "server.crt")
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["coordinator.example", "localhost"]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    assert authority.check_server() == []


def test_certificates_pass_the_strict_check_that_python_3_13_makes_by_default(authority: Authority) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(authority.folder / "server.crt", authority.folder / "server.key")
    client = ssl.create_default_context(cafile=str(authority.folder / "ca.crt"))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(back, there, server_hostname="coordinator.example")
    other = server.wrap_bio(there, back, server_side=True)
    for side in (one, other, one, other):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    assert one.version() == "TLSv1.3"
    assert one.getpeercert()
