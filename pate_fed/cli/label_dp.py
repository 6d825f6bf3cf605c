"""`pate-fed label-dp`: learn from private labels of public inputs, or be advised how. Loads late."""

from __future__ import annotations

import argparse
import json
import threading
from dataclasses import asdict

from pate_fed.cli.parser import Parser, add_address_options, add_command, add_option, as_typed
from pate_fed.errors import InputError
from pate_fed.flower import prepare_environment
from pate_fed.privacy.protection import QUORUM
from pate_fed.runtime.console import only_tell, run_study_command

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
    networks = "light, small-cnn, deep-cnn, resnet-18, wrn-28-4 (default light)"
    add_option(made, "--network NAME", networks)
    add_option(made, "--clusterer NAME", "light, scan or MODULE:FUNCTION (default light)")
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

    if arguments.advise:
        fill_defaults(arguments)
        return _advise(arguments)
    prepare_environment()
    if not arguments.init:
        only_tell()
        return run_study_command(lambda: arguments, _run, resumes=True)
    from pate_fed.cli.label_run import make_keys

    fill_defaults(arguments)
    return make_keys(arguments)


def _advise(arguments: argparse.Namespace) -> int:
    from pate_fed.kinds.label_dp.options import advise

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


def _run(arguments: argparse.Namespace, stop: threading.Event, started: float) -> int:
    from pate_fed.cli.label_run import run_label_study

    try:
        return run_label_study(arguments, stop, started)
    except InputError as error:
        raise InputError(as_typed(str(error), arguments)) from error
