"""What `pate-fed label-dp` runs: its records, each part held to the others before ε is spent, and the study.

It is imported late, as it takes a while, and after `prepare_environment`.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clients.app import app
from clients.kinds.labels import HEADER
from clients.policy import Policy
from clients.state_dir import LOCAL_SITE, SITE_VARIABLE, LocalSettings
from pate_fed.config.backend import INLINE, PROCESSES
from pate_fed.config.registry import find_part
from pate_fed.config.sections import Data
from pate_fed.data import pool_digest
from pate_fed.data.pictures import read_image_file
from pate_fed.disk import load_arrays
from pate_fed.errors import InputError
from pate_fed.flower.engine import run_apps
from pate_fed.flower.host import open_host
from pate_fed.identity import Authority
from pate_fed.kinds.label_dp.learners import LearnSettings, TeachSettings
from pate_fed.kinds.label_dp.methods import (
    MethodSettings,
    clusters_to_name,
    find_clusterer,
    prepare_method,
    run_method,
)
from pate_fed.kinds.label_dp.options import FILES, LabelOptions, check_method, fill_defaults
from pate_fed.kinds.label_dp.public import PublicInputs
from pate_fed.kinds.label_dp.randres import check_pure_epsilon
from pate_fed.kinds.label_dp.release import check_labels
from pate_fed.kinds.label_dp.source import LabelsInOnePlace
from pate_fed.kinds.make import PublicClusters, PublicPool, label_terms, spendable_by_counts
from pate_fed.kinds.terms import Terms
from pate_fed.privacy import noise_from_seed
from pate_fed.privacy.protection import QUORUM
from pate_fed.report.terminal import Progress, make_progress
from pate_fed.runtime.addresses import split_address
from pate_fed.runtime.run_dir import choose_run_dir, simulated_disks
from pate_fed.runtime.signals import interruptible, raise_if
from pate_fed.structure.faults import telling_of_parties
from server.app import BaseCoordinator
from server.base import clear_finished
from server.kinds.labels import LabelSetup, LabelWork
from server.label_study import LabelStudy
from server.process import finished_study, run_apart, tell_finished

Images = NDArray[np.uint8]
Ints = NDArray[np.int64]

_KEY_DAYS = 365


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
    """Whether hospitals have processes of their own; what does not go with that is refused."""
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
        address = arguments.address
        if address is None or split_address(address, option="--address")[1] is None:
            raise InputError(
                f"--init {arguments.init}: give --address HOST:PORT too, where hospitals connect"
            )
    return True


def load_records(arguments: argparse.Namespace, *, apart: bool) -> Records:
    """The user's files or a named data set; no private labels where `apart` hospitals have them."""
    return _of_files(arguments, apart=apart) if arguments.dataset == FILES else _named(arguments, apart=apart)


def _of_files(arguments: argparse.Namespace, *, apart: bool) -> Records:
    images = read_image_file(_file(arguments, "--images"))
    labels = None if apart else _vector(arguments, "--labels")
    if arguments.classes is None:
        raise InputError(
            "--dataset files: give --classes K too; the number of classes is released, and private labels "
            "must not tell it"
        )
    test = None
    if arguments.test_images is not None:
        test = read_image_file(_file(arguments, "--test-images")), _vector(arguments, "--test-labels")
    return Records(images=images, labels=labels, num_classes=arguments.classes, test=test)


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


def _file(arguments: argparse.Namespace, option: str) -> Path:
    given = getattr(arguments, option.removeprefix("--").replace("-", "_"))
    if given is None:
        raise InputError(f"--dataset files needs {option} FILE")
    return Path(given)


