"""The app bundle is one shim without code, the same everywhere; any other is told from it unread."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Callable

import pytest

from pate_fed.flower.bundle import build_bundle, is_the_shim

SHIM = "efdd7765e560efe26a834b90b6f72a72b083717424842149a4f0fea5a13514c0"


def _archive(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def _files(bundle: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_shim_is_the_same_on_every_machine_and_holds_no_code() -> None:
    assert is_the_shim(build_bundle())
    assert set(_files(build_bundle())) == {"pyproject.toml", ".info/CONTENT"}
    assert hashlib.sha256(build_bundle()).hexdigest() == SHIM


@pytest.mark.parametrize(
    "change",
    [
        lambda files: {**files, "clients/app.py": b"app = None\n"},
        lambda files: {**files, "sitecustomize.py": b""},
        lambda files: {name: content for name, content in files.items() if name != ".info/CONTENT"},
        lambda files: {
            **files,
            "pyproject.toml": files["pyproject.toml"].replace(b"clients.app", b"clients.spy"),
        },
        lambda files: {**files, "zeros": bytes(10_000_000)},
        lambda files: {},
    ],
)
def test_anything_else_is_not(change: Callable[[dict[str, bytes]], dict[str, bytes]]) -> None:
    assert not is_the_shim(_archive(change(_files(build_bundle()))))


def test_damaged_bundles_are_not_the_shim() -> None:
    good = build_bundle()
    assert not any(is_the_shim(bad) for bad in (b"", b"PK", good[:-1], good + b"\0", bytes(1_000_000)))
