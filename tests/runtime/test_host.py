"""The address that hospitals connect to: where it is opened, whom it waits for, and whose keys it has."""

from __future__ import annotations

import argparse
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from builders import make_terms

from pate_fed.errors import InputError, PateFedError
from pate_fed.identity import Authority
from pate_fed.protocol.sizes import largest_messages
from pate_fed.runtime import host
from pate_fed.runtime.host import Host, open_host


def _options(**changes: Any) -> argparse.Namespace:
    options = {"tls_dir": None, "address": None, "insecure": True, "insecure_anywhere": False, "wait": 5.0}
    return argparse.Namespace(**{**options, **changes})


def test_without_an_address_it_is_a_free_port_of_this_machine() -> None:
    found = open_host(_options(), quiet=True)
    name, _, port = found.address.rpartition(":")
    assert (name, found.authority, found.wait_s) == ("127.0.0.1", None, 5.0)
    with socket.create_server((name, int(port))):  # free for the SuperLink
        pass


def test_a_port_that_is_taken_is_named_and_strangers_need_keys() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(InputError, match=f"--address {address}"):
            open_host(_options(address=address), quiet=True)
    with pytest.raises(InputError, match="--tls-dir"):
        open_host(_options(insecure=False), quiet=True)
    with pytest.raises(InputError, match="unprotected"):
        open_host(_options(address="10.1.2.3:9092"), quiet=True)


def test_keys_are_of_one_study_alone(tmp_path: Path) -> None:
    terms = make_terms()
    authority = Authority.init(tmp_path / "keys", address="127.0.0.1:9092", terms=terms.to_json(), days=9)
    keyed = Host("127.0.0.1:9092", authority, 0.0, lambda text: None)
    keyed.require_terms(terms.digest)
    with pytest.raises(InputError):
        keyed.require_terms("00" * 32)
    Host("127.0.0.1:9092", None, 0.0, lambda text: None).require_terms("00" * 32)


def test_hospitals_may_send_what_the_signed_terms_need(tmp_path: Path) -> None:
    terms = make_terms()
    authority = Authority.init(tmp_path / "keys", address="127.0.0.1:9092", terms=terms.to_json(), days=9)
    tls = host._server_tls(authority)
    assert tls.guard.most_bytes == largest_messages(terms).to_coordinator
    assert tls.guard.hospitals == terms.num_clients
    assert all(path.exists() for path in (tls.ca, tls.certificate, tls.key))


class _Grid:
    """More nodes at every look."""

    def __init__(self, *looks: Sequence[int]) -> None:
        self._looks = list(looks)

    def get_node_ids(self) -> Sequence[int]:
        return self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]


def test_it_waits_until_all_are_there_or_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_POLL_S", 0.0)
    told: list[str] = []
    link: Any = SimpleNamespace(running=True)
    Host("a:1", None, 60.0, told.append)._wait_for_hospitals(
        link, _Grid([], [1], [1], [1, 2]), 2, threading.Event()
    )
    waits = [f"waiting for hospitals: {seen} of 2 connected" for seen in (0, 1, 2)]
    assert told == ["listening on a:1 for 2 hospitals", *waits]
    Host("a:1", None, 0.05, told.append)._wait_for_hospitals(link, _Grid([1]), 2, threading.Event())
    stop = threading.Event()
    stop.set()
    Host("a:1", None, 60.0, told.append)._wait_for_hospitals(link, _Grid([1]), 2, stop)
    gone: Any = SimpleNamespace(running=False)
    with pytest.raises(PateFedError, match="ended unexpectedly"):
        Host("a:1", None, 60.0, told.append)._wait_for_hospitals(gone, _Grid([1]), 2, threading.Event())