def _vector(arguments: argparse.Namespace, option: str) -> Ints:
    given = _file(arguments, option)
    try:
        found = load_arrays(given).get("")
    except (OSError, ValueError) as error:
        raise InputError(f"{option} {given}: a .npy of whole numbers is meant ({error})") from error
    if not isinstance(found, np.ndarray) or found.ndim != 1 or found.dtype.kind not in "iu" or not len(found):
        raise InputError(f"{option} {given}: a .npy of whole numbers (n,) is meant")
    return found.astype(np.int64)


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

    def start(server_app: Any) -> None:
        with (
            simulated_disks() as folder,
            _dealt(folder, labels, parts, policy),
            telling_of_parties(folder, coordinator.note_faults),
        ):
            run_apps(server_app, lambda: app, backend=backend, num_nodes=len(parts), folder=folder)

    coordinator.run(start)


@contextmanager
def _dealt(folder: Path, labels: Ints, parts: Sequence[Ints], policy: Path | None) -> Iterator[None]:
    """Each hospital's own folder with its own labels, where its side finds it."""
    for number, part in enumerate(parts):
        own = folder / f"hospital-{number}"
        own.mkdir(mode=0o700, exist_ok=True)
        rows = "".join(f"{index},{label}\n" for index, label in zip(part, labels[part], strict=True))
        (own / "labels.csv").write_text(f"{HEADER}\n{rows}", encoding="utf-8")
        LocalSettings(
            hospital=own.name,
            data=str(own / "labels.csv"),
            state_dir=own,
            policy=None if policy is None else policy.absolute(),
            plays=number,
        ).write(own / LOCAL_SITE)
    before = os.environ.get(SITE_VARIABLE)
    os.environ[SITE_VARIABLE] = str(folder)
    try:
        yield
    finally:
        del os.environ[SITE_VARIABLE]
        if before is not None:
            os.environ[SITE_VARIABLE] = before


def run_label_study(arguments: argparse.Namespace, stop: threading.Event, started: float) -> int:
    """Run the study, after every check that needs no noise; the exit code."""
    as_json = arguments.format == "json"
    fill_defaults(arguments)
    settings, records = _settings(arguments), load_records(arguments, apart=are_apart(arguments))
    if records.doubt is not None:
        print(f"warning: {records.doubt}", file=sys.stderr)
    options = LabelOptions.of(
        arguments,
        records=len(records.images),
        num_classes=records.num_classes,
        pool_digest=pool_digest(records.images),
    )
    if arguments.run_dir is not None:
        clear_finished(Path(arguments.run_dir))  # its process may have died before it could
    text = options.to_toml()

    def same(held: Path) -> bool:
        return held.read_text("utf-8") == text

    host = open_host(arguments, quiet=False) if are_apart(arguments) else None
    if host is not None and (over := finished_study(arguments.run_dir, same)) is not None:
        return tell_finished(over, host, stop=stop, as_json=as_json)
    run_dir, resume = choose_run_dir(arguments.run_dir, options.name, same)
    progress = make_progress(quiet=False)
    public = cache(partial(_public_inputs, arguments, records, progress, stop))
    work = LabelWork(
        options=options,
        method=lambda source: run_method(
            arguments.method,
            public(),
            source,
            epsilon=arguments.epsilon,
            settings=settings,
            seed=arguments.seed or 0,
        ),
        test=records.test,
    )
    if arguments.hospitals is None and records.labels is not None:
        study = LabelStudy(work, run_dir=run_dir, started=started, progress=progress)
        source = LabelsInOnePlace(
            truth=records.labels,
            num_classes=records.num_classes,
            noise=noise_from_seed(arguments.seed),
            record=study,
            study_digest=options.digest,
        )
        study.run(source)
        return study.conclude(as_json=as_json)
    policy = None if arguments.policy is None else Path(arguments.policy)
    Policy.load(policy)  # one that is none is refused before any work
    terms, clusters = _terms(arguments, records, settings, public)
    prepare_method(arguments.method, public(), settings)
    backend = PROCESSES if host is not None else arguments.backend or INLINE
    setup = LabelSetup.of(work, terms, run_dir, backend=backend, clusters=clusters, truth=records.labels)
    key = None if host is None or host.authority is None else host.authority.ledger_key()
    coordinator = BaseCoordinator(
        setup, stop, started=started, progress=progress, quiet=False, resume=resume, key=key
    )
    with interruptible(stop):
        if host is not None:
            return run_apart(coordinator, host, run_dir, stop=stop, as_json=as_json)
        elif records.labels is not None:
            order = np.random.default_rng([3, arguments.seed or 0]).permutation(len(records.labels))
            parts = np.array_split(order, arguments.hospitals)
            simulate_hospitals(coordinator, records.labels, parts, backend=backend, policy=policy)
    return coordinator.conclude(as_json=as_json)


