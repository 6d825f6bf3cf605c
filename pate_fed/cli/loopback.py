"""Pages on loopback for whoever was told their address: what `watch --web` and `hospital open` share.

What keeps others out. The server listens on 127.0.0.1 alone. The Host header must name loopback, so that no
page of another site that resolves to 127.0.0.1 (DNS rebinding) reads it. The page's policy forbids it to load
or send anything elsewhere, and others to frame it. At most 16 connections are open, and who says nothing for
10 s is let go; who of this machine means it can still keep others waiting. No request is logged: an address
may have a token.
"""

from __future__ import annotations

import re
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, ClassVar

MOST_CONNECTIONS = 16
_REQUEST_S = 10.0  # to say what is wanted, and to take what is sent
_LOOPBACK = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
_POLICY = "default-src 'none'; {}; base-uri 'none'; frame-ancestors 'none'"
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class LoopbackServer(ThreadingHTTPServer):
    """A server on a free port of 127.0.0.1, with a bound on how many are connected."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 2 * MOST_CONNECTIONS  # those that are turned away are told so at once

    def __init__(self, handler: type[LoopbackHandler]) -> None:
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__(("127.0.0.1", 0), handler)

    def server_bind(self) -> None:
        """Take the port; HTTPServer would ask a name server for this machine's name, too."""
        TCPServer.server_bind(self)

    @property
    def origin(self) -> str:
        """Scheme, address and port."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Take the connection, unless as many as are meant are open."""
        if not self._free.acquire(blocking=False):
            self._turn_away(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer it, and give its place back."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def _turn_away(self, request: socket.socket) -> None:
        request.setblocking(False)  # who does not read must not keep the others waiting
        with suppress(OSError):  # it may be gone already
            request.send(b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Length: 0\r\n\r\n")
        self.shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say what went wrong here; a reader that leaves in the middle is no fault."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class LoopbackHandler(BaseHTTPRequestHandler):
    """Answers those who name loopback; `may` is what the page may load and where its forms may go."""

    may: ClassVar[str]
    server_version, sys_version = "pate-fed", ""
    timeout = _REQUEST_S

    def parse_request(self) -> bool:
        """Whether the request is one, and names loopback, whatever its method."""
        if not super().parse_request():
            return False
        host = self.headers.get_all("Host") or []
        if len(host) != 1 or not _LOOPBACK.fullmatch(host[0]):
            self.send_error(HTTPStatus.FORBIDDEN)
            return False
        return True

    def send_text(
        self, text: str, kind: str = "text/html", status: HTTPStatus = HTTPStatus.OK, **headers: str
    ) -> None:
        """Send a whole answer."""
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def telling(self, act: Callable[[], None]) -> None:
        """Do it; a fault of the program is told as one, and stands on the terminal."""
        try:
            act()
        except OSError:
            raise
        except Exception:
            text = "A fault of the program, which its terminal shows.\n"
            self.send_text(text, "text/plain", HTTPStatus.INTERNAL_SERVER_ERROR)
            raise

    def end_headers(self) -> None:
        """Every answer says what the page may do, and that the connection ends."""
        self.send_header("Content-Security-Policy", _POLICY.format(self.may))
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Connection", "close")
        super().end_headers()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """A status without a word of what was asked for; a method that is not answered is not allowed."""
        status = HTTPStatus.METHOD_NOT_ALLOWED if code == HTTPStatus.NOT_IMPLEMENTED else HTTPStatus(code)
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""
