"""Pages on loopback: who is kept out, whatever the page is, and what each answer tells the browser."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from pate_fed.cli import loopback
from pate_fed.cli.loopback import LoopbackHandler, LoopbackServer


class _Handler(LoopbackHandler):
    may = "style-src 'self'"

    def do_GET(self) -> None:
        if self.path == "/fault":
            raise ValueError("a fault")
        self.send_text("<p>page</p>", **{"X-More": "1"})


@contextmanager
def _serving(handler: type[LoopbackHandler]) -> Iterator[LoopbackServer]:
    server = LoopbackServer(handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def server() -> Iterator[LoopbackServer]:
    with _serving(_Handler) as server:
        yield server


def _ask(server: LoopbackServer, *, host: str | None = None, path: str = "/", method: str = "GET") -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    try:
        connection.putrequest(method, path, skip_host=host is not None)
        if host:
            connection.putheader("Host", host)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


def test_every_answer_says_what_the_page_may_do(server: LoopbackServer) -> None:
    assert server.socket.getsockname()[0] == "127.0.0.1" and server.origin.startswith("http://127.0.0.1:")
    for found in (_ask(server), _ask(server, method="HEAD"), _ask(server, host="evil.example")):
        headers = found[1]
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; style-src 'self';") and "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy and "http" not in policy
        assert headers["Cache-Control"] == "no-store" and headers["Referrer-Policy"] == "no-referrer"
        assert headers["X-Content-Type-Options"] == "nosniff" and headers["Connection"] == "close"
    status, headers, body = _ask(server)
    assert (status, headers["X-More"], body) == (200, "1", "<p>page</p>")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:1", 200),
        ("127.0.0.1", 200),
        ("[::1]:80", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example:80", 403),
        ("localhost@evil.example", 403),
        ("", 403),
    ],
)
def test_another_name_that_leads_here_is_refused(server: LoopbackServer, host: str, status: int) -> None:
    assert _ask(server, host=host)[0] == status
    assert _ask(server, host=host, method="POST")[0] == (405 if status == 200 else 403)


def test_connections_are_bounded_and_a_place_comes_back(server: LoopbackServer) -> None:
    with ExitStack() as held:
        lines = [
            held.enter_context(socket.create_connection(("127.0.0.1", server.server_address[1])))
            for _ in range(loopback.MOST_CONNECTIONS)
        ]
        assert _ask(server)[0] == 503
        lines.pop().close()
        end = time.monotonic() + 5
        while (status := _ask(server)[0]) == 503 and time.monotonic() < end:
            time.sleep(0.01)
        assert status == 200


def test_who_is_silent_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Handler, "timeout", 0.05)
    with (
        _serving(_Handler) as server,
        socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=5) as line,
    ):
        assert line.recv(1) == b""


def test_a_fault_of_ours_is_told_here_and_not_there(
    server: LoopbackServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(http.client.BadStatusLine):
        _ask(server, path="/fault")
    end = time.monotonic() + 5
    while "a fault" not in (told := capsys.readouterr().err) and time.monotonic() < end:
        time.sleep(0.01)
    assert "ValueError: a fault" in told
