"""Durable and atomic writes: what was written is on the disk, under its name, or not there at all."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import platform
import re
import stat
import sys
import tempfile
import time
import tomllib
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeVar

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError, IntegrityError, PateFedError, naming_refusal
from pate_fed.structure import from_plain

T = TypeVar("T")

MOST_READ = 64 * 2**20
"""Bytes that a file of settings, keys or terms may have."""

MOST_TABLE = 2 * 2**30
"""Bytes that a file of records, a log or a model may have."""

PUT_BACK = "put its folder back as it was, and the same command goes on"
_MOST_TOML = 4 * 2**20
_GROWS, _GROWS_TO = 100, 2**28  # times its size, or bytes, to which an archive may unpack
# TOML's reader takes quadratic time for a dotted key of many parts, which are looked for outside of texts and
# comments; these are found one after the other, each up to its end or the line's, in linear time.
_TEXTS = re.compile(
    r'"""(?:[^\\]|\\.)*?(?:"{3,5}|\\?\Z)'
    r"|'''.*?(?:'{3,5}|\Z)"
    r'|"(?:[^"\\\n]|\\[^\n])*+"?'
    r"|'[^'\n]*+'?"
    r"|#[^\n]*+",
    re.DOTALL,
)
_DEEP_KEY = re.compile(r"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){32}")

_REFUSED = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE})
_LOST = frozenset({errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR})


def is_of_disk(error: OSError, folder: Path | None) -> bool:
    """Whether a disk is full or read-only, or a file in `folder` is gone or no longer this user's."""
    if folder is None or error.filename is None or error.errno not in _LOST:
        return error.errno in _REFUSED
    return Path(os.fsdecode(error.filename)).absolute().is_relative_to(folder.absolute())


def check_writable_files(folder: Path) -> None:
    """Make sure that this user may write a folder and all in it; InputError names what is read-only."""
    for path in (folder, *folder.iterdir()):
        if not os.access(path, os.W_OK):
            if os.statvfs(path).f_flag & os.ST_RDONLY:
                raise InputError(f"{path}: its disk is read-only; the same command goes on once it is not")
            raise InputError(
                f"{path}: cannot be written by this user; give it to this user, or run as the one whose it is"
            )


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file to be read: a FIFO would be waited for without an end, and a device has none.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    file = open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file")
    return file


def read_file(path: Path, *, most: int | None = MOST_READ) -> bytes:
    """The content of a regular file of at most so many bytes, None: of any length.

    Raises:
        OSError: it cannot be read, is no regular file, or is larger.
    """
    with open_regular(path) as file:
        if most is None:
            return file.read()
        content = bytearray()
        if os.fstat(file.fileno()).st_size <= most:
            # In pieces: to ask for `most` at once takes memory for so much, however short the file.
            while len(content) <= most and (piece := file.read(2**16)):
                content += piece
            if len(content) <= most:
                return bytes(content)
    raise _too_large(most)


def _too_large(most: int) -> OSError:
    return OSError(errno.EFBIG, f"larger than {most // 2**20} MiB")


def load_arrays(source: Path | BinaryIO, *, most: int | None = MOST_TABLE) -> dict[str, NDArray[Any]]:
    """The arrays of a .npz file by name, or of a .npy file the one, named ""; pickled objects are refused.

    What a header claims is held against what there is before anything is unpacked; `most` as in `read_file`.

    Raises:
        OSError: it cannot be read, is no regular file, or is larger.
        ValueError: it is damaged, no such file, or unpacks to far more than it holds.
    """
    if isinstance(source, Path):
        with open_regular(source) as file:
            return load_arrays(file, most=most)
    size = source.seek(0, os.SEEK_END)
    if most is not None and size > most:
        raise _too_large(most)
    source.seek(0)
    packed = source.read(2) == b"PK"
    source.seek(0)
    try:
        if not packed:
            _check_claim(source, size)
            source.seek(0)
            return {"": np.load(source, allow_pickle=False)}
        with zipfile.ZipFile(source) as archive:
            entries = archive.infolist()
            if most is not None and not grows_little(entries, size):
                raise ValueError("unpacks to far more than it holds; save it with numpy.savez, unpacked")
            for entry in entries:
                if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise ValueError("packed in a way that numpy never does")
                with archive.open(entry) as part:
                    _check_claim(part, entry.file_size)
        source.seek(0)
        with np.load(source, allow_pickle=False) as held:
            return {name: held[name] for name in held}
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(str(error) or "cut short") from error


