"""The cache: built once by whoever comes first, complete or not there, whatever happens to the builders."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pate_fed.data import GlyphSettings, cache, load_dataset, pool_digest
from pate_fed.data.cache import build_once, cache_root
from pate_fed.errors import InputError

LOAD = """
import os, signal, sys
from pathlib import Path
from pate_fed.data import GlyphSettings, load_dataset
heard = []
def on_progress(done, total):
    heard.append(done)
    if sys.argv[2] == "die" and done > 0:
        os.kill(os.getpid(), signal.SIGKILL)
settings = GlyphSettings(classes=2, private=100, public=60, seed=1)
found = load_dataset("glyph", glyph=settings, cache_dir=Path(sys.argv[1]), on_progress=on_progress)
print(len(heard) > 0, found.pool_digest, found.private_images.sum())
"""
TWO = GlyphSettings(classes=2, private=100, public=60, seed=1)


def start(folder: Path, mode: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", LOAD, str(folder), mode]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_processes_that_start_at_once_draw_once_and_see_the_same(tmp_path: Path) -> None:
    running = [start(tmp_path, "live") for _ in range(3)]
    answers = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], answers
    words = [out.split() for out, _ in answers]
    assert sorted(word[0] for word in words) == ["False", "False", "True"]
    assert len({tuple(word[1:]) for word in words}) == 1


def test_what_a_killed_process_left_is_never_used(tmp_path: Path) -> None:
    process = start(tmp_path, "die")
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    (left,) = (path for path in (tmp_path / "glyph").iterdir() if path.is_dir())
    assert left.name.startswith(".") and (left / "private_images.npy").exists()
    found = load_dataset("glyph", glyph=TWO, cache_dir=tmp_path)
    assert not left.exists()
    assert found.pool_digest == pool_digest(found.public_images)
    assert (np.asarray(found.private_images).reshape(100, -1).max(axis=1) > 0).all()


def build(folder: Path) -> str:
    (folder / "array.bin").write_bytes(bytes(1000))
    return "ab" * 32


def test_a_complete_folder_is_not_built_again(tmp_path: Path) -> None:
    folder = build_once(tmp_path, "kind", "key", build)
    assert build_once(tmp_path, "kind", "key", lambda empty: pytest.fail("built again")) == folder
    assert (folder / "array.bin").stat().st_mode & 0o222 == 0


DAMAGES = [
    *("cut", "file gone", "manifest gone", "manifest cut", "manifest odd"),
    *("digest gone", "size odd", "manifest deep"),
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_built_again(tmp_path: Path, damage: str) -> None:
    folder = build_once(tmp_path, "kind", "key", build)
    array, manifest = folder / "array.bin", folder / cache.MANIFEST
    for path in (array, manifest):
        path.chmod(0o644)
    match damage:
        case "cut":
            os.truncate(array, 999)
        case "file gone":
            array.unlink()
        case "manifest gone":
            manifest.unlink()
        case "manifest cut":
            os.truncate(manifest, 10)
        case "manifest odd":
            manifest.write_text("[]")
        case "digest gone":
            manifest.write_text('{"files": {"array.bin": 1000}}')
        case "size odd":
            manifest.write_text('{"pool_digest": "ab", "files": {"array.bin": "1000"}}')
        case "manifest deep":
            manifest.write_text("[" * 100_000)
    assert build_once(tmp_path, "kind", "key", build) == folder
    assert cache.is_complete(folder) and array.stat().st_size == 1000
    assert cache.read_manifest(folder).pool_digest == "ab" * 32


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> str:
        build(folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_once(tmp_path, "kind", "key", fail)
    assert [path.name for path in (tmp_path / "kind").iterdir()] == ["key.lock"]


def test_without_locks_the_first_to_finish_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(cache.fcntl, "flock", no_locks)

    def late(folder: Path) -> str:
        (build_once(tmp_path, "kind", "key", build) / "array.bin").stat()  # another comes first meanwhile
        (folder / "array.bin").write_bytes(b"late")
        return "cd" * 32

    folder = build_once(tmp_path, "kind", "key", late)
    assert (folder / "array.bin").stat().st_size == 1000
    assert sorted(path.name for path in (tmp_path / "kind").iterdir()) == ["key", "key.lock"]


def test_an_unwritable_cache_says_what_to_set(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError) as caught:
        load_dataset("glyph", glyph=TWO, cache_dir=tmp_path / "file" / "cache")
    assert all(word in str(caught.value) for word in ("file/cache", "cannot be written", "PATE_FED_CACHE"))


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_root() == tmp_path / ".cache" / "pate_fed"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg" / "pate_fed"
    monkeypatch.setenv("PATE_FED_CACHE", "~/own")
    assert cache_root() == tmp_path / "own"
    assert cache_root(tmp_path / "given") == tmp_path / "given"
