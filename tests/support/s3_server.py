"""An S3 of one's own on this machine: Amazon's protocol over HTTP, spoken by s3fs as to any other S3."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

BUCKET = "bucket"
_UP_S = 60.0


def has_s3() -> bool:
    """Whether S3's library and a server of its protocol are installed, which no test needs."""
    return all(importlib.util.find_spec(name) is not None for name in ("s3fs", "moto", "flask"))


def skip_without_s3() -> None:
    """Skip a test that needs both."""
    if not has_s3():
        pytest.skip("S3's library and a server are not here: pip install s3fs 'moto[server]'")


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """A server with an empty bucket: the environment in which s3fs finds it, and may use it."""
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        port = int(place.getsockname()[1])
    environment = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            _make_bucket(environment["AWS_ENDPOINT_URL"])
            yield environment
        finally:
            server.terminate()


def _make_bucket(endpoint: str) -> None:
    """Put the bucket, which moto takes without a signature, as soon as the server is there."""
    from urllib.request import Request, urlopen

    end = time.monotonic() + _UP_S
    while True:
        try:
            urlopen(Request(f"{endpoint}/{BUCKET}", method="PUT"), timeout=5).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
