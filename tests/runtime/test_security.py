"""TLS, or loopback, or both dangerous options: nothing else connects."""

from __future__ import annotations

from argparse import Namespace

import pytest

from pate_fed.errors import InputError
from pate_fed.runtime.security import check_security

LOOPBACK, ELSEWHERE = "127.0.0.1", "192.0.2.7"


@pytest.mark.parametrize(
    ("tls_dir", "insecure", "anywhere", "host", "refused"),
    [
        ("keys", False, False, ELSEWHERE, None),
        (None, True, False, LOOPBACK, None),
        (None, True, True, ELSEWHERE, None),
        ("keys", True, False, LOOPBACK, "one of the two"),
        ("keys", False, True, LOOPBACK, "one of the two"),
        (None, False, False, LOOPBACK, "give --tls-dir with the keys"),
        (None, False, True, LOOPBACK, "say it twice"),
        (None, True, False, ELSEWHERE, "--insecure with --server: votes would cross the network"),
    ],
)
def test_votes_cross_no_network_unprotected_by_mistake(
    tls_dir: str | None, insecure: bool, anywhere: bool, host: str, refused: str | None
) -> None:
    given = Namespace(tls_dir=tls_dir, insecure=insecure, insecure_anywhere=anywhere)
    if refused is None:
        check_security(given, host, where="--server", keys="the keys")
        return
    with pytest.raises(InputError, match=refused):
        check_security(given, host, where="--server", keys="the keys")