def _terms(
    arguments: argparse.Namespace,
    records: Records,
    settings: MethodSettings,
    public: Callable[[], PublicInputs],
) -> tuple[Terms, NDArray[np.int64] | None]:
    """What hospitals are asked to agree to, and the clusters in which they count, if they do."""
    count = len(records.images)
    if not 1 <= arguments.hospitals <= count:
        raise InputError(f"--num-clients {arguments.hospitals}: 1 to {count} (records) is meant")
    pool = PublicPool(
        size=count,
        digest=pool_digest(records.images),
        num_classes=records.num_classes,
        shape=records.images.shape[1:],
    )
    asked = {
        "num_clients": arguments.hospitals,
        "quorum": QUORUM if arguments.quorum is None else arguments.quorum,
        "epsilon": arguments.epsilon,
        "seed": arguments.seed,
    }
    if arguments.method != "noise-cluster":
        return label_terms(pool, **asked), None
    spends = spendable_by_counts(pool, delta=settings.delta, **asked)  # refuses too few for a sum
    place, number = clusters_to_name(public(), settings, spends)
    clusters = PublicClusters(place=place, count=number, delta=settings.delta)
    return label_terms(pool, clusters=clusters, **asked), place


def _settings(arguments: argparse.Namespace) -> MethodSettings:
    """What the method is given, and a refusal of a method, a clusterer or an ε that there is not."""
    check_method(arguments.method, at_hospitals=arguments.hospitals is not None)
    check_pure_epsilon(arguments.epsilon)
    return MethodSettings(
        delta=arguments.delta,
        learn=LearnSettings(epochs=arguments.epochs),
        clusterer=find_clusterer(arguments.clusterer),
        num_clusters=arguments.clusters,
        teach=TeachSettings(num_teachers=arguments.teachers),
    )


def _public_inputs(
    arguments: argparse.Namespace, records: Records, progress: Progress, stop: threading.Event
) -> PublicInputs:
    @contextmanager
    def phase(name: str, total: int) -> Iterator[Callable[[], None]]:
        with progress.phase(name, total) as bar:

            def advance() -> None:
                bar.advance()
                raise_if(stop)

            yield advance

    return PublicInputs(
        records.images,
        num_classes=records.num_classes,
        network=arguments.network,
        device=arguments.device,
        seed=arguments.seed or 0,
        flip=arguments.dataset.startswith("ci"),
        log=progress.log,
        phase=phase,
    )


def make_keys(arguments: argparse.Namespace) -> int:
    """Keys for the study of these terms; hospitals are admitted with `pate-fed study admit`."""
    settings, records = _settings(arguments), load_records(arguments, apart=are_apart(arguments))
    if arguments.hospitals is None:
        raise InputError(f"--init {arguments.init}: goes with --num-clients")
    progress = make_progress(quiet=False)
    public = partial(_public_inputs, arguments, records, progress, threading.Event())
    terms, _ = _terms(arguments, records, settings, public)
    made = Authority.init(
        Path(arguments.init), address=arguments.address, terms=terms.to_json(), days=_KEY_DAYS
    )
    print(f"made {made.folder}: the study's authority and the coordinator's keys, for {_KEY_DAYS} days")
    print(f"authority's fingerprint (tell every hospital another way): {made.words}")
    print(f"admit each hospital with pate-fed study admit, then: the same command, --tls-dir {made.folder}")
    return 0
