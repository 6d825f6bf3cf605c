"""Parties' folders in an object store, which has neither locks nor appends.

What one answer changes in a party's folder is one object; which files the folder then has says another, the
commit, called by its number. A commit is put only where none has its number, and an answer leaves only after
its commit: of two processes that play one party at once the first goes on, and what the other answered
is never sent.
"""

from __future__ import annotations

import io
import json
import secrets
import shutil
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath

from pate_fed.disk import write_private
from pate_fed.errors import InputError, IntegrityError, naming_extras
from pate_fed.structure import from_plain, to_plain

PROBE = "probe"


class ObjectStore:
    """Objects below one URL, through fsspec, which finds the user's credentials where its library does.

    Raises:
        InputError: fsspec, or what it needs for this kind of store, is not installed.
    """

    def __init__(self, url: str) -> None:
        with naming_extras("an object store for --shared-dir"):
            from fsspec.core import url_to_fs
        try:
            self._files, self._root = url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise InputError(f"--shared-dir {url}: {error}") from error

    def read(self, name: str) -> bytes | None:
        """An object, or None where there is none."""
        try:
            content: bytes = self._files.cat_file(f"{self._root}/{name}")
        except FileNotFoundError:
            return None
        return content

    def put(self, name: str, content: bytes) -> None:
        """Put an object."""
        self._files.pipe_file(f"{self._root}/{name}", content)

    def put_new(self, name: str, content: bytes) -> None:
        """Put an object, in one step with the look whether it is there: then a FileExistsError."""
        self._files.pipe_file(f"{self._root}/{name}", content, mode="create")

    def check(self, probe: bytes, *, first: bool = False) -> None:
        """Hold that the probe is there, put by whoever is `first`, and that nobody can put it again.

        Raises:
            InputError: this store or its library does not put objects in this way, or cannot be reached.
        """
        try:
            if first:
                self.put_new(PROBE, probe)
            held = self.read(PROBE)
        except Exception as error:  # each kind of store has its own
            raise InputError(
                f"the object store of --shared-dir cannot be used ({type(error).__name__})"
            ) from error
        try:
            self.put_new(PROBE, b"")
        except Exception:
            if held == self.read(PROBE) == probe:
                return
        raise InputError(
            "the object store of --shared-dir does not keep an object from being put a second time, on which "
            "journals rest: S3 with s3fs 2025.7 or newer does, and Google Cloud Storage with gcsfs"
        )

    def remove(self) -> None:
        """Remove all objects below the URL."""
        self._files.rm(self._root, recursive=True)


@contextmanager
def stored_disks(parent: str, probe: bytes) -> Iterator[str]:
    """The URL of a new place for parties' folders below another, with the probe in it; gone after the run.

    Raises:
        InputError: the store cannot be used, or does not hold that nobody puts an object again.
    """
    url = f"{parent.rstrip('/')}/pate-fed-{secrets.token_hex(8)}"
    store = ObjectStore(url)
    store.check(probe, first=True)
    try:
        yield url
    finally:
        try:
            store.remove()
        except Exception as error:  # of many kinds; what the run came to must not be lost for it
            print(
                f"warning: {url} is not removed ({type(error).__name__}): teachers and votes lie there",
                file=sys.stderr,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Commit:
    """The SHA-256 hex of each file of a folder, and the object that has those which are new."""

    files: Mapping[str, str]
    changes: str


class StoredFolder:
    """A process's own copy of a folder that is kept in a store: `fetch`, answer, `commit`, then send."""

    def __init__(self, store: ObjectStore, name: str, path: Path) -> None:
        self._store, self._name, self._path = store, name, path
        self._number, self._held = 0, dict[str, str]()

    def fetch(self) -> None:
        """Bring the copy to the last commit; an IntegrityError where an object is damaged or is missing."""
        while (content := self._store.read(self._commit_name(self._number + 1))) is not None:
            commit = _read_commit(content)
            for name, changed in self._changes(commit):
                path = self._path / name
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_private(path, changed, durable=False)
            for name in self._held.keys() - commit.files.keys():
                (self._path / name).unlink(missing_ok=True)
            self._number, self._held = self._number + 1, dict(commit.files)

    def commit(self) -> bool:
        """Put what has changed since; False, and the copy is dropped, where another process was first."""
        contents = {
            path.relative_to(self._path).as_posix(): path.read_bytes()
            for path in sorted(self._path.rglob("*"))
            if path.is_file()
        }
        files = {name: sha256(content).hexdigest() for name, content in contents.items()}
        if files == self._held:
            return True
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for name, content in contents.items():
                if self._held.get(name) != files[name]:
                    archive.writestr(name, content)
        name = self._commit_name(self._number + 1)
        commit = _Commit(files=files, changes=f"{name}-{secrets.token_hex(8)}")
        try:
            self._store.put(commit.changes, packed.getvalue())
            # Small, so that no library puts it in parts, which are not held against what is there.
            self._store.put_new(name, json.dumps(to_plain(commit)).encode())
        except FileExistsError:
            self.drop()
            return False
        self._number, self._held = self._number + 1, files
        return True

    def drop(self) -> None:
        """Forget the copy, and with it what was never committed."""
        shutil.rmtree(self._path, ignore_errors=True)
        self._number, self._held = 0, {}

    def _commit_name(self, number: int) -> str:
        return f"{self._name}/{number:08d}"

    def _changes(self, commit: _Commit) -> list[tuple[str, bytes]]:
        content = self._store.read(commit.changes)
        try:
            with zipfile.ZipFile(io.BytesIO(content or b"")) as archive:
                found = [(name, archive.read(name)) for name in archive.namelist()]
        except (zipfile.BadZipFile, OSError, EOFError) as error:
            raise IntegrityError("the object store: a party's folder is damaged or gone") from error
        for name, changed in found:
            path, digest = PurePosixPath(name), sha256(changed).hexdigest()
            if path.is_absolute() or ".." in path.parts or commit.files.get(name) != digest:
                raise IntegrityError("the object store: a party's folder is not as it was put")
        return found


def _read_commit(content: bytes) -> _Commit:
    where = "the object store, a commit of a party's folder"
    try:
        values = json.loads(content)
    except ValueError as error:
        raise IntegrityError(f"{where}: not JSON") from error
    return from_plain(_Commit, values, where=where, error=IntegrityError)
