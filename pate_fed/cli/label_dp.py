"""`pate-fed label-dp`: learn from private labels of public inputs, or be advised how. Loads late."""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from pate_fed.cli.parser import Parser, add_address_options, add_command, add_option, as_typed
from pate_fed.errors import InputError, PateFedError
from pate_fed.privacy.protection import QUORUM
from pate_fed.runtime.command import nothing_spent
from pate_fed.runtime.console import only_tell
from pate_fed.runtime.signals import INTERRUPTED

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pate_fed.cli.label_records import Records
    from pate_fed.flower.host import Host
    from pate_fed.kinds.label_dp.methods import MethodSettings
    from pate_fed.kinds.label_dp.public import PublicInputs
    from pate_fed.kinds.terms import Terms
    from pate_fed.report.terminal import Progress
    from server.base import BaseStudy

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
    as_json, given = arguments.format == "json", arguments.run_dir
    begun = given is not None and Path(given, "ledger.sqlite").exists()  # it says what was spent
    try:
        study = _learn(arguments, time.perf_counter())
    except PateFedError as error:
        told = as_typed(str(error), arguments) if isinstance(error, InputError) else str(error)
        print(f"error: {told}", file=sys.stderr)
        print(nothing_spent("failed", told, as_json=as_json, begun=begun))
        return error.exit_code
    except KeyboardInterrupt:
        print(nothing_spent("aborted", "interrupted; nothing was asked", as_json=as_json, begun=begun))
        return INTERRUPTED
    return study.conclude(as_json=as_json)


def _learn(arguments: argparse.Namespace, started: float) -> BaseStudy:
    """The study, run: after every check that needs no noise."""
    from pate_fed.flower import prepare_environment

    prepare_environment()
    from pate_fed.cli.label_records import are_apart, deal_labels, load_records, simulate_hospitals
    from pate_fed.config.backend import INLINE, PROCESSES
    from pate_fed.data import pool_digest
    from pate_fed.kinds.label_dp.methods import prepare_method, run_method
    from pate_fed.kinds.label_dp.options import LabelOptions, fill_defaults
    from pate_fed.kinds.label_dp.source import LabelsInOnePlace
    from pate_fed.privacy import noise_from_seed
    from pate_fed.report.terminal import make_progress
    from pate_fed.runtime.run_dir import choose_run_dir
    from pate_fed.runtime.signals import interruptible
    from server.app import BaseCoordinator
    from server.kinds.labels import LabelSetup, LabelWork
    from server.label_study import LabelStudy
    from server.process import run_apart

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
    run_dir, resume = choose_run_dir(
        arguments.run_dir,
        options.name,
        lambda held: held.read_text(encoding="utf-8") == options.to_toml(),
    )
    progress, stop = make_progress(quiet=False), threading.Event()
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
    if arguments.hospitals is not None:
        host, policy = _address_or_policy(arguments, records)
        terms, clusters = _terms(arguments, records, settings, public)
        prepare_method(arguments.method, public(), settings)
        setup = LabelSetup(
            terms=terms,
            run_dir=run_dir,
            work=work,
            backend=PROCESSES if host is not None else arguments.backend or INLINE,
            clusters=clusters,
            truth=records.labels,
        )
        key = None if host is None or host.authority is None else host.authority.ledger_key()
        coordinator = BaseCoordinator(
            setup, stop, started=started, progress=progress, quiet=False, resume=resume, key=key
        )
        with interruptible(stop):
            if host is not None:
                run_apart(coordinator, host, run_dir, stop=stop)
            elif records.labels is not None:
                parts = deal_labels(len(records.labels), arguments.hospitals, seed=arguments.seed or 0)
                simulate_hospitals(coordinator, records.labels, parts, backend=setup.backend, policy=policy)
        return coordinator
    if records.labels is None:
        raise RuntimeError("no labels, and no hospitals that have them")
    study = LabelStudy(work, run_dir=run_dir, started=started, progress=progress)
    study.run(
        LabelsInOnePlace(
            truth=records.labels,
            num_classes=records.num_classes,
            noise=noise_from_seed(arguments.seed),
            record=study,
            study_digest=options.digest,
        )
    )
    return study


def _address_or_policy(arguments: argparse.Namespace, records: Records) -> tuple[Host | None, Path | None]:
    """Where hospitals' processes connect or, where all labels are here, those hospitals' policy."""
    if records.labels is None:
        from pate_fed.flower.host import open_host

        return open_host(arguments, quiet=False), None
    from clients.policy import Policy

    policy = None if arguments.policy is None else Path(arguments.policy)
    Policy.load(policy)  # one that is none is refused here
    return None, policy


def _terms(
    arguments: argparse.Namespace,
    records: Records,
    settings: MethodSettings,
    public: Callable[[], PublicInputs],
) -> tuple[Terms, NDArray[np.int64] | None]:
    """What hospitals are asked to agree to, and the clusters in which they count, if they do."""
    from pate_fed.data import pool_digest
    from pate_fed.kinds.label_dp.methods import clusters_to_name
    from pate_fed.kinds.make import PublicClusters, PublicPool, label_terms, spendable_by_counts

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
    from pate_fed.kinds.label_dp.exact import check_pure_epsilon
    from pate_fed.kinds.label_dp.learners import LearnSettings, TeachSettings
    from pate_fed.kinds.label_dp.methods import MethodSettings, find_clusterer
    from pate_fed.kinds.label_dp.options import check_method

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
    from pate_fed.kinds.label_dp.public import PublicInputs
    from pate_fed.runtime.signals import raise_if

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


def _init(arguments: argparse.Namespace) -> int:
    """Keys for the study of these terms; hospitals are admitted with `pate-fed study admit`."""
    from pate_fed.cli.label_records import are_apart, load_records
    from pate_fed.identity import Authority
    from pate_fed.report.terminal import make_progress

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
    print(f"authority's fingerprint (tell every hospital another way): {made.fingerprint}")
    print(f"admit each hospital with pate-fed study admit, then: the same command, --tls-dir {made.folder}")
    return 0
