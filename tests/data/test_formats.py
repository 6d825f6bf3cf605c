"""The public data sets in their own files: idx, SVHN and CIFAR, found, checked and read."""

from __future__ import annotations

import gzip
import pickle
import struct
from collections.abc import Callable
from hashlib import md5
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate_fed.data import Dataset, formats, load_dataset
from pate_fed.errors import InputError

WriteMnist = Callable[[Path, int, int], None]


IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"


def header(*shape: int, magic: int | None = None) -> bytes:
    return struct.pack(f">I{len(shape)}I", 0x0800 | len(shape) if magic is None else magic, *shape)


def packed(content: bytes) -> bytes:
    """The same bytes at any time of day, as they name tests."""
    return gzip.compress(content, mtime=0)


@pytest.mark.parametrize("place", ["MNIST/raw", "raw", "."])
def test_a_data_set_is_found_where_it_may_lie(tmp_path: Path, write_mnist: WriteMnist, place: str) -> None:
    write_mnist(tmp_path / "data" / place, 30, 20)
    found = load_dataset("mnist", data_dir=tmp_path / "data", cache_dir=tmp_path / "cache")
    assert found.private_images.shape == (30, 28, 28, 1) and found.public_images.shape == (20, 28, 28, 1)
    assert found.private_labels.tolist() == [n % 10 for n in range(30)]
    assert (found.num_queries, found.num_classes, found.class_names[3]) == (18, 10, "3")


def test_the_folder_may_come_from_the_environment(
    tmp_path: Path, write_mnist: WriteMnist, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mnist(tmp_path / "FashionMNIST" / "raw", 12, 10)
    monkeypatch.setenv("PATE_FED_DATA", str(tmp_path))
    found = load_dataset("fashion-mnist", cache_dir=tmp_path / "cache")
    assert found.class_names[9] == "Ankle boot" and len(found.private_labels) == 12


def test_changed_files_are_read_again(tmp_path: Path, write_mnist: WriteMnist) -> None:
    for private in (30, 31):
        write_mnist(tmp_path / "data", private, 20)
        found = load_dataset("mnist", data_dir=tmp_path / "data", cache_dir=tmp_path / "cache")
        assert len(found.private_labels) == private


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        (IMAGES, b"", ["is empty"]),
        (IMAGES, packed(header(29, 28, 28) + bytes(29 * 784)), ["29 images", "30 labels"]),
        (IMAGES, packed(header(30, 14, 14) + bytes(30 * 196)), ["28×28", "14×14"]),
        (LABELS, packed(header(30) + bytes([10] * 30)), ["label 10"]),
    ],
)
def test_a_damaged_data_set_leaves_nothing_in_the_cache(
    tmp_path: Path, write_mnist: WriteMnist, file: str, content: bytes, words: list[str]
) -> None:
    data, cache = tmp_path / "data", tmp_path / "cache"
    write_mnist(data, 30, 20)
    (data / file).write_bytes(content)
    with pytest.raises(InputError) as caught:
        load_dataset("mnist", data_dir=data, cache_dir=cache)
    assert all(word in str(caught.value) for word in [file, *words]), caught.value
    assert [path for path in cache.rglob("*") if path.suffix != ".lock"] == [cache / "mnist"]


def test_missing_files_are_named_with_the_places_looked_at(tmp_path: Path, write_mnist: WriteMnist) -> None:
    write_mnist(tmp_path / "raw", 3, 3)
    (tmp_path / "raw" / LABELS).unlink()
    with pytest.raises(InputError) as caught:
        load_dataset("mnist", data_dir=tmp_path, cache_dir=tmp_path / "cache")
    for word in (
        "--data-dir",
        "--download",
        IMAGES,
        str(tmp_path / "MNIST/raw"),
        "lacks train-labels-idx1-ubyte",
    ):
        assert word in str(caught.value)
    with pytest.raises(InputError, match="no --data-dir and no PATE_FED_DATA"):
        load_dataset("mnist", cache_dir=tmp_path / "cache")
    with pytest.raises(InputError, match=r"--data-dir .*nowhere: no such folder"):
        load_dataset("mnist", data_dir=tmp_path / "nowhere", cache_dir=tmp_path / "cache")


