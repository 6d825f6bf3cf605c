"""Parties' folders in an object store: one goes on where another ended, and of two at once one alone does.

In memory; with `-m slow` in an S3 on this machine as well, where its library is installed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from s3_server import BUCKET, s3_server, skip_without_s3

from pate_fed.errors import InputError, IntegrityError
from pate_fed.runtime.object_store import ObjectStore, StoredFolder, stored_disks

New = Callable[[], StoredFolder]


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The URL of an empty bucket."""
    skip_without_s3()
    with s3_server() as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield f"s3://{BUCKET}"


@pytest.fixture(params=["memory", pytest.param("s3", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest) -> str:
    """The URL of a store in which nothing is yet."""
    parent = "memory:/" if request.param == "memory" else request.getfixturevalue("s3")
    return f"{parent}/{uuid4().hex}"


@pytest.fixture
def store(place: str) -> ObjectStore:
    return ObjectStore(place)


@pytest.fixture
def new(store: ObjectStore, tmp_path: Path) -> New:
    """Each time another process's copy of the same folder, in folders 0, 1, 2..."""
    made: list[StoredFolder] = []

    def make() -> StoredFolder:
        path = tmp_path / str(len(made)) / "party-0"
        path.mkdir(parents=True)
        made.append(StoredFolder(store, "party-0", path))
        return made[-1]

    return make


def _files(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_another_process_goes_on_with_what_was_committed(new: New, tmp_path: Path) -> None:
    first, path = new(), tmp_path / "0" / "party-0"
    first.fetch()
    (path / "answered").mkdir()
    (path / "answered" / "one").write_text("1")
    (path / "terms.json").write_text("terms")
    assert first.commit()
    (path / "answered" / "two").write_text("2")
    (path / "terms.json").unlink()
    assert first.commit() and first.commit()  # nothing new: nothing is put
    (path / "answered" / "three").write_text("was never sent")
    second = new()
    second.fetch()
    assert _files(tmp_path / "1" / "party-0") == {"answered/one": "1", "answered/two": "2"}
    assert (tmp_path / "1" / "party-0" / "answered" / "one").stat().st_mode & 0o777 == 0o600


def test_of_two_processes_at_once_one_goes_on_and_the_others_state_is_dropped(
    new: New, tmp_path: Path
) -> None:
    """As where a node that was taken for dead comes back: its answer must not be sent."""
    copies = [new(), new()]
    for number, copy in enumerate(copies):
        copy.fetch()
        (tmp_path / str(number) / "party-0" / "claim").write_text(f"by {number}")
    assert copies[1].commit()
    assert not copies[0].commit()
    copies[0].fetch()
    assert _files(tmp_path / "0" / "party-0") == {"claim": "by 1"}
    assert copies[0].commit()


def test_what_neighbours_left_stays_until_it_is_committed(new: New, tmp_path: Path) -> None:
    copy, path = new(), tmp_path / "0" / "party-0"
    (path / "teacher-0.pt").write_text("by a neighbour's process")
    copy.fetch()
    assert _files(path) == {"teacher-0.pt": "by a neighbour's process"} and copy.commit()


@pytest.mark.parametrize("name", ["00000001", "changes"])
def test_what_is_not_as_it_was_put_is_told(
    name: str, new: New, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda _: "changes")
    copy = new()
    (tmp_path / "0" / "party-0" / "claim").write_text("1")
    assert copy.commit()
    store.put("party-0/00000001" + ("" if name == "00000001" else "-changes"), b"other")
    with pytest.raises(IntegrityError, match="the object store"):
        new().fetch()


def test_a_store_that_lets_an_object_be_put_again_is_refused(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.check(b"probe", first=True)
    store.check(b"probe")
    with pytest.raises(InputError, match="a second time"):
        store.check(b"of another run")
    monkeypatch.setattr(ObjectStore, "put_new", ObjectStore.put)
    with pytest.raises(InputError, match="a second time"):
        store.check(b"probe")
    store.remove()
    assert store.read("probe") is None


def test_a_runs_objects_are_removed_after_it_or_it_says_that_they_are_not(
    place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with stored_disks(f"{place}/", b"probe") as url:
        assert url.startswith(f"{place}/pate-fed-") and ObjectStore(url).read("probe") == b"probe"
    assert ObjectStore(url).read("probe") is None and not capsys.readouterr().err
    with stored_disks(f"{place}/", b"probe") as url:
        monkeypatch.setattr(ObjectStore, "remove", lambda _: 1 / 0)
    assert capsys.readouterr().err.startswith(f"warning: {url} is not removed (ZeroDivisionError)")


def test_a_store_without_its_library_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(InputError, match=r"--shared-dir gs://bucket: .*gcsfs"):
        ObjectStore("gs://bucket")
