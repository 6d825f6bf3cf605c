"""The private names of Flower and Ray that this room leans on, and who a cluster lets in by its token."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from pate_fed.errors import InputError
from pate_fed.flower import prepare_environment

prepare_environment()

from pate_fed.flower.cluster import ClusterSettings, check_token
from pate_fed.flower.compat import asks_for_token, token_header


def test_flower_is_a_release_this_room_was_written_for() -> None:
    assert (1, 39) <= tuple(map(int, version("flwr").split(".")[:2])) <= (1, 42)


@pytest.fixture
def cluster() -> Iterator[tuple[str, set[str]]]:
    """The address of what answers as a cluster's GCS does, and the tokens that it takes; empty: anyone's."""
    import grpc

    tokens: set[str] = set()

    def alive(request: bytes, context: Any) -> bytes:
        shown = dict(context.invocation_metadata()).get("authorization", "")
        if tokens and shown.removeprefix("Bearer ") not in tokens:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "InvalidAuthToken")
        return b""

    handlers = {"CheckAlive": grpc.unary_unary_rpc_method_handler(alive)}
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("ray.rpc.NodeInfoGcsService", handlers),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}", tokens
    server.stop(None).wait()


def test_a_cluster_tells_whether_it_asks_for_a_token(cluster: tuple[str, set[str]]) -> None:
    address, tokens = cluster
    assert not asks_for_token(address, {})
    tokens.add("t" * 64)
    assert asks_for_token(address, {}) and asks_for_token(address, {"authorization": "Bearer x"})
    assert not asks_for_token(address, {"authorization": "Bearer " + "t" * 64})


def test_nobody_at_an_address_is_one_sentence() -> None:
    with pytest.raises(InputError, match=r"--ray-address 127\.0\.0\.1:1: no Ray cluster answers there"):
        asks_for_token("127.0.0.1:1", {})


def test_the_users_token_is_found_where_ray_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert token_header() == {}
    (tmp_path / "token").write_text("f" * 64)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    assert token_header() == {"authorization": "Bearer " + "f" * 64}
    monkeypatch.setenv("RAY_AUTH_TOKEN", "e" * 64)
    assert token_header() == {"authorization": "Bearer " + "e" * 64}
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(InputError, match="RAY_AUTH_TOKEN_PATH: names no file"):
        token_header()


@pytest.mark.parametrize(
    ("asked", "insecure", "shown", "words"),
    [
        ("t" * 64, False, "t" * 64, None),
        ("", True, "", None),
        ("", False, "t" * 64, "asks for no token: whoever reaches it can run code"),
        ("t" * 64, False, "w" * 64, "does not take this token"),
        ("t" * 64, False, "", "asks for a token: Ray looks for it"),
        ("t" * 64, True, "t" * 64, "asks for a token, so leave this option away"),
    ],
)
def test_who_is_let_in(
    cluster: tuple[str, set[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    asked: str,
    insecure: bool,
    shown: str,
    words: str | None,
) -> None:
    address, tokens = cluster
    tokens |= {asked} - {""}
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN", shown)
    settings = ClusterSettings(address=address, insecure=insecure)
    if words is None:
        check_token(address, settings)
        return
    with pytest.raises(InputError, match=words) as caught:
        check_token(address, settings)
    assert "t" * 64 not in str(caught.value) and "w" * 64 not in str(caught.value)