@pytest.mark.parametrize(("name", "pool"), [("mnist", "a7a592d8"), ("fashion-mnist", "b796d6df")])
def test_the_real_files_are_read_as_they_lie(shared: Path, tmp_path: Path, name: str, pool: str) -> None:
    found = load_dataset(name, data_dir=shared / "data", cache_dir=tmp_path)
    assert found.private_images.shape == (60_000, 28, 28, 1) and found.public_images.shape == (
        10_000,
        28,
        28,
        1,
    )
    assert found.num_queries == 9_000 and found.pool_digest.startswith(pool)
    assert np.bincount(found.public_labels).sum() == 10_000


@pytest.fixture(scope="module")
def datasets() -> Any:
    """Imported late: it takes seconds, and other workers need none of it."""
    return pytest.importorskip("torchvision.datasets")


def md5_of(path: Path) -> str:
    return md5(path.read_bytes(), usedforsecurity=False).hexdigest()


@pytest.fixture
def svhn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, datasets: Any) -> Path:
    from scipy.io import savemat

    folder = tmp_path / "data" / "SVHN"
    folder.mkdir(parents=True)
    entries = {}
    for split, count in (("train", 30), ("test", 20)):
        images = np.random.RandomState(count).randint(0, 256, (32, 32, 3, count)).astype(np.uint8)
        labels = (np.arange(count) % 10 + 1).astype(np.uint8)[:, None]  # SVHN writes 10 for the digit 0
        path = folder / f"{split}_32x32.mat"
        savemat(path, {"X": images, "y": labels})
        entries[split] = ["", path.name, md5_of(path)]
    monkeypatch.setattr(datasets.SVHN, "split_list", entries)
    return folder


@pytest.fixture
def cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, datasets: Any) -> Path:
    folder = tmp_path / "data" / "cifar-10-batches-py"
    folder.mkdir(parents=True)

    def write(name: str, content: dict[str, object]) -> list[str]:
        (folder / name).write_bytes(pickle.dumps(content))
        return [name, md5_of(folder / name)]

    def batch(number: int) -> dict[str, object]:
        pixels = np.random.RandomState(number).randint(0, 256, (10, 3072)).astype(np.uint8)
        return {"data": pixels, "labels": list(range(10))}

    train = [write(f"data_batch_{number}", batch(number)) for number in range(1, 6)]
    monkeypatch.setattr(datasets.CIFAR10, "train_list", train)
    monkeypatch.setattr(datasets.CIFAR10, "test_list", [write("test_batch", batch(6))])
    name, digest = write("batches.meta", {"label_names": list("abcdefghij")})
    monkeypatch.setattr(datasets.CIFAR10, "meta", {"filename": name, "key": "label_names", "md5": digest})
    return folder


def load(name: str, folder: Path) -> Dataset:
    return load_dataset(name, data_dir=folder, cache_dir=folder.parent / "cache")


def test_svhn_is_read_with_its_zeros(svhn: Path) -> None:
    from scipy.io import loadmat

    found = load("svhn", svhn.parent)
    assert found.private_images.shape == (30, 32, 32, 3) and found.public_images.shape == (20, 32, 32, 3)
    assert found.private_labels[:11].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    raw = loadmat(svhn / "train_32x32.mat")["X"]
    assert np.array_equal(found.private_images[7], raw[..., 7])
    assert formats.FORMATS["svhn"].max_queries == 10_000


@pytest.mark.parametrize("name", ["cifar-10-batches-py", "batches"])
def test_cifar10_is_read_from_a_folder_of_any_name(cifar10: Path, name: str) -> None:
    folder = cifar10.rename(cifar10.parent / name)
    found = load("cifar10", folder)
    assert found.private_images.shape == (50, 32, 32, 3) and found.public_images.shape == (10, 32, 32, 3)
    assert found.public_labels.tolist() == list(range(10)) and found.class_names[0] == "airplane"
    with (folder / "data_batch_2").open("rb") as file:
        raw = pickle.load(file)["data"]
    # Rows are planes of red, green and blue.
    assert np.array_equal(found.private_images[13].transpose(2, 0, 1).ravel(), raw[3])


