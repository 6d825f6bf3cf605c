"""Files on the disk: whole or not there, under their names, for their owner alone."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import re
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pate_fed.disk import (
    check_there,
    check_writable_files,
    hold,
    load_arrays,
    read_json,
    read_toml,
    write_arrays,
    write_private,
    write_result,
)
from pate_fed.errors import InputError, IntegrityError

VOTES = np.array([[1, 0], [0, 1], [1, 0]])


@pytest.mark.parametrize(
    "write",
    [
        lambda folder: write_private(folder / "x", b"new"),
        lambda folder: write_arrays(folder / "x", votes=VOTES),
        lambda folder: write_result(folder / "x", b"new"),
    ],
    ids=["private", "arrays", "result"],
)
def test_a_file_and_its_name_outlive_a_power_cut(
    tmp_path: Path, synced: list[str], write: Callable[[Path], None]
) -> None:
    """Until its folder is synced, a file that was renamed may be gone: asked twice, ε too small."""
    write(tmp_path)
    assert len(synced) >= 2 and synced[-1] == str(tmp_path)
    assert Path(synced[-2]).parent == tmp_path
    files = [path for path in tmp_path.iterdir() if path.is_file()]
    assert files and all(path.stat().st_mode & 0o777 == 0o600 for path in files)
    assert not [path.name for path in files if path.name.endswith(".part") or path.name.startswith(".")]


def test_what_is_not_durable_is_left_to_the_system(tmp_path: Path, synced: list[str]) -> None:
    write_private(tmp_path / "x", b"new", durable=False)
    assert synced == [] and (tmp_path / "x").read_bytes() == b"new"


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    write_private(path, b"old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pate_fed.disk.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_private(path, b"new")
    with pytest.raises(InputError, match="No space"):
        write_result(path, b"new")
    assert path.read_bytes() == b"old"
    monkeypatch.undo()
    write_private(path, b"new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"] and path.read_bytes() == b"new"


def test_results_of_two_at_once_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, sync = tmp_path / "report.html", os.fsync

    def meanwhile(handle: int) -> None:
        monkeypatch.setattr("pate_fed.disk.os.fsync", sync)
        write_result(path, b"another")
        sync(handle)

    monkeypatch.setattr("pate_fed.disk.os.fsync", meanwhile)
    write_result(path, b"one")
    assert path.read_bytes() == b"one" and [entry.name for entry in tmp_path.iterdir()] == ["report.html"]


def test_what_is_public_can_be_read_by_others(tmp_path: Path) -> None:
    write_result(tmp_path / "north.crt", b"certificate", public=True)
    write_result(tmp_path / "report.html", b"report")
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"north.crt": 0o644, "report.html": 0o600}


@dataclass(frozen=True)
class Note:
    """A small file."""

    name: str
    folder: Path
    count: int = 0


def test_a_json_file_is_read_into_checked_values(tmp_path: Path) -> None:
    path = tmp_path / "note.json"
    path.write_text('{"name": "a", "folder": "/tmp/x"}')
    assert read_json(Note, path, what="a note") == Note("a", Path("/tmp/x"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read"),
        ("", "not a note"),
        ("\xff", "not a note"),
        ("[" * 100_000, "not a note"),
        ("[]", r"not a note .*a table of settings is meant"),
        ('{"name": "a"}', r"not a note \(folder: is missing\)"),
        ('{"name": "a", "folder": ""}', "folder is '': a path is meant"),
        ('{"name": "a", "folder": "b", "count": 1.5}', "count is 1.5: a whole number is meant"),
        ('{"name": "a", "folder": "b", "kount": 1}', "did you mean count"),
        ('{"name": "a", "name": "b", "folder": "c"}', "not a note .the key 'name' is there twice"),
        ('{"name": "a", "folder": {"x": 1, "x": 1}}', "not a note .the key 'x' is there twice"),
    ],
)
def test_a_json_file_that_is_none_is_named(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "note.json"
    if text is not None:
        path.write_text(text, encoding="latin-1")
    with pytest.raises(IntegrityError, match=f"note.json: {words}|note.json: .*{words}"):
        read_json(Note, path, what="a note", error=IntegrityError)


def test_a_file_that_is_not_there_or_cannot_be_reached_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain").touch()
    check_there(tmp_path / "plain", option="--data")
    for name, words in (("none", "there is no such file"), ("plain/none", r"cannot be read \(Not a dir")):
        with pytest.raises(InputError, match=f"--data .*{name}: {words}"):
            check_there(tmp_path / name, option="--data")

    def closed(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", closed)
    with pytest.raises(InputError, match=r"--data .*plain: cannot be read \(Permission denied\)"):
        check_there(tmp_path / "plain", option="--data")


def _holder(folder: Path) -> subprocess.Popen[str]:
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from pate_fed.disk import hold\n"
        "with hold(Path(sys.argv[1]), what='--run-dir'):\n"
        "    print('held', flush=True)\n"
        "    time.sleep(60)\n"
    )
    root = Path(__file__).resolve().parent.parent
    return subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True, cwd=root
    )


def test_a_folder_is_held_by_one_process_until_it_is_killed(tmp_path: Path) -> None:
    """The second is told which process has it; a kill frees it, and what it wrote misleads nobody."""
    with _holder(tmp_path) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        words = rf"--run-dir {re.escape(str(tmp_path))}: process {process.pid} on .+, since 2.+ uses it; one"
        with pytest.raises(InputError, match=words), hold(tmp_path, what="--run-dir"):
            pass
        process.kill()
        process.wait()
    with hold(tmp_path, what="--run-dir"):
        assert f"process {os.getpid()} " in (tmp_path / "lock").read_text(encoding="utf-8")
        with hold(tmp_path, what="--run-dir", leave=False):
            assert (tmp_path / "lock").exists()  # by this very process, whose first hold goes on
    assert (tmp_path / "lock").stat().st_mode & 0o077 == 0


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an NFS mount without its lock daemon: nobody waits for ever, and nobody goes on unlocked."""

    def no_locks(handle: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with (
        pytest.raises(InputError, match=r"lock: cannot be locked \(No locks available\)"),
        hold(tmp_path, what="--run-dir"),
    ):
        pass


@pytest.mark.parametrize("kind", ["fifo", "device", "folder", "huge"])
def test_only_regular_files_of_some_size_are_read(kind: str, tmp_path: Path) -> None:
    """Nobody waits for a pipe that nobody writes to, or reads a device without an end."""
    path = tmp_path / "x"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "huge":
        with path.open("wb") as file:
            file.truncate(2**40)
    path = Path("/dev/zero") if kind == "device" else path
    words = {"huge": "larger than (64|4) MiB", "folder": "directory"}.get(kind, "not a regular file")
    with pytest.raises(InputError, match=rf"cannot be read \(.*{words}"):
        read_json(Note, path, what="a note")
    with pytest.raises(InputError, match=rf"--config .*: cannot be read \(.*{words}"):
        read_toml(path, option="--config")


def _npz(path: Path, *parts: bytes, packed: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", packed, compresslevel=1) as archive:
        for number, part in enumerate(parts):
            archive.writestr(f"a{number}.npy", part)
    return path


def _header(*shape: int, kind: str = "<f8") -> bytes:
    content = io.BytesIO()
    described = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(content, described)
    return content.getvalue()


HOSTILE: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "claims": lambda path: path.write_bytes(_header(10**12) + bytes(64)),
    "empty texts": lambda path: path.write_bytes(_header(10**12, kind="<U0")),
    "claims in an archive": lambda path: _npz(path, _header(10**12) + bytes(64)),
    "grows": lambda path: _npz(path, _header(2**26) + bytes(2**29), packed=zipfile.ZIP_DEFLATED),
    "objects": lambda path: path.write_bytes(_header(1, kind="|O") + b"x" * 8),
    "cut": lambda path: path.write_bytes(_npz(path, _header(2) + bytes(16)).read_bytes()[:-9]),
    "huge": lambda path: os.truncate(_npz(path), 2**40),
    "nothing": lambda path: path.touch(),
    "no arrays": lambda path: _npz(path, b"text"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_arrays_are_held_to_their_headers_before_they_are_unpacked(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    HOSTILE[kind](path)
    tracemalloc.start()
    with pytest.raises((ValueError, OSError)):
        load_arrays(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**24


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_come_as_they_were_written(save: Callable[..., None], tmp_path: Path) -> None:
    save(tmp_path / "x.npz", votes=VOTES, names=np.array(["a", "bc"]), none=np.zeros((0, 3)))
    np.save(tmp_path / "x.npy", np.asfortranarray(VOTES))
    found = load_arrays(tmp_path / "x.npz")
    assert list(found) == ["votes", "names", "none"] and found["none"].shape == (0, 3)
    for each in (found["votes"], load_arrays(tmp_path / "x.npy")[""]):
        np.testing.assert_array_equal(each, VOTES)
    np.testing.assert_array_equal(load_arrays(io.BytesIO((tmp_path / "x.npy").read_bytes()))[""], VOTES)


DEEP_KEYS = ["x" + ".x" * 100_000 + " = 1", 'x . "a b"' + " .\t'c'" * 100_000 + " = 1", "x" * 2**21]


@pytest.mark.parametrize(
    "text", ["x=" + "[" * 100_000, "x=" + "9" * 5000, "x = {" * 50_000, *DEEP_KEYS], ids=range(6)
)
def test_settings_that_nobody_means_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"--config .*study\.toml: not valid TOML"):
        read_toml(path, option="--config")


@pytest.mark.parametrize(
    ("flag", "words"), [(os.ST_RDONLY, "its disk is read-only"), (0, "give it to this user")]
)
def test_who_may_not_write_is_told_why(
    flag: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=flag))
    with pytest.raises(InputError, match=words):
        check_writable_files(tmp_path)


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f8', 'fortran_order': False, 'shape': (True,)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (0, 10000000000000000000000000)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1,)",
        f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({'-' * 9000}1,)}}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1 2,)}",
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_header_that_is_none_is_damage_and_no_fault(header: str, packed: bool, tmp_path: Path) -> None:
    own = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + bytes(8)
    path = tmp_path / "x.npz"
    path.write_bytes(own)
    if packed:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", own)
    with pytest.raises(ValueError, match=r"header|Cannot parse|too large"):
        load_arrays(path)


