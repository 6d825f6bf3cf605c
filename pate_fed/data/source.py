"""The source of a data set: its facts, Glyph's settings, and the cache into which its arrays are written."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pate_fed.disk import read_json, sync_folder
from pate_fed.errors import InputError
from pate_fed.structure import check, setting, to_plain


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSource:
    """A data set that was found but not yet read.

    `key` is the digest of all that the arrays depend on. `save` writes the four arrays of a `Dataset` as .npy
    files into an empty folder. `max_queries` is the papers' number of public inputs that may be asked about,
    `details` what the data were made with, for a caption.
    """

    name: str
    key: str
    class_names: tuple[str, ...]
    save: Callable[[Path], None]
    max_queries: int = 9_000
    details: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GlyphSettings:
    """Settings of the embedded Glyph data set; equal settings give equal images.

    `classes` are the first so many of a fixed list; of the `public` images nine tenths, at most 9,000, may be
    asked about, and their labels are always true. Classes between the most frequent and the rarest fall
    evenly. `distortion` and `noise` are 0 for none and 1 as tuned.

    Raises:
        InputError: a value is out of its range; the error names key, value and range.
    """

    classes: int = setting(10, low=2, high=150, help="characters")
    private: int = setting(60_000, low=1, high=10_000_000, help="images that are dealt out")
    public: int = setting(10_000, low=2, high=10_000_000, help="images of the pool")
    seed: int = setting(0, low=0, high=2**63 - 1, help="of what is drawn")
    imbalance: float = setting(
        2.0,
        low=1,
        high=100,
        allowed="a number from 1 (balanced) to 100",
        help="how many times as frequent the most frequent class is as the rarest",
    )
    wrong_labels: float = setting(0.1, low=0, high=0.9, help="share of private labels that are wrong")
    distortion: float = setting(
        1.0, low=0, high=2, allowed="a number from 0 (upright) to 2", help="rotation, shear, shifts"
    )
    noise: float = setting(
        1.0, low=0, high=2, allowed="a number from 0 (clean) to 2", help="blur, noise and clutter"
    )

    def __post_init__(self) -> None:
        check(self)


# The user's cache: a folder of arrays is built once, by one process, and is either complete or not there.
#
# A folder is built under another name and renamed when all its files are on disk, so that a killed process
# leaves nothing that could be mistaken for data. Processes that start at once wait for the first (flock),
# where the file system has locks; elsewhere they may build twice, and the first to finish wins.


MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a complete folder holds: the SHA-256 of its public inputs, and every file's size in bytes."""

    pool_digest: str
    files: Mapping[str, int] = setting(low=0, unit="bytes")


def cache_root(cache_dir: Path | None = None) -> Path:
    """`cache_dir`, else `PATE_FED_CACHE`, else `$XDG_CACHE_HOME/pate_fed`, else `~/.cache/pate_fed`."""
    if cache_dir is not None:
        return Path(cache_dir)
    if own := os.environ.get("PATE_FED_CACHE"):
        return Path(own).expanduser()
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base).expanduser() / "pate_fed"
    try:
        return Path.home() / ".cache" / "pate_fed"
    except RuntimeError as error:
        raise InputError(
            "no home directory for the cache: set PATE_FED_CACHE to a writable folder"
        ) from error


def build_once(root: Path, name: str, key: str, build: Callable[[Path], str]) -> Path:
    """The complete folder `root/name/key` of a data set; `key` is a digest of what the contents depend on.

    If it is not there `build` writes into an empty one, and returns the digest of the public inputs.

    Raises:
        InputError: the cache cannot be written; whatever `build` raises.
    """
    final = root / name / key
    if is_complete(final):
        return final
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with _lock(final.parent / f"{key}.lock") as alone:
            if not is_complete(final):
                if alone:
                    _clear(final)
                _build(final, build)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"the cache {root} cannot be written ({reason}): set PATE_FED_CACHE to a writable folder with "
            "room for the data set, about 1 GB at most"
        ) from error
    return final


def read_manifest(folder: Path) -> Manifest:
    """What a folder of the cache says that it holds; InputError: its manifest cannot be read, or is none."""
    return read_json(Manifest, folder / MANIFEST, what="a manifest of the cache")


def is_complete(folder: Path) -> bool:
    """Whether the folder has a manifest, and every file that it lists in full length."""
    try:
        sizes = read_manifest(folder).files
        return all((folder / file).stat().st_size == size for file, size in sizes.items())
    except (OSError, InputError):
        return False


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[bool]:
    """Hold the lock file, which a dying process lets go of; False where the file system has no locks."""
    with path.open("ab") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:
            yield False
        else:
            yield True


def _clear(final: Path) -> None:
    # Under the lock nobody else builds: whatever carries this key is left over or damaged.
    for stale in (*final.parent.glob(f".{final.name}.*"), final):
        shutil.rmtree(stale, ignore_errors=True)


def _build(final: Path, build: Callable[[Path], str]) -> None:
    work = final.parent / f".{final.name}.{secrets.token_hex(8)}"
    work.mkdir()
    try:
        digest = build(work)
        files = sorted(path for path in work.iterdir())
        manifest = Manifest(pool_digest=digest, files={path.name: path.stat().st_size for path in files})
        (work / MANIFEST).write_text(json.dumps(to_plain(manifest), indent=1), encoding="utf-8")
        for path in (*files, work / MANIFEST):
            with path.open("rb") as file:
                os.fsync(file.fileno())
            path.chmod(0o444)
        sync_folder(work)
        _publish(work, final)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


def _publish(work: Path, final: Path) -> None:
    try:
        work.rename(final)
    except OSError:
        if not is_complete(final):
            raise
        shutil.rmtree(work)  # without a lock another process came first; its copy is as good
    else:
        sync_folder(final.parent)
