"""A hospital's side, checked as its client would: identity, terms, policy, records, disk, the coordinator."""

from __future__ import annotations

import argparse
import socket
import ssl
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from cryptography import x509
from numpy.typing import NDArray

from clients.account import Account
from clients.local import POOL_FILE, kind_of, look_at_records
from clients.policy import Policy, find_policy
from clients.state_dir import PART, find_state_dir
from pate_fed.cli.doctor.machine import CheckResult, Finding, Requirements, run_check
from pate_fed.cli.doctor.records import WantedLabels, WantedRecords, try_teachers, wanted_by
from pate_fed.cli.health import hospital_runs
from pate_fed.cli.terms import cost_text, open_pool
from pate_fed.config.study import read_study
from pate_fed.data import Rows, Schema, pool_digest, read_pool
from pate_fed.disk import check_there
from pate_fed.errors import InputError, PateFedError, PolicyError
from pate_fed.identity import HospitalIdentity
from pate_fed.identity.certificates import days_left, expiry_warnings, issued_at, read_certificate
from pate_fed.identity.keys import check_name, load_key
from pate_fed.kinds.terms import Terms
from pate_fed.runtime.addresses import channel_credentials, is_let_in, split_address
from pate_fed.runtime.run_dir import check_writable

_PATIENCE_S = 6.0
_NOT_YET, _EXPIRED, _OTHER_HOSTS = 9, 10, (62, 64)  # X509_V_ERR_* of OpenSSL
_GRPC = "h2"


def connect(host: str, port: int) -> CheckResult:
    """Make a TCP connection, and end it; an error where waiting will hardly change that there is none."""
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


_LATE_S = 300.0  # a hospital's clock may be so far behind the coordinator's
_MEMORY = 1.0e9  # client and SuperNode with torch
_FILES = 256