@pytest.mark.parametrize("how", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_an_archive_packed_as_numpy_never_does_is_refused(how: int, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w", compression=how) as archive:
        archive.writestr("x.npy", b"\x93NUMPY")
    with pytest.raises(ValueError, match="packed in a way"):
        load_arrays(tmp_path / "x.npz")


DEEP = ".".join(["k"] * 40)


@pytest.mark.parametrize(
    ("text", "deep"),
    [
        (f"{DEEP} = 1", True),
        (f't = {{ a = """\n x """, {DEEP} = "" }}', True),
        (f't = {{ a = """x"""", {DEEP} = "" }}', True),
        (f"t = {{ a = '''x''', {DEEP} = '' }}", True),
        (f'a = "\\\\"\n{DEEP} = 1', True),
        (f"# {DEEP}\na = 1", False),
        (f'a = """\n{DEEP} = \\""" {DEEP}\n"""', False),
        (f"a = '{DEEP}'", False),
    ],
)
def test_keys_of_many_parts_are_found_and_nothing_else_is_taken_for_one(
    text: str, deep: bool, tmp_path: Path
) -> None:
    path = tmp_path / "x.toml"
    path.write_text(text)
    if deep:
        with pytest.raises(InputError, match="a key of more than 32 parts"):
            read_toml(path, option="--config")
    else:
        assert "a" in read_toml(path, option="--config")


@pytest.mark.parametrize(
    "text", ['# "' + '"\\' * 2_000_000, 'x = "' + '\\"' * 2_000_000, '"""' + "a" * 10 + "\\"]
)
def test_texts_that_never_end_are_read_in_linear_time(text: str, tmp_path: Path) -> None:
    """In quadratic time four million characters would take a day."""
    path = tmp_path / "x.toml"
    path.write_text(text)
    try:
        assert read_toml(path, option="--config") == {}
    except InputError as error:
        assert "not valid TOML" in str(error)
