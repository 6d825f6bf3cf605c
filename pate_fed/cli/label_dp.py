"""`pate-fed label-dp`: learn from private labels of public inputs, or be advised how. Loads late."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pate_fed.cli.parser import Parser, add_address_options, add_command, add_option, as_typed
from pate_fed.errors import InputError, PateFedError
from pate_fed.privacy.protection import QUORUM
from pate_fed.runtime.console import nothing_spent, only_tell
from pate_fed.runtime.signals import INTERRUPTED

if TYPE_CHECKING:
    from pate_fed.cli.label_records import Records
    from pate_fed.kinds.label_dp.methods import LabelDpResult, MethodSettings
    from pate_fed.kinds.label_dp.public import PublicInputs
    from pate_fed.report.terminal import Progress
    from server.label_hospitals import HospitalLabels, Place
    from server.label_study import LabelStudy

_KEY_DAYS = 365
_SETS = ("glyph", "fashion-mnist", "mnist", "svhn", "cifar10", "cifar100", "cinic10", "files")


def add_label_dp_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register `label-dp`."""
    made = add_command(
        commands,
        "label-dp",
        "learn where features are public and labels private",
        description="Learns from records whose features are public and whose labels are private: makes the "
        "labels private, then trains a model on them. --advise says which method suits.",
    )
    add_option(made, "--epsilon X", "budget of one record's label", required=True)
    add_option(made, "--delta X", "δ, where a method has one", default=1e-5)
    add_option(made, "--advise", "say which method suits; touches no data")
    add_option(made, "--classes N", "classes of --advise; --dataset files needs it")
    add_option(made, "--records N", "records of --advise; else take the first N")
    add_option(made, "--abundant-compute", "--advise: teachers are cheap")
    # These choices are as in pate_fed.kinds.label_dp, which takes a while to import.
    methods = (
        "how labels are made private, and learnt from: noise-cluster, randres+normal, randres+ssl, "
        "randres+denoise-ssl, randres+aug-descent, pate-fm, pate-fm+normal, pate-fm+ssl, "
        "pate-fm+denoise-ssl, pate-fm+aug-descent, alibi, lp-1st, lp-2st (default randres+denoise-ssl)"
    )
    add_option(made, "--method NAME", methods)
    _add_data_options(made)
    _add_hospital_options(made)
    add_option(made, "--device NAME", "cpu, cuda or auto (default cpu)")
    add_option(made, "--seed N", "seeded noise, which protects nobody: for simulation")
    where = "where the run's files go (default runs/NAME-TIME); one that was cut off goes on"
    add_option(made, "--run-dir DIR", where, aliases=("--out",))
    add_option(made, "--format", "of the outcome line", choices=("text", "json"), default="text")
    made.set_defaults(run=_label_dp)


def _add_data_options(made: argparse.ArgumentParser) -> None:
    add_option(made, "--dataset NAME", f"{', '.join(_SETS)} (default fashion-mnist)")
    add_option(made, "--data-dir DIR", "folder of the data files (else PATE_FED_DATA)")
    add_option(made, "--download", "let torchvision fetch the data set")
    for name in ("images", "labels", "test-images", "test-labels"):
        add_option(made, f"--{name} FILE", "--dataset files: a .npy or .npz")
    networks = "light, small-cnn, deep-cnn, resnet-18, vgg-16, wrn-28-4 (default light)"
    add_option(made, "--network NAME", networks)
    add_option(made, "--clusterer NAME", "light, pca, scan or MODULE:FUNCTION (default light)")
    add_option(made, "--clusters N", "clusters (default: what suits the method)")
    add_option(made, "--teachers N", "PATE-FM's teachers (default 250)")
    epochs = "passes over the records (default 5)"
    add_option(made, "--student-epochs N", epochs, aliases=("--epochs",), dest="epochs")


def _add_hospital_options(made: argparse.ArgumentParser) -> None:
    hospitals = "labels at N hospitals, which trust nobody"
    add_option(made, "--num-clients N", hospitals, aliases=("--hospitals",), dest="hospitals")
    add_option(made, "--quorum X", f"--num-clients: least share that must answer (default {QUORUM})")
    backend = "--num-clients: in this process (default: each answers within milliseconds) or on Ray"
    add_option(made, "--backend", backend, choices=("inline", "ray"))
    add_option(made, "--policy FILE", "--num-clients: the policy.toml that each of them has")
    apart = made.add_argument_group("hospitals with processes of their own, python -m pate_fed.client")
    add_option(apart, "--init DIR", "make this study's keys in a new folder, and stop there")
    add_address_options(apart)