def grows_little(entries: Iterable[zipfile.ZipInfo], size: int) -> bool:
    """Whether an archive of so many bytes says that it unpacks to a hundredfold at most, or to 256 MiB."""
    return sum(entry.file_size for entry in entries) <= max(_GROWS_TO, _GROWS * size)


def _check_claim(part: IO[bytes], size: int) -> None:
    """Refuse a .npy header that claims more numbers than the rest of so many bytes can hold."""
    read = np.lib.format
    version = read.read_magic(part)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"of version {version} of the format")
    header = read.read_array_header_1_0 if version == (1, 0) else read.read_array_header_2_0
    try:
        shape, _, kind = header(part)
    except Exception as error:  # it is read as Python is, and fails in as many ways
        raise ValueError(f"its header is damaged ({type(error).__name__})") from error
    if not all(type(length) is int and 0 <= length < 2**62 for length in shape):
        raise ValueError("its header has a length that no array has")
    if math.prod(shape) * max(1, kind.itemsize) > size:
        raise ValueError(f"its header claims {math.prod(shape):,} numbers, more than the file holds")


class DamagedFileError(IntegrityError):
    """A file is not what this side has written: whoever asks or answers did as it should."""


@contextmanager
def as_written(path: Path) -> Iterator[None]:
    """Name the file or folder of which something does not fit inside; DamagedFileError."""
    try:
        yield
    except (PateFedError, ValueError) as error:
        raise DamagedFileError(f"{path}: damaged ({error}); {PUT_BACK}") from error


def read_json(
    kind: type[T], path: Path, *, what: str, error: type[PateFedError] = InputError, aside: bool = False
) -> T:
    """The dataclass in a JSON file, each value held to its declaration; `what` says which file is meant.

    With `aside` keys that the dataclass does not know are left alone. A key that is there twice is refused:
    some readers take its first value, some its last.

    Raises:
        PateFedError: of the class `error`: the file cannot be read, or is not `what`. The message names it.
    """
    try:
        values = json.loads(read_file(path).decode(), object_pairs_hook=_each_once)
        return from_plain(kind, values, where="", aside=aside)
    except OSError as found:
        raise error(f"{path}: cannot be read ({found.strerror})") from found
    except InputError as found:
        raise error(f"{path}: not {what} ({found})") from found
    except (ValueError, RecursionError) as found:
        raise error(f"{path}: not {what} (not JSON)") from found


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, each key of it there once."""
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise InputError(f"the key {key!r} is there twice")
        values[key] = value
    return values


def read_toml(path: Path, *, option: str) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises:
        InputError: the file cannot be read or is not TOML; the error names the option, the file, the place.
    """
    try:
        text = read_file(path, most=_MOST_TOML).decode("utf-8-sig").replace("\r\n", "\n")
        if _DEEP_KEY.search(_TEXTS.sub("text", text)):
            raise ValueError("a key of more than 32 parts")
        return tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise InputError(f"{option} {path}: cannot be read ({reason})") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{option} {path}: not valid TOML: {error}") from error


