"""The address that hospitals connect to: where it is opened, whom it waits for, and whose keys it has."""

from __future__ import annotations

import argparse
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from builders import make_terms

from pate_fed.errors import InputError, PateFedError
from pate_fed.flower import host
from pate_fed.flower.host import Address, Host, open_host
from pate_fed.flower.transport import LinkLostError, Untold
from pate_fed.identity import Authority
from pate_fed.kinds.terms import largest_messages
from pate_fed.report.log import Waiting


def _options(**changes: Any) -> argparse.Namespace:
    options = {
        "tls_dir": None,
        "address": None,
        "insecure": True,
        "insecure_anywhere": False,
        "wait": 5.0,
        "linger": 7.0,
    }
    return argparse.Namespace(**{**options, **changes})


def test_without_an_address_it_is_a_free_port_of_this_machine() -> None:
    found = open_host(_options(), quiet=True)
    name, _, port = found.address.rpartition(":")
    assert (name, found.authority, found.wait_s, found.linger_s) == ("127.0.0.1", None, 5.0, 7.0)
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
    guard = host._link_guard(authority)
    assert guard.most_bytes == largest_messages(terms).to_coordinator
    assert guard.hospitals == terms.num_clients
    assert all((authority.folder / name).exists() for name in ("ca.crt", "server.crt", "server.key"))


class _Grid:
    """More nodes at every look."""

    def __init__(self, *looks: Sequence[int]) -> None:
        self._looks = list(looks)

    def get_node_ids(self) -> Sequence[int]:
        return self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]


def _waits(
    wait_s: float,
    grid: _Grid,
    names: dict[int, str] | None = None,
    *,
    enough: int | None = None,
    **given: Any,
) -> list[Waiting]:
    link: Any = SimpleNamespace(running=given.get("running", True))
    made = Host("a:1", None, wait_s, given.get("report", lambda text: None))
    admits: Any = None
    address = Address(made, admits, folder=Path(), stop=given.get("stop", threading.Event()))
    return list(address._wait_for_hospitals(host._Open(link, grid, None, names), 2, enough=enough))


def test_it_waits_until_all_are_there_or_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_POLL_S", 0.0)
    told: list[str] = []
    found = _waits(60.0, _Grid([], [1], [1], [1, 2]), report=told.append)
    first, *more = told
    assert first == "listening on a:1 for 2 hospitals"
    assert [re.sub(r"\d+:\d\d:\d\d", "TIME", text) for text in more] == [
        "waiting for hospitals: 0 of 2 connected, until TIME",
        "waiting for hospitals: 1 of 2 connected, until TIME",
        "waiting for hospitals: 2 of 2 connected",
    ]
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
    many = {node: f"h{node}" for node in range(22)}
    [counted] = _waits(0.05, _Grid([1]), many)
    assert counted.text == "1 of 2 connected (h1)"
    [nearly] = _waits(0.05, _Grid([*range(1, 22)]), many)
    assert nearly.text == "21 of 2 connected; not yet: h0"


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
    """A study whose link is lost in so many of its runs, and then in so many of its notices.

    It is told to no other hospital than those that `left` names at each look, the last ones for good.
    """

    goes_on = False

    def __init__(
        self, lost_runs: int = 0, lost_notices: int = 0, left: Sequence[Untold] = (), exit_code: int = 0
    ) -> None:
        self.lost: LinkLostError | None = None
        self.gather: Callable[[], None] = lambda: None
        self.runs = self.told = self.gathered = 0
        self._lost_runs, self._lost_notices = lost_runs, lost_notices
        self._left, self.exit_code = list(left) or [Untold(pending=0, parties=())], exit_code

    def run(self, grid: Any, context: Any) -> None:
        self.runs += 1
        self.gather()
        self.lost = LinkLostError("gone") if self.runs <= self._lost_runs else None

    def set_admitted(self, names: Any, sum_identities: Any, *, key: Any) -> None:
        raise AssertionError("nobody has a key")

    def note_waiting(self, event: Waiting) -> None:
        self.gathered = event.answered

    def telling(self, grid: Any, names: Any) -> Iterator[Untold]:
        self._lost_notices -= 1
        if self._lost_notices >= 0:
            raise LinkLostError("gone")
        self.told += 1
        while True:
            yield self._left.pop(0) if len(self._left) > 1 else self._left[0]


