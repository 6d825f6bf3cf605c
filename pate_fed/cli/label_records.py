"""What `pate-fed label-dp` learns from and tests with; every part is held to the others before ε is spent."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.config.registry import find_part
from pate_fed.config.sections import Data
from pate_fed.errors import InputError
from pate_fed.kinds.label_dp.options import FILES
from pate_fed.kinds.label_dp.release import check_labels
from pate_fed.runtime.run_dir import simulated_disks
from pate_fed.structure.faults import telling_of_parties

if TYPE_CHECKING:
    from server.app import BaseCoordinator

Images = NDArray[np.uint8]
Ints = NDArray[np.int64]

_SITE = "PATE_FED_SITE"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Records:
    """Public images uint8 (n, H, W, C) with private labels int64 (n,), None where hospitals have them.

    `test` are images uint8 (m, H, W, C) and their labels int64 (m,), where there are some.

    Raises:
        InputError: parts that do not go together, or a label outside the classes.
    """

    images: Images = field(repr=False)
    labels: Ints | None = field(repr=False)
    num_classes: int
    test: tuple[Images, Ints] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.labels is not None:
            _same_count("--labels", self.labels, self.images)
            check_labels(self.labels, self.num_classes)
        if self.test is None:
            return
        images, labels = self.test
        if images.shape[1:] != self.images.shape[1:]:
            raise InputError(
                f"--test-images are {_sides(images)} pixels and channels: {_sides(self.images)} is "
                "meant, as the images that are learnt from"
            )
        _same_count("--test-labels", labels, images)
        try:
            check_labels(labels, self.num_classes)
        except InputError as error:
            raise InputError(f"--test-labels: {error}") from error

    @property
    def doubt(self) -> str | None:
        """What the owner of the labels should look at: classes without a record, which are private.

        So it stops nothing: a release that comes only where every class has records tells that it has.
        """
        if self.labels is None:
            return None
        unused = np.flatnonzero(np.bincount(self.labels, minlength=self.num_classes) == 0).tolist()
        if not unused:
            return None
        named = ", ".join(map(str, unused))
        which = f"class {named} has" if len(unused) == 1 else f"classes {named} have"
        return (
            f"{which} no records: are there {self.num_classes} classes, numbered from 0? (For you alone: the "
            "run goes on, as one that stopped here would tell by its end that every class has records)"
        )


def are_apart(arguments: argparse.Namespace) -> bool:
    """Whether hospitals have processes of their own; what does not go with that is refused.

    Raises:
        InputError: an option that would have no effect, or one that is missing.
    """
    names = ("init", "address", "tls_dir", "insecure", "insecure_anywhere")
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(arguments, name)]
    if not given:
        return False
    if arguments.hospitals is None:
        raise InputError(f"{given[0]}: give --num-clients N too, how many will connect")
    for name in ("seed", "backend", "policy", "labels"):
        if (value := getattr(arguments, name)) is not None:
            raise InputError(f"--{name} {value} with {given[0]}: hospitals that connect have their own")
    if arguments.init is not None:
        from pate_fed.runtime.addresses import split_address

        address = arguments.address
        if address is None or split_address(address, option="--address")[1] is None:
            raise InputError(
                f"--init {arguments.init}: give --address HOST:PORT too, where hospitals connect"
            )
    return True


def load_records(arguments: argparse.Namespace, *, apart: bool) -> Records:
    """The user's files or a named data set; no private labels where `apart` hospitals have them.

    Raises:
        InputError: a file that is not there or is none, or parts that do not go together.
    """
    return _of_files(arguments, apart=apart) if arguments.dataset == FILES else _named(arguments, apart=apart)


def _of_files(arguments: argparse.Namespace, *, apart: bool) -> Records:
    images = _pictures(arguments.images, "--images")
    labels = None if apart else _vector(arguments.labels, "--labels")
    if arguments.classes is None:
        raise InputError(
            "--dataset files: give --classes K too; the number of classes is released, and private labels "
            "must not tell it"
        )
    test = None
    if arguments.test_images is not None:
        test = (
            _pictures(arguments.test_images, "--test-images"),
            _vector(arguments.test_labels, "--test-labels"),
        )
    return Records(
        images=images,
        labels=labels,
        num_classes=arguments.classes,
        test=test,
    )


def _named(arguments: argparse.Namespace, *, apart: bool) -> Records:
    data = Data(dataset=arguments.dataset, data_dir=arguments.data_dir, download=arguments.download)
    found = find_part(data.dataset, "dataset")(data)
    count = len(found.private_labels) if arguments.records is None else arguments.records
    if not 1 <= count <= len(found.private_labels):
        raise InputError(f"--records {count}: 1 to {len(found.private_labels)} is meant")
    return Records(
        images=np.asarray(found.private_images)[:count],
        labels=None if apart else np.asarray(found.private_labels)[:count],
        num_classes=found.num_classes,
        test=(np.asarray(found.public_images), np.asarray(found.public_labels)),
    )


def _same_count(option: str, labels: Ints, images: Images) -> None:
    if len(labels) != len(images):
        raise InputError(f"{option}: {len(labels)} labels for {len(images)} images; one each is meant")


def _sides(images: Images) -> str:
    return "×".join(map(str, images.shape[1:]))


def _pictures(given: str | None, option: str) -> Images:
    from pate_fed.data.pictures import read_image_file

    if given is None:
        raise InputError(f"--dataset files needs {option} FILE")
    return read_image_file(Path(given))


def _vector(given: str | None, option: str) -> Ints:
    if given is None:
        raise InputError(f"--dataset files needs {option} FILE")
    try:
        found = np.load(given, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InputError(f"{option} {given}: a .npy of whole numbers is meant ({error})") from error
    if not isinstance(found, np.ndarray) or found.ndim != 1 or found.dtype.kind not in "iu" or not len(found):
        raise InputError(f"{option} {given}: a .npy of whole numbers (n,) is meant")
    return found.astype(np.int64)


# Hospitals that are played on this machine.


def deal_labels(count: int, hospitals: int, *, seed: int) -> tuple[Ints, ...]:
    """Places of each hospital's records: equal parts of so many, at random."""
    return tuple(np.array_split(np.random.default_rng([3, seed]).permutation(count), hospitals))