def _label_dp(arguments: argparse.Namespace) -> int:
    from pate_fed.kinds.label_dp.options import fill_defaults

    if not (arguments.advise or arguments.init):
        only_tell()
        return _run(arguments)
    fill_defaults(arguments)
    return _advise(arguments) if arguments.advise else _init(arguments)


def _advise(arguments: argparse.Namespace) -> int:
    from pate_fed.kinds.label_dp.advise import advise

    found = advise(
        epsilon=arguments.epsilon,
        delta=arguments.delta,
        num_classes=10 if arguments.classes is None else arguments.classes,
        records=50_000 if arguments.records is None else arguments.records,
        abundant_compute=arguments.abundant_compute,
    )
    lines = [json.dumps(asdict(found))] if arguments.format == "json" else found.lines()
    print("\n".join(lines))
    return 0


def _run(arguments: argparse.Namespace) -> int:
    """A whole study; every end has its outcome line."""
    as_json, study, given = arguments.format == "json", None, arguments.run_dir
    begun = given is not None and Path(given, "ledger.sqlite").exists()  # it says what was spent
    try:
        study, learn = _make_study(arguments, time.perf_counter())
        study.run(learn, as_json=as_json)
        return 0
    except (PateFedError, KeyboardInterrupt) as error:
        if isinstance(error, InputError):
            error = InputError(as_typed(str(error), arguments))
        if study is not None:
            study.abort(error, as_json=as_json)
        elif isinstance(error, PateFedError):
            print(f"error: {error}", file=sys.stderr)
            print(nothing_spent("failed", str(error), as_json=as_json, begun=begun))
        else:
            print(nothing_spent("aborted", "interrupted; nothing was asked", as_json=as_json, begun=begun))
        return error.exit_code if isinstance(error, PateFedError) else INTERRUPTED
    finally:
        if study is not None:
            study.close()


def _make_study(
    arguments: argparse.Namespace, started: float
) -> tuple[LabelStudy, Callable[[], LabelDpResult]]:
    """The study and its method, after every check that needs no noise."""
    from pate_fed.cli.label_records import are_apart, load_records
    from pate_fed.data import pool_digest
    from pate_fed.kinds.label_dp.methods import run_method
    from pate_fed.kinds.label_dp.options import LabelOptions, fill_defaults
    from pate_fed.kinds.label_dp.source import LabelsInOnePlace, LabelSource
    from pate_fed.privacy import noise_from_seed
    from pate_fed.report.terminal import make_progress
    from pate_fed.runtime.run_dir import choose_run_dir
    from server.label_study import LabelStudy

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
    run_dir, _ = choose_run_dir(
        arguments.run_dir,
        options.name,
        lambda held: held.read_text(encoding="utf-8") == options.to_toml(),
    )
    progress = make_progress(quiet=False)
    hospitals = _hospitals(arguments, records, run_dir, progress)
    public = _public_inputs(arguments, records, progress)
    study = LabelStudy(
        options, run_dir=run_dir, hospitals=hospitals, test=records.test, started=started, progress=progress
    )
    source: LabelSource
    if hospitals is not None:
        hospitals.record, hospitals.waiting, source = study, study.note_waiting, hospitals
        hospitals.fault = study.note_fault
    elif records.labels is not None:
        source = LabelsInOnePlace(
            truth=records.labels,
            num_classes=records.num_classes,
            noise=noise_from_seed(arguments.seed),
            record=study,
            study_digest=options.digest,
        )

    def learn() -> LabelDpResult:
        return run_method(
            arguments.method,
            public,
            source,
            epsilon=arguments.epsilon,
            settings=settings,
            seed=arguments.seed or 0,
        )

    return study, learn


def _settings(arguments: argparse.Namespace) -> MethodSettings:
    """What the method is given, and a refusal of a method, a clusterer or an ε that there is not."""
    from pate_fed.kinds.label_dp.exact import check_pure_epsilon
    from pate_fed.kinds.label_dp.learners import LearnSettings
    from pate_fed.kinds.label_dp.methods import MethodSettings, find_clusterer
    from pate_fed.kinds.label_dp.options import check_method
    from pate_fed.kinds.label_dp.teachers import TeachSettings

    check_method(arguments.method, at_hospitals=arguments.hospitals is not None)
    check_pure_epsilon(arguments.epsilon)
    return MethodSettings(
        delta=arguments.delta,
        learn=LearnSettings(epochs=arguments.epochs),
        clusterer=find_clusterer(arguments.clusterer),
        num_clusters=arguments.clusters,
        teach=TeachSettings(num_teachers=arguments.teachers),
    )