def _serve(
    coordinator: _Coordinator,
    monkeypatch: pytest.MonkeyPatch,
    *,
    starts: Sequence[bool] = (),
    stop: threading.Event | None = None,
    linger_s: float = 0.0,
    told: list[str] | None = None,
) -> list[_Link]:
    made, left = list[_Link](), list(starts)
    monkeypatch.setattr(
        "pate_fed.flower.superlink.SuperLink", lambda *_, tls: _Link(made, left.pop(0) if left else True)
    )
    monkeypatch.setattr(host, "_TELL_POLL_S", 0.0)
    stop = stop or threading.Event()
    monkeypatch.setattr(stop, "wait", lambda seconds: stop.is_set())
    hosted = Host("a:1", None, 5.0, ([] if told is None else told).append, linger_s)
    try:
        with closing(Address(hosted, coordinator, folder=Path(), stop=stop)) as address:
            address.serve(coordinator.run, coordinator, hospitals=2, least=2)
            address.tell(coordinator)
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
    coordinator = _Coordinator(lost_notices=9)
    with pytest.raises(LinkLostError, match="gone"):
        _serve(coordinator, monkeypatch)
    assert (coordinator.runs, coordinator.told) == (1, 0)


def test_the_address_lingers_for_those_who_took_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """No longer than it takes to tell them, than its time, or than the user likes."""
    monkeypatch.setattr(host, "_QUIET_S", 0.0)
    monkeypatch.setattr(host, "_POLL_S", 0.0)
    away, nobody = Untold(pending=0, parties=("east", "west")), Untold(pending=0, parties=())
    west = Untold(pending=1, parties=("west",))
    told: list[str] = []
    [link] = _serve(_Coordinator(left=[away, away, west, nobody]), monkeypatch, linger_s=600.0, told=told)
    assert link.closed[0]
    shown = [re.sub(r"until \S+", "until TIME", text) for text in told if "told" in text]
    [first, second, last] = shown
    until = "the address stays open for them until TIME (--linger), Ctrl-C ends that"
    assert first == f"not told yet how the study ended: east, west; {until}"
    assert second == f"not told yet how the study ended: west; {until}"
    assert last == "all hospitals are told how the study ended"
    told.clear()
    _serve(_Coordinator(left=[away]), monkeypatch, linger_s=0.05, told=told)
    assert told[-1] == "not told: east, west; the same command with this --run-dir tells them"
    told.clear()
    _serve(_Coordinator(left=[away], exit_code=130), monkeypatch, linger_s=600.0, told=told)
    assert not [text for text in told if "told" in text]  # they wait for whoever goes on


def test_ctrl_c_ends_the_lingering(monkeypatch: pytest.MonkeyPatch) -> None:
    stop, looks = threading.Event(), [0]

    class Stopping(_Coordinator):
        def telling(self, grid: Any, names: Any) -> Iterator[Untold]:
            for left in super().telling(grid, names):
                looks[0] += 1
                if looks[0] == 3:
                    stop.set()
                yield left

    began = time.monotonic()
    _serve(Stopping(left=[Untold(pending=0, parties=("west",))]), monkeypatch, linger_s=600.0, stop=stop)
    assert looks == [3] and time.monotonic() - began < 10


def test_one_that_is_connected_and_silent_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_HEAR_S", 0.2)
    began = time.monotonic()
    _serve(_Coordinator(left=[Untold(pending=1, parties=())]), monkeypatch)
    assert 0.2 <= time.monotonic() - began < 5


def test_hospitals_are_waited_for_once_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stands(_Coordinator):
        def run(self, grid: Any, context: Any) -> None:
            self.runs += 1

    stands, told = Stands(), list[str]()
    _serve(stands, monkeypatch, told=told)
    assert (stands.runs, stands.told, told) == (1, 1, [])
    coordinator = _Coordinator()
    _serve(coordinator, monkeypatch)
    assert coordinator.gathered == 2


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
    told: list[str] = []
    found = _waits(3600.0, _Grid([], [1], [1]), enough=1, report=told.append)
    assert [each.answered for each in found] == [0, 1]
    assert len(told) == 3  # with the time until which the second one is waited for


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_study_that_goes_on_waits_no_hour_for_who_is_gone(
    goes_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a new process: its quorum is there again at once, and one hospital is gone for good."""
    asked: list[int | None] = []

    def wait(self: Address, found: Any, wanted: int, *, enough: int | None = None) -> Iterator[Waiting]:
        asked.append(enough)
        yield from ()

    monkeypatch.setattr(Address, "_wait_for_hospitals", wait)
    coordinator = _Coordinator()
    monkeypatch.setattr(coordinator, "goes_on", goes_on, raising=False)
    _serve(coordinator, monkeypatch)
    assert asked == [2 if goes_on else None]
