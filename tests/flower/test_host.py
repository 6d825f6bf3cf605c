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
from pate_fed.flower import host
from pate_fed.flower.host import Host, open_host
from pate_fed.flower.transport import LinkLostError
from pate_fed.identity import Authority
from pate_fed.kinds.terms import largest_messages
from pate_fed.protocol.messages import EndRequest
from pate_fed.report.log import Waiting


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


def _waits(wait_s: float, grid: _Grid, names: dict[int, str] | None = None, **given: Any) -> list[Waiting]:
    link: Any = SimpleNamespace(running=given.get("running", True))
    stop = given.get("stop", threading.Event())
    made = Host("a:1", None, wait_s, given.get("report", lambda text: None))
    return list(made._wait_for_hospitals(link, grid, 2, names, stop))


def test_it_waits_until_all_are_there_or_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_POLL_S", 0.0)
    told: list[str] = []
    found = _waits(60.0, _Grid([], [1], [1], [1, 2]), report=told.append)
    assert told == ["listening on a:1 for 2 hospitals"]
    assert [each.text for each in found] == [f"{seen} of 2 connected" for seen in (0, 1, 2)]
    assert len(_waits(0.05, _Grid([1]))) == 1
    stop = threading.Event()
    stop.set()
    assert _waits(60.0, _Grid([1]), stop=stop) == []
    with pytest.raises(PateFedError, match="ended unexpectedly"):
        _waits(60.0, _Grid([1]), running=False)


def test_who_is_missing_is_told_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where another one leaves as it comes, and where somebody was never admitted."""
    monkeypatch.setattr(host, "_POLL_S", 0.0)
    found = _waits(60.0, _Grid([], [1], [2], [1, 2]), {1: "north", 2: "east"})
    assert [each.text for each in found] == [
        "0 of 2 connected; not yet: east, north",
        "1 of 2 connected (north); not yet: east",
        "1 of 2 connected (east); not yet: north",
        "2 of 2 connected (east, north)",
    ]
    assert {(each.phase, each.patience_s) for each in found} == {("connect", 60.0)}
    [alone] = _waits(0.05, _Grid([1]), {1: "north"})
    assert alone.text == "1 of 2 connected (north); not admitted yet: 1"
    many = {node: f"h{node}" for node in range(21)}
    [counted] = _waits(0.05, _Grid([1]), many)
    assert counted.text == "1 of 2 connected"


class _Link:
    """A SuperLink that is started, and stopped, as often as it is lost."""

    def __init__(self, made: list[_Link], starts: bool = True) -> None:
        self.grid, self.running, self.stopped, self.closed = _Grid([1, 2]), True, False, list[bool]()
        self._starts = starts
        made.append(self)

    def wait_until_ready(self, interrupted: Any) -> None:
        if not self._starts:
            raise LinkLostError("did not start")

    def open_run(self) -> tuple[Any, Any]:
        return self.grid, None

    def close_run(self, *, completed: bool) -> None:
        self.closed.append(completed)

    def stop(self) -> None:
        self.stopped = True


class _Coordinator:
    """A study whose link is lost in so many of its runs, and then in so many of its notices."""

    def __init__(self, lost_runs: int = 0, lost_notices: int = 0) -> None:
        self.lost: LinkLostError | None = None
        self.runs = self.told = 0
        self._lost_runs, self._lost_notices = lost_runs, lost_notices

    def run(self, grid: Any, context: Any) -> None:
        self.runs += 1
        self.lost = LinkLostError("gone") if self.runs <= self._lost_runs else None

    def outcome_notice(self) -> EndRequest:
        return EndRequest(status="success", exit_code=0, summary="")

    def note_waiting(self, event: Waiting) -> None:
        pass

    def notify_hospitals(self, grid: Any, notice: EndRequest) -> None:
        self._lost_notices -= 1
        if self._lost_notices >= 0:
            raise LinkLostError("gone")
        self.told += 1


def _serve(
    coordinator: _Coordinator,
    monkeypatch: pytest.MonkeyPatch,
    *,
    starts: Sequence[bool] = (),
    stop: threading.Event | None = None,
) -> list[_Link]:
    made, left = list[_Link](), list(starts)
    monkeypatch.setattr(
        "pate_fed.flower.superlink.SuperLink", lambda *_, tls: _Link(made, left.pop(0) if left else True)
    )
    stop = stop or threading.Event()
    monkeypatch.setattr(stop, "wait", lambda seconds: stop.is_set())
    study: Any = coordinator
    hosted = Host("a:1", None, 5.0, lambda text: None)
    try:
        hosted.serve(coordinator.run, study, folder=Path(), hospitals=2, least=2, stop=stop)
    finally:
        assert all(link.stopped and link.closed for link in made)
    return made


def test_a_link_that_is_lost_is_made_again_and_the_study_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = _Coordinator(lost_runs=3)
    made = _serve(
        coordinator, monkeypatch, starts=(True, True, False)
    )  # also where one does not start at once
    assert (len(made), coordinator.runs, coordinator.told) == (5, 4, 1)
    assert [link.closed[0] for link in made] == [False] * 4 + [True]


def test_a_study_that_is_over_runs_no_second_time_and_hospitals_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    coordinator = _Coordinator(lost_notices=1)
    assert len(_serve(coordinator, monkeypatch)) == 2
    assert (coordinator.runs, coordinator.told) == (1, 1)
    coordinator = _Coordinator(lost_notices=9)  # its outcome stands whether they hear it or not
    assert len(_serve(coordinator, monkeypatch)) == 2
    assert (coordinator.runs, coordinator.told) == (1, 0)


def test_a_link_that_is_lost_time_and_again_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = _Coordinator(lost_runs=99)
    with pytest.raises(LinkLostError, match="gone"):
        _serve(coordinator, monkeypatch)
    assert coordinator.runs == 6
    coordinator = _Coordinator()
    with pytest.raises(LinkLostError, match="did not start"):
        _serve(coordinator, monkeypatch, starts=(False,))  # it never was there: no second try
    assert coordinator.runs == 0
    stop = threading.Event()
    monkeypatch.setattr(coordinator, "run", lambda grid, context: stop.set())
    coordinator.lost = LinkLostError("gone")
    assert len(_serve(coordinator, monkeypatch, stop=stop)) == 1  # nor once the user asked to stop


def test_after_a_loss_those_who_are_gone_are_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_POLL_S", 0.0)
    monkeypatch.setattr(host, "_BACK_S", 0.0)
    link: Any = SimpleNamespace(running=True)
    made = Host("a:1", None, 3600.0, lambda text: None)
    found = made._wait_for_hospitals(link, _Grid([], [1], [1]), 2, None, threading.Event(), enough=1)
    assert [each.answered for each in found] == [0, 1]