def simulate_hospitals(
    coordinator: BaseCoordinator,
    labels: Ints,
    parts: Sequence[Ints],
    *,
    backend: str,
    policy: Path | None = None,
) -> None:
    """Run a study with hospitals that have these `parts`, int64 (n_i,), of the labels, int64 (n,).

    Each has a disk of its own with its labels, and the `policy`; it runs the code that a real one runs.
    """
    from pate_fed.flower.engine import run_apps

    def start(server_app: Any) -> None:
        with (
            simulated_disks() as folder,
            _dealt(folder, labels, parts, policy),
            telling_of_parties(folder, coordinator.note_faults),
        ):
            run_apps(server_app, _client_app, backend=backend, num_nodes=len(parts), folder=folder)

    coordinator.run(start)


def _client_app() -> Any:
    from clients.app import app

    return app


@contextmanager
def _dealt(folder: Path, labels: Ints, parts: Sequence[Ints], policy: Path | None) -> Iterator[None]:
    """Each hospital's own folder with its own labels, where its side finds it."""
    for number, part in enumerate(parts):
        own = folder / f"hospital-{number}"
        own.mkdir(mode=0o700, exist_ok=True)
        rows = "".join(f"{index},{label}\n" for index, label in zip(part, labels[part], strict=True))
        (own / "labels.csv").write_text(f"index,label\n{rows}", encoding="utf-8")
        site: dict[str, Any] = {
            "hospital": own.name,
            "data": str(own / "labels.csv"),
            "state_dir": str(own),
            "policy": None if policy is None else str(policy.absolute()),
            "plays": number,
        }
        (own / "hospital.json").write_text(json.dumps(site), encoding="utf-8")
    before = os.environ.get(_SITE)
    os.environ[_SITE] = str(folder)
    try:
        yield
    finally:
        del os.environ[_SITE]
        if before is not None:
            os.environ[_SITE] = before