@pytest.mark.parametrize(("cut", "words"), [(0, "is empty"), (100, "damaged or another version")])
def test_damaged_files_are_named_before_they_are_opened(svhn: Path, cut: int, words: str) -> None:
    path = svhn / "test_32x32.mat"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(InputError, match=rf"test_32x32\.mat: .*{words}"):
        load("svhn", svhn.parent)


def test_a_pickle_of_unknown_origin_is_never_opened(cifar10: Path) -> None:
    mark = cifar10 / "opened"

    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (mark,))

    (cifar10 / "data_batch_3").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(InputError, match="data_batch_3"):
        load("cifar10", cifar10.parent)
    assert not mark.exists()


def test_missing_files_name_the_options(tmp_path: Path, cifar10: Path) -> None:
    (cifar10 / "test_batch").unlink()
    with pytest.raises(InputError) as caught:
        load("cifar10", cifar10.parent)
    message = str(caught.value)
    assert "lacks test_batch" in message and "--download" in message and "cifar-10-python.tar.gz" in message
    with pytest.raises(InputError, match=r"train_32x32\.mat, test_32x32\.mat .*none is there"):
        load("svhn", cifar10.parent)


def test_nothing_is_fetched_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "_download", lambda *_: pytest.fail("fetched"))
    with pytest.raises(InputError, match="--download"):
        load_dataset("svhn", cache_dir=tmp_path)


@pytest.mark.parametrize("name", ["mnist", "svhn"])
def test_a_failed_download_is_told(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, datasets: Any
) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise RuntimeError("no network here")

    monkeypatch.setattr(getattr(datasets, formats.FORMATS[name].torchvision), "download", no_network)
    with pytest.raises(InputError, match=r"could not be fetched into .*downloads \(no network here\)"):
        load_dataset(name, download=True, cache_dir=tmp_path)


def test_a_download_is_read_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_mnist: object
) -> None:
    fetched: list[Path] = []

    def fetch(_: formats.KnownFormat, root: Path) -> None:
        fetched.append(root)
        write_mnist(root / "MNIST" / "raw", 20, 10)  # type: ignore[operator]

    monkeypatch.setattr(formats, "_download", fetch)
    for _ in range(2):
        found = load_dataset("mnist", download=True, cache_dir=tmp_path)
        assert len(found.private_labels) == 20
    assert fetched == [tmp_path / "downloads"]


@pytest.fixture
def cifar100(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, datasets: Any) -> Path:
    folder = tmp_path / "data" / "cifar-100-python"
    folder.mkdir(parents=True)

    def write(name: str, content: dict[str, object]) -> list[str]:
        (folder / name).write_bytes(pickle.dumps(content))
        return [name, md5_of(folder / name)]

    def part(count: int) -> dict[str, object]:
        pixels = np.random.RandomState(count).randint(0, 256, (count, 3072)).astype(np.uint8)
        return {"data": pixels, "fine_labels": [number % 100 for number in range(count)]}

    monkeypatch.setattr(datasets.CIFAR100, "train_list", [write("train", part(120))])
    monkeypatch.setattr(datasets.CIFAR100, "test_list", [write("test", part(30))])
    name, digest = write("meta", {"fine_label_names": [str(number) for number in range(100)]})
    meta = {"filename": name, "key": "fine_label_names", "md5": digest}
    monkeypatch.setattr(datasets.CIFAR100, "meta", meta)
    return folder


def test_cifar100_is_read_with_its_fine_classes(cifar100: Path) -> None:
    found = load("cifar100", cifar100.parent)
    assert found.num_classes == 100 and found.class_names[0] == "apple" and found.class_names[99] == "worm"
    assert found.private_images.shape == (120, 32, 32, 3) and found.public_images.shape == (30, 32, 32, 3)
    assert found.private_labels[:3].tolist() == [0, 1, 2] and found.private_labels[110] == 10
    (cifar100 / "meta").write_bytes(b"another")
    with pytest.raises(InputError, match="meta: the file is damaged"):
        load_dataset("cifar100", data_dir=cifar100, cache_dir=cifar100.parent / "other")