def _public_inputs(arguments: argparse.Namespace, records: Records, progress: Progress) -> PublicInputs:
    from pate_fed.kinds.label_dp.public import PublicInputs

    @contextmanager
    def phase(name: str, total: int) -> Iterator[Callable[[], None]]:
        with progress.phase(name, total) as bar:
            yield bar.advance

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


def _init(arguments: argparse.Namespace) -> int:
    """Keys for the study of these terms; hospitals are admitted with `pate-fed study admit`."""
    from pate_fed.cli.label_records import are_apart, load_records
    from pate_fed.identity import Authority
    from pate_fed.kinds.label_dp.methods import clusters_to_name
    from pate_fed.kinds.make import PublicClusters
    from pate_fed.report.terminal import make_progress

    settings, records = _settings(arguments), load_records(arguments, apart=are_apart(arguments))
    progress = make_progress(quiet=False)
    hospitals, clusters = _hospitals(arguments, records, Path(), progress), None
    if hospitals is None:
        raise InputError(f"--init {arguments.init}: goes with --num-clients")
    if arguments.method == "noise-cluster":
        public = _public_inputs(arguments, records, progress)
        place, count = clusters_to_name(public, settings, hospitals, arguments.epsilon)
        clusters = PublicClusters(place=place, count=count, delta=settings.delta)
    terms = hospitals.make_terms(epsilon=arguments.epsilon, clusters=clusters)
    made = Authority.init(
        Path(arguments.init), address=arguments.address, terms=terms.to_json(), days=_KEY_DAYS
    )
    print(f"made {made.folder}: the study's authority and the coordinator's keys, for {_KEY_DAYS} days")
    print(f"authority's fingerprint (tell every hospital another way): {made.fingerprint}")
    print(f"admit each hospital with pate-fed study admit, then: the same command, --tls-dir {made.folder}")
    return 0


def _hospitals(
    arguments: argparse.Namespace, records: Records, run_dir: Path, progress: Progress
) -> HospitalLabels | None:
    """Those that have the labels; None where one place has all."""
    if arguments.hospitals is None:
        return None
    from pate_fed.data import pool_digest
    from pate_fed.kinds.make import PublicPool
    from server.label_hospitals import HospitalLabels

    count = len(records.images)
    if not 1 <= arguments.hospitals <= count:
        raise InputError(f"--num-clients {arguments.hospitals}: 1 to {count} (records) is meant")
    shape = records.images.shape[1:]
    pool = PublicPool(
        size=count,
        digest=pool_digest(records.images),
        num_classes=records.num_classes,
        shape=shape,
    )
    found = HospitalLabels(
        place=_place(arguments, records, run_dir),
        pool=pool,
        quorum=QUORUM if arguments.quorum is None else arguments.quorum,
        seed=arguments.seed,
        progress=progress,
    )
    if arguments.method == "noise-cluster":
        found.spendable(arguments.epsilon, arguments.delta)  # refuses, before any work, too few for a sum
    return found


def _place(arguments: argparse.Namespace, records: Records, run_dir: Path) -> Place:
    """Processes of their own or, where labels are here, hospitals with an equal part each, at random."""
    import numpy as np

    from server.label_hospitals import SeparateHospitals, SimulatedHospitals

    if records.labels is None:
        from pate_fed.flower.host import open_host

        host = None if arguments.init is not None else open_host(arguments, quiet=False)
        return SeparateHospitals(count=arguments.hospitals, host=host, run_dir=run_dir)
    from clients.policy import Policy

    policy = None if arguments.policy is None else Path(arguments.policy)
    Policy.load(policy)  # one that is none is refused here
    order = np.random.default_rng([3, arguments.seed or 0]).permutation(len(records.labels))
    return SimulatedHospitals(
        parts=tuple(np.array_split(order, arguments.hospitals)),
        labels=records.labels,
        client_app=_client_app,
        backend=arguments.backend or "inline",
        policy=policy,
    )


def _client_app() -> Any:
    from clients.app import app

    return app