class HospitalSide:
    """The checks of one hospital, by the options that its client takes."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self._identity: HospitalIdentity | None = None
        self._terms: Terms | None = None
        self._wanted: WantedRecords | WantedLabels | None = None
        self._rows: Rows | None = None
        self._reached: tuple[str, int] | None = None

    @property
    def requirements(self) -> Requirements:
        """What a hospital's processes take."""
        return Requirements(
            what="a hospital", memory=_MEMORY, files=_FILES, folders=lambda: (self._state_dir,), deploys=True
        )

    @property
    def _name(self) -> str:
        known = self._identity.admission.hospital if self._identity is not None else "NAME"
        return self._given.hospital or known

    @property
    def _state_dir(self) -> Path:
        authority = None if self._identity is None else self._identity.admission.fingerprint
        return find_state_dir(self._given.state_dir, self._name, self._terms, authority)

    def findings(self) -> Iterator[Finding]:
        """Findings of one check after another; later checks know what earlier ones have read."""
        given = self._given
        if given.tls_dir is not None or given.hospital is not None:
            yield from run_check("identity", self._check_identity)
        if self._identity is not None:
            yield from run_check("terms", self._check_terms)
        if given.policy is not None or self._terms is not None:
            yield from run_check("policy", self._check_policy)
        if given.data is not None:
            yield from run_check("data", self._check_data)
        if self._wanted is not None:
            yield from run_check("records", self._check_records, private=True)
        if self._rows is not None and isinstance(self._wanted, WantedRecords):
            if (schema := self._wanted.spec.schema) is not None:
                look = partial(self._check_columns, self._rows, schema)
                yield from run_check("columns", look, private=True)
            check = partial(try_teachers, self._rows, self._wanted)
            yield from run_check("teachers" if self._wanted.trains else "own model", check, private=True)
        if given.pool is not None:
            yield from run_check("pool", self._check_pool)
        if (given.hospital, given.tls_dir, given.state_dir) != (None, None, None):
            yield from run_check("state", self._check_state_dir)
        if given.server is not None:
            yield from run_check("coordinator", self._check_server)
        if self._reached is not None and self._identity is not None:
            yield from run_check("TLS", partial(shake_hands, *self._reached, self._identity))

    def not_checked(self) -> list[str]:
        """What was not looked at, and the option for it."""
        address = "HOST:PORT" if self._identity is None else self._identity.admission.address
        options = {
            "key and admission (--tls-dir DIR)": self._given.tls_dir,
            "the records (--data PATH)": self._given.data,
            f"the way to the coordinator (--server {address})": self._given.server,
        }
        return [text for text, value in options.items() if value is None]

    def _check_identity(self) -> CheckResult:
        given = self._given
        if given.hospital is not None:
            check_name(given.hospital)
        if given.tls_dir is None:
            return CheckResult(f"{given.hospital}, no key or admission given")
        # Kept before it is checked: its terms are read even where keys fail.
        self._identity = identity = HospitalIdentity.open(Path(given.tls_dir))
        admission = identity.admission
        warnings = identity.check(given.hospital or admission.hospital)
        certificate = read_certificate(admission.certificate.encode(), "the admission")
        behind = (issued_at(certificate) - datetime.now(UTC)).total_seconds()
        if behind > _LATE_S:
            raise InputError(
                f"this machine's clock is at least {behind / 60:.0f} minutes behind the one that "
                f"{admission.hospital} was admitted by: set the clocks"
            )
        return CheckResult(
            f"{admission.hospital}'s keys and admission belong together, {days_left(certificate)} days left; "
            f"authority {admission.words}",
            tuple(f"{text}: ask the coordinator to admit it again" for text in warnings),
        )

    def _check_terms(self) -> CheckResult:
        assert self._identity is not None
        _ = self._identity.admission.terms_digest  # refuses what the authority did not sign
        text = cost_text(self._identity.admission.terms)
        self._terms = self._identity.admission.study_terms
        return CheckResult(f"signed by the authority: {text}")

    def _check_policy(self) -> CheckResult:
        """Whether this hospital takes part under these terms, as its client would decide."""
        path = find_policy(self._given.policy, self._given.tls_dir)
        policy, terms = Policy.load(path), self._terms
        what = "the default, without a file," if path is None else str(path)
        if terms is None:
            return CheckResult(f"{what} can be read; with --tls-dir it is held against the study's terms")
        objection = policy.objection(terms)
        if objection is None:
            objection = policy.refuses_more(answered=0, today=0, asked=terms.words.at_once)
        if objection is None and not (self._given.data or "").startswith("part:"):
            objection = Account(self._name).objection(terms, policy=policy)
        if objection is not None:
            reason, sentence = objection
            raise PolicyError(f"{reason.value}: {sentence}; else do not take part")
        return CheckResult(f"{what} allows the study")

    def _check_data(self) -> CheckResult:
        """Whether the records are there, and what says how they are read."""
        given, path = self._given, Path(self._given.data)
        if given.data.startswith(PART):
            return CheckResult(f"{given.data} rehearses with a simulated party's records")
        check_there(path, option="--data")
        if self._terms is not None:
            self._wanted = wanted_by(self._terms, decimal=given.decimal)
        elif given.config is not None:
            self._wanted = WantedRecords.by_study(Path(given.config)).written(given.decimal)
        else:
            cure = "mend the identity" if given.tls_dir else "give --tls-dir or --config too"
            unread = f"{path} is there, but nothing says how the study reads it: {cure}"
            return CheckResult(warnings=(unread,))
        return CheckResult(f"{path}, read as {'the terms say' if self._terms else given.config}")

    def _check_records(self) -> CheckResult:
        """What is in the records, for the hospital's own terminal."""
        assert self._wanted is not None
        self._rows, result = self._wanted.read(Path(self._given.data))
        return result

    def _check_columns(self, rows: Rows, schema: Schema) -> CheckResult:
        """What `hospital check` would find, of a table that was read."""
        study, pool = Path(self._given.tls_dir or self._given.config), self._pool_here()
        odd = look_at_records(Path(self._given.data), rows, schema, study=study, pool=pool)
        beside = "the public inputs" if pool is not None else "the declared ranges"
        if pool is None and not schema.ranges:
            beside = "nothing: the public inputs have not come yet"
        return CheckResult(f"{len(schema.columns)} looked at, beside {beside}", tuple(odd))

    def _pool_here(self) -> NDArray[Any] | None:
        """The public inputs where a copy is at hand; that another is given as it, its own check tells."""
        if self._terms is None:
            named = self._given.pool or read_study(Path(self._given.config)).data.pool
            wanted = self._wanted
            assert isinstance(wanted, WantedRecords)
            return read_pool(Path(named), wanted.spec).inputs if named and Path(named).is_file() else None
        path = Path(self._given.pool or self._state_dir / POOL_FILE)
        with suppress(InputError):
            return open_pool(path, self._terms) if path.is_file() else None
        return None

    def _check_pool(self) -> CheckResult:
        path = Path(self._given.pool)
        if self._terms is None or not self._terms.asks.reads_inputs:
            raise InputError(f"--pool {path}: give --tls-dir too, whose terms say which pool is meant")
        found = pool_digest(read_pool(path, kind_of(self._terms)).inputs)
        if found != self._terms.pool_digest:
            raise InputError(
                f"--pool {path}: not the study's public pool; leave --pool out, and the coordinator sends it"
            )
        return CheckResult(f"the study's public pool, SHA-256 {found[:16]}…")

    def _check_state_dir(self) -> CheckResult:
        folder = self._state_dir
        check_writable(folder, option="--state-dir")
        if not folder.exists():
            return CheckResult(f"{folder} can be made")
        if hospital_runs(str(folder)):
            raise InputError(
                f"--state-dir {folder}: another process of this hospital uses it; one at a time is meant"
            )
        mode = stat.S_IMODE(folder.stat().st_mode)
        if mode & 0o077:
            open_ = f"{folder}: others can look into it (mode {mode:04o}): chmod 700 {folder}"
            return CheckResult(warnings=(open_,))
        return CheckResult(f"{folder} is there, and free")

    def _check_server(self) -> CheckResult:
        host, port = split_address(self._given.server, option="--server")
        if port is None:
            raise InputError(f"--server {host}: HOST:PORT is meant, as the coordinator shows it")
        result = connect(host, port)
        self._reached = None if result.warnings else (host, port)
        return result