def write_private(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Write a file for this user alone (mode 0600); on the disk when this returns, whole or not at all.

    Meant for state with one writer at a time: a process that was killed leaves NAME.part, which the next
    one takes, so that no old copy of a key or a vote stays behind under another name.
    Not `durable` leaves the disk to the system: for a simulation, whose folder no power cut outlives.

    Raises:
        OSError: it cannot be written.
    """
    part = path.with_name(path.name + ".part")
    handle = os.open(part, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    part.replace(path)
    if durable:
        sync_folder(path.parent)


def write_arrays(path: Path, **arrays: NDArray[Any]) -> None:
    """Write arrays as .npz, as `write_private` does; OSError: they cannot be written."""
    content = io.BytesIO()
    # Not allow_pickle=False: our oldest numpy would take it for an array's name.
    np.savez(content, **arrays)  # type: ignore[arg-type]
    write_private(path, content.getvalue())


def write_result(path: Path, content: bytes, *, public: bool = False, durable: bool = True) -> None:
    """Write what a user asked for, whole or not at all, also where two processes do so at once.

    Its mode is 0600, or 0644 where it is `public`. Not `durable` leaves the disk to the system.

    Raises:
        InputError: the folder or the file cannot be written.
    """
    with naming_refusal(f"{path}: cannot be written"):
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                if public:
                    os.fchmod(handle, 0o644)
                if durable:
                    os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        if durable:
            sync_folder(path.parent)


def check_file_path(path: Path, *, option: str) -> None:
    """Make sure that a file can be written there, before the work for it is done.

    Raises:
        InputError: it cannot; the error names the `option`.
    """
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise InputError(f"{option} {path}: no file can be written there; give a path such as sheet.png")


def check_there(path: Path, *, option: str) -> None:
    """Make sure that a file or folder is there, and that this user may come to it.

    Raises:
        InputError: it is not, or a folder above it is closed; the error names the `option`.
    """
    with naming_refusal(f"{option} {path}: cannot be read"):
        try:
            path.stat()
        except FileNotFoundError as error:
            raise InputError(f"{option} {path}: there is no such file or folder") from error


def sync_folder(path: Path) -> None:
    """Have the system keep the names in a folder: a new file without its name is lost in a power cut."""
    if sys.platform == "win32":  # opens no folder
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def try_lock(handle: int, path: Path) -> bool:
    """Take the system's exclusive lock on an open file, gone with this process; whether it was free.

    Raises:
        InputError: the file system of `path` has no locks.
    """
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK, errno.EDEADLK):
            return False
        raise InputError(
            f"{path}: cannot be locked ({error.strerror}), so two processes could use it at once; put it on "
            "a file system that has locks"
        ) from error
    return True


def take_lock(path: Path, *, of: Path) -> tuple[int, bool]:
    """Open the file `path` and try its lock, which is `of` another: the open file, and whether it was free.

    Raises:
        OSError: the file cannot be opened.
        InputError: the file system has no locks.
    """
    while True:
        handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        with ExitStack() as failing:
            failing.callback(os.close, handle)
            free = try_lock(handle, of)
            if not free or _is_at(handle, path):  # else its last holder took it away in between
                failing.pop_all()
                return handle, free


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except FileNotFoundError:
        return False


@contextmanager
def hold(folder: Path, *, what: str, leave: bool = True) -> Iterator[None]:
    """Hold a folder alone, at most as long as this process lives: a lock on its file `lock`, which says who.

    `what` names it in errors: an option, or what lies in it. Without `leave` the file goes afterwards. A
    process that has the folder already goes on.

    Raises:
        InputError: another process holds it, or it cannot be written or locked.
    """
    path, mine = folder / "lock", f"process {os.getpid()} on {platform.node()}, "
    with naming_refusal(f"{what} {folder}: cannot be written"):
        handle, free = take_lock(path, of=path)
    with open(handle, "r+", encoding="utf-8") as lock:
        if not free:
            if (who := lock.read(200).strip() or "another process").startswith(mine):
                yield
                return
            raise InputError(f"{what} {folder}: {who} uses it; one at a time is meant")
        lock.truncate(0)
        lock.write(f"{mine}since {time.strftime('%Y-%m-%d %H:%M:%S')},\n")
        lock.flush()
        try:
            yield
        finally:
            if not leave:
                path.unlink(missing_ok=True)
