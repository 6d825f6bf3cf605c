"""The study's X.509 certificates: made, read, and checked against the authority and the clock."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pate_fed.disk import read_file
from pate_fed.errors import InputError, IntegrityError, naming_refusal

WARN_DAYS = 30  # a certificate that expires sooner is warned of
_EARLY = timedelta(days=1)  # clocks that are a little slow accept a new certificate
_SUM_URN = "urn:pate-fed:secure-sum:"
Certificate = x509.Certificate


def self_signed(key: ec.EllipticCurvePrivateKey, name: str, *, days: int) -> Certificate:
    """An authority's own certificate."""
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = _builder(_name(name), _name(name), key.public_key(), days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
    )
    return builder.add_extension(usage, critical=True).sign(key, hashes.SHA384())


def issue(
    authority: Certificate,
    key: ec.EllipticCurvePrivateKey,
    *,
    name: str,
    public: ec.EllipticCurvePublicKey,
    days: int,
    hosts: Sequence[str] = (),
    sum_identity: bytes = b"",
) -> Certificate:
    """A certificate for a server at `hosts`, or for a hospital with its identity in secure summation."""
    builder = _builder(_name(name), authority.subject, public, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    # Python 3.13 refuses a certificate that does not name its authority's key.
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    builder = builder.add_extension(issuer, critical=False)
    use = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
    builder = builder.add_extension(x509.ExtendedKeyUsage([use]), critical=False)
    names = [_host(host) for host in hosts]
    if sum_identity:
        names.append(x509.UniformResourceIdentifier(_SUM_URN + sum_identity.hex()))
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(key, hashes.SHA384())


def read_certificate(content: bytes, where: str) -> Certificate:
    """A certificate from PEM; InputError where it is none."""
    try:
        return x509.load_pem_x509_certificate(content)
    except ValueError as error:
        raise InputError(f"{where}: not a certificate") from error


def load_certificate(path: Path) -> Certificate:
    """A certificate from a PEM file; InputError where the file cannot be read or is none."""
    with naming_refusal(f"{path}: cannot be read"):
        return read_certificate(read_file(path), str(path))


def to_pem(certificate: Certificate) -> bytes:
    """The certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def fingerprint(certificate: Certificate) -> str:
    """SHA-256 of the certificate, hex."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def name_of(certificate: Certificate) -> str:
    """The subject's common name."""
    found = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else ""


def sum_identity_of(certificate: Certificate) -> bytes:
    """The public key of a hospital's secure sums, 32 bytes, as its certificate binds it to its name."""
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    found = [text for text in names.get_values_for_type(x509.UniformResourceIdentifier) if _SUM_URN in text]
    return bytes.fromhex(found[0].removeprefix(_SUM_URN)) if found else b""


def require_issued(certificate: Certificate, authority: Certificate, whose: str) -> None:
    """Make sure that the authority signed it; IntegrityError where it did not."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError) as error:
        raise IntegrityError(f"{whose} certificate is not from this study's authority") from error


def require_valid(certificate: Certificate, whose: str) -> None:
    """Make sure that it is valid now; InputError where it has expired, or is not valid yet."""
    now = datetime.now(UTC)
    if now >= certificate.not_valid_after_utc:
        ended = certificate.not_valid_after_utc.date()
        raise InputError(
            f"{whose} certificate expired on {ended}: ask the coordinator for a new one, or set this "
            f"machine's clock ({now.date()}) if it is wrong"
        )
    if now < certificate.not_valid_before_utc:
        start = certificate.not_valid_before_utc.date()
        raise InputError(
            f"{whose} certificate is valid from {start} on: is this machine's clock ({now.date()}) right?"
        )


def issued_at(certificate: Certificate) -> datetime:
    """When it was made, by the clock of the study's authority."""
    return certificate.not_valid_before_utc + _EARLY


def days_left(certificate: Certificate) -> int:
    """Whole days until it expires; negative afterwards."""
    return (certificate.not_valid_after_utc - datetime.now(UTC)).days


def expiry_warnings(certificate: Certificate, whose: str) -> list[str]:
    """A warning where the certificate expires within `WARN_DAYS`."""
    left = days_left(certificate)
    return [f"{whose} certificate expires in {left} days"] if left < WARN_DAYS else []


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLY)
        .not_valid_after(now + timedelta(days=days))
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
