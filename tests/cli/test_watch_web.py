"""The page of `pate-fed watch --web`: what is on it, what it sends when, and who is kept out."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from report_page import Page
from saved_runs import events, save_run

from pate_fed.cli import watch_web
from pate_fed.cli.watch_web import News, WatchServer

Run = Callable[..., Any]


@contextmanager
def _serving(news: News) -> Iterator[WatchServer]:
    server = WatchServer(news, lambda: "<p>page</p>", {"watch.js": ("1", "text/javascript")})
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        news.close()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def server() -> Iterator[WatchServer]:
    with _serving(News()) as server:
        yield server


def _ask(server: WatchServer, path: str, *, method: str = "GET", host: str | None = None) -> Any:
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


def test_the_page_is_there_for_whoever_has_the_address(server: WatchServer) -> None:
    status, headers, body = _ask(server, f"/{server.token}/")
    assert (status, body) == (200, "<p>page</p>")
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy and "http" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff" and headers["Cache-Control"] == "no-store"
    assert _ask(server, f"/{server.token}/watch.js")[2] == "1"
    assert server.url == f"http://127.0.0.1:{server.server_address[1]}/{server.token}/"
    assert len(server.token) >= 32


@pytest.mark.parametrize(
    "path", ["/", "/events", "/x/", "/TOKEN", "/TOKENx/", "/TOKEN/../", "/TOKEN/log.jsonl"]
)
def test_without_the_token_there_is_nothing(server: WatchServer, path: str) -> None:
    status, _, body = _ask(server, path.replace("TOKEN", server.token))
    assert (status, body) == (404, "")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "CONNECT", "NONSENSE"])
def test_only_get_is_answered(server: WatchServer, method: str) -> None:
    status, _, body = _ask(server, f"/{server.token}/", method=method)
    assert (status, body) == (405, "")


def test_only_what_is_new_is_sent_until_the_end() -> None:
    news = News()
    news.tell({"a": "1", "b": "line\nbreak"}, over=False)
    with _serving(news) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
        connection.request("GET", f"/{server.token}/events")
        answer = connection.getresponse()
        assert answer.getheader("Content-Type") == "text/event-stream; charset=utf-8"

        def told() -> dict[str, str]:
            data = answer.readline().decode()
            assert answer.readline() == b"\n"
            return dict(json.loads(data.removeprefix("data: ")))

        assert told() == {"a": "1", "b": "line\nbreak"}
        news.tell({"a": "2", "b": "line\nbreak"}, over=False)
        assert told() == {"a": "2"}
        news.tell({"a": "3", "b": "end"}, over=True)
        assert told() == {"a": "3", "b": "end"}
        assert answer.read() == b"event: over\ndata: \n\n"
        connection.close()


def test_the_command_serves_until_it_is_ended(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, seen = save_run(tmp_path / "run", events()[:9]), list[str]()

    def look(_: float) -> None:
        if seen:
            raise KeyboardInterrupt
        (server,) = made
        _, _, text = _ask(server, f"/{server.token}/")
        seen.append(text)

    made: list[WatchServer] = []

    class Kept(WatchServer):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(watch_web, "WatchServer", Kept)
    monkeypatch.setattr("pate_fed.cli.watch.time.sleep", look)
    done = run("watch", str(folder), "--web")
    assert done.code == 130 and made[0].url in done.out and made[0].token not in done.err
    assert "never above 3.5" in Page(seen[0]).words
    refused = run("watch", str(folder), "--analyst")
    assert refused.code == 2 and "give --web, too" in refused.err
