"""`pate-fed label-dp`: learn from private labels of public inputs, or be advised how. Loads late."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pate_fed.cli.parser import Parser
from pate_fed.config.trust import QUORUM
from pate_fed.errors import InputError, PateFedError
from pate_fed.runtime.host import add_address_options

if TYPE_CHECKING:
    from pate_fed.label_dp.hospitals import Hospitals, Place
    from pate_fed.label_dp.methods import LabelDpResult
    from pate_fed.label_dp.public import PublicInputs
    from pate_fed.label_dp.records import Records
    from pate_fed.protocol.label_terms import LabelTerms

__all__ = ["add_label_dp_command"]

_KEY_DAYS = 365
_SETS = ("glyph", "fashion-mnist", "mnist", "svhn", "cifar10", "cifar100", "cinic10", "files")


def add_label_dp_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register `label-dp`."""
    made = commands.add_parser("label-dp", help="learn where features are public and labels private")
    made.add_argument("--epsilon", type=float, required=True, help="budget of one record's label")
    made.add_argument("--delta", type=float, default=1e-5, help="δ, where a method has one (default 1e-5)")
    made.add_argument("--advise", action="store_true", help="say which method suits; touches no data")
    made.add_argument(
        "--classes", type=int, metavar="K", help="classes of --advise; --dataset files needs it"
    )
    made.add_argument("--records", type=int, metavar="N", help="records of --advise; else take the first N")
    made.add_argument("--abundant-compute", action="store_true", help="--advise: teachers are cheap")
    made.add_argument(
        "--method",
        metavar="NAME",
        help="how labels are made private, and learnt from (default randres+denoise-ssl; a wrong name lists "
        "all)",
    )
    made.add_argument("--dataset", metavar="NAME", help=f"{', '.join(_SETS)} (default fashion-mnist)")
    made.add_argument("--data-dir", metavar="DIR", help="folder of the data files (else PATE_FED_DATA)")
    made.add_argument("--download", action="store_true", help="let torchvision fetch the data set")
    for name in ("images", "labels", "test-images", "test-labels"):
        made.add_argument(f"--{name}", metavar="FILE", help="--dataset files: a .npy or .npz")
    made.add_argument("--network", metavar="NAME", help="light (default) or one on images")
    made.add_argument("--clusterer", metavar="NAME", help="light (default), pca, scan or MODULE:FUNCTION")
    made.add_argument("--clusters", type=int, metavar="N", help="clusters (default: what suits the method)")
    made.add_argument("--teachers", type=int, help="PATE-FM's teachers (default 250)")
    made.add_argument("--epochs", type=int, help="passes over the records (default 5)")
    made.add_argument("--hospitals", type=int, metavar="N", help="labels at N hospitals, which trust nobody")
    made.add_argument(
        "--quorum", type=float, help=f"--hospitals: least share that must answer (default {QUORUM})"
    )
    made.add_argument(
        "--backend",
        choices=("inline", "ray"),
        help="--hospitals: in this process (default: each answers within milliseconds) or on Ray",
    )
    made.add_argument("--policy", metavar="FILE", help="--hospitals: the policy.toml that each of them has")
    apart = made.add_argument_group("hospitals with processes of their own, python -m pate_fed.client")
    apart.add_argument("--init", metavar="DIR", help="make this study's keys in a new folder, and stop there")
    add_address_options(apart)
    made.add_argument("--device", metavar="NAME", help="cpu (default), cuda or auto")
    made.add_argument("--seed", type=int, help="seeded noise, which protects nobody: for simulation")
    made.add_argument("--out", metavar="DIR", help="metrics.json, labels.npz and student.ts go there")
    made.add_argument(
        "--format", choices=("text", "json"), default="text", help="of the outcome line (default text)"
    )
    made.set_defaults(run=_label_dp)


def _label_dp(arguments: argparse.Namespace) -> int:
    from pate_fed.label_dp.options import settle_options

    try:
        settle_options(arguments)
        return _advise(arguments) if arguments.advise else _learn(arguments)
    except InputError as error:
        name, _, rest = str(error).partition("=")
        options = {"epsilon": "--epsilon", "delta": "--delta", "num_classes": "--classes"}
        options |= {"records": "--records", "num_teachers": "--teachers", "hospitals": "--hospitals"}
        raise (InputError(f"{options[name]} {rest}") if name in options else error) from error


def _advise(arguments: argparse.Namespace) -> int:
    from pate_fed.label_dp.advise import advise

    found = advise(
        epsilon=arguments.epsilon,
        delta=arguments.delta,
        num_classes=10 if arguments.classes is None else arguments.classes,
        records=50_000 if arguments.records is None else arguments.records,
        abundant_compute=arguments.abundant_compute,
    )
    lines = [json.dumps(found.to_dict())] if arguments.format == "json" else found.lines()
    print("\n".join(lines))
    return 0


def _learn(arguments: argparse.Namespace) -> int:
    from pate_fed.label_dp import RandRes
    from pate_fed.label_dp.clusters import find_clusterer
    from pate_fed.label_dp.learners import LearnSettings
    from pate_fed.label_dp.methods import MethodSettings, check_method, run_method
    from pate_fed.label_dp.public import PublicInputs
    from pate_fed.label_dp.records import load_records
    from pate_fed.label_dp.teachers import TeachSettings
    from pate_fed.privacy import noise_from_seed

    check_method(arguments.method, at_hospitals=arguments.hospitals is not None)
    clusterer = find_clusterer(arguments.clusterer)
    records = load_records(arguments, apart=_are_apart(arguments))
    if records.doubt is not None:
        print(f"warning: {records.doubt}", file=sys.stderr)
    RandRes(num_classes=records.num_classes, epsilon=arguments.epsilon)  # ε is refused before the work
    out = None if arguments.out is None else _folder(Path(arguments.out))
    noise, seed = noise_from_seed(arguments.seed), arguments.seed or 0
    hospitals = _hospitals(arguments, records, out)
    started = time.monotonic()
    public = PublicInputs(
        records.images,
        num_classes=records.num_classes,
        network=arguments.network,
        device=arguments.device,
        seed=seed,
        flip=arguments.dataset.startswith("ci"),
        say=lambda line: print(line, file=sys.stderr),
    )
    settings = MethodSettings(
        delta=arguments.delta,
        learn=LearnSettings(epochs=arguments.epochs),
        clusterer=clusterer,
        num_clusters=arguments.clusters,
        teach=TeachSettings(num_teachers=arguments.teachers),
        hospitals=hospitals,
    )
    if arguments.init is not None and hospitals is not None:
        return _init(arguments, hospitals.terms_of(arguments.method, public, settings, arguments.epsilon))
    with _told(arguments, hospitals, out):
        outcome = run_method(
            arguments.method,
            public,
            records.labels,
            epsilon=arguments.epsilon,
            noise=noise,
            settings=settings,
            seed=seed,
        )
    figures = _figures(arguments, outcome, time.monotonic() - started)
    if hospitals is not None:
        figures["hospitals"] = hospitals.to_dict()
    if out is not None:
        _write(out, public, outcome, figures)  # ε is spent: nothing that comes after may lose what it bought
    right = _test_accuracy(outcome, records)
    figures["accuracy"] = {"test": right}
    if out is not None:
        _write_figures(out, figures)
    lines = _lines(outcome, right, out, [] if hospitals is None else hospitals.lines())
    print(json.dumps(figures) if arguments.format == "json" else "\n".join(lines))
    return 0


@contextmanager
def _told(arguments: argparse.Namespace, hospitals: Hospitals | None, out: Path | None) -> Iterator[None]:
    """Where asking hospitals fails: who was left out, and what they may have spent, in metrics.json too."""
    try:
        yield
    except (PateFedError, KeyboardInterrupt) as error:
        if hospitals is None or hospitals.terms is None:
            raise
        for who, why in hospitals.left_out:
            print(f"left out: {who} ({why})", file=sys.stderr)
        facts, failed = hospitals.to_dict(), isinstance(error, PateFedError)
        if out is not None and _cost_before(out) <= facts["coordinator"]["epsilon"]:
            cost = {**facts["coordinator"], "unit": "label", "adjacency": "replace-one"}
            status = {"status": "failed" if failed else "aborted", "error": str(error) or "interrupted"}
            _write_figures(out, {**status, "method": arguments.method, "privacy": cost, "hospitals": facts})
        raise


def _cost_before(out: Path) -> float:
    """What the directory accounts for already: ε of a run that failed, all of one that released labels."""
    try:
        before = json.loads((out / "metrics.json").read_text(encoding="utf-8"))
        return math.inf if before["status"] == "success" else float(before["privacy"]["epsilon"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0


def _test_accuracy(outcome: LabelDpResult, records: Records) -> float | None:
    if records.test_images is None or records.test_labels is None:
        return None
    return float((outcome.classify(records.test_images) == records.test_labels).mean())


def _init(arguments: argparse.Namespace, terms: LabelTerms) -> int:
    """Keys for the study of these terms; hospitals are admitted with `pate-fed study admit`."""
    from pate_fed.identity import Authority

    made = Authority.init(
        Path(arguments.init), address=arguments.address, terms=terms.to_json(), days=_KEY_DAYS
    )
    print(f"made {made.folder}: the study's authority and the coordinator's keys, for {_KEY_DAYS} days")
    print(f"authority's fingerprint (tell every hospital another way): {made.fingerprint}")
    print(f"admit each hospital with pate-fed study admit, then: the same command, --tls-dir {made.folder}")
    return 0


def _hospitals(arguments: argparse.Namespace, records: Records, out: Path | None) -> Hospitals | None:
    """Those that have the labels; None where one place has all."""
    if arguments.hospitals is None:
        for name in ("quorum", "backend", "policy"):
            if (value := getattr(arguments, name)) is not None:
                raise InputError(f"--{name} {value}: goes with --hospitals")
        return None
    from pate_fed.data import pool_digest
    from pate_fed.label_dp.hospitals import Hospitals
    from pate_fed.report import make_progress

    if not 1 <= arguments.hospitals <= len(records.images):
        raise InputError(f"--hospitals {arguments.hospitals}: 1 to {len(records.images)} (records) is meant")
    found = Hospitals(
        place=_place(arguments, records.labels, out),
        pool_size=len(records.images),
        pool_digest=pool_digest(records.images),
        num_classes=records.num_classes,
        quorum=QUORUM if arguments.quorum is None else arguments.quorum,
        seed=arguments.seed,
        progress=make_progress(quiet=False),
    )
    found.check(arguments.method)
    return found


def _place(arguments: argparse.Namespace, labels: Any, out: Path | None) -> Place:
    """Processes of their own or, where labels are here, hospitals with an equal part each, at random."""
    import numpy as np

    from pate_fed.label_dp.hospitals import Separate, Simulated

    if labels is None:
        from pate_fed.runtime.host import open_host

        host = None if arguments.init is not None else open_host(arguments, quiet=False)
        return Separate(count=arguments.hospitals, host=host, folder=(out or Path()) / "flower")
    order = np.random.default_rng([3, arguments.seed or 0]).permutation(len(labels))
    return Simulated(
        parts=tuple(np.array_split(order, arguments.hospitals)),
        labels=labels,
        backend=arguments.backend or "inline",
        policy=None if arguments.policy is None else Path(arguments.policy),
    )


def _are_apart(arguments: argparse.Namespace) -> bool:
    """Whether hospitals have processes of their own; what does not go with that is refused."""
    names = ("init", "address", "tls_dir", "insecure", "insecure_anywhere")
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(arguments, name)]
    if not given:
        return False
    if arguments.hospitals is None:
        raise InputError(f"{given[0]}: give --hospitals N too, how many will connect")
    for name in ("seed", "backend", "policy", "labels"):
        if (value := getattr(arguments, name)) is not None:
            raise InputError(f"--{name} {value} with {given[0]}: hospitals that connect have their own")
    if arguments.init is not None:
        from pate_fed.flower.processes import split_address

        address = arguments.address
        if address is None or split_address(address, option="--address")[1] is None:
            raise InputError(
                f"--init {arguments.init}: give --address HOST:PORT too, where hospitals connect"
            )
    elif arguments.out is None:
        raise InputError(f"{given[0]}: give --out DIR too; the connection's files go there")
    return True


def _folder(out: Path) -> Path:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {out}: cannot be made ({error.strerror})") from error
    if not os.access(out, os.W_OK):
        raise InputError(f"--out {out}: nothing can be written there")
    return out


def _figures(arguments: argparse.Namespace, outcome: LabelDpResult, seconds: float) -> dict[str, Any]:
    labels = outcome.labels
    return {
        "status": "success",
        "method": outcome.method,
        "dataset": arguments.dataset,
        "records": len(labels.label),
        "num_classes": labels.num_classes,
        "seed": arguments.seed,
        "accuracy": {"test": None},
        "privacy": {
            "epsilon": labels.epsilon,
            "delta": labels.delta,
            "unit": "label",
            "adjacency": "replace-one",
            "mechanism": labels.how,
            "noise": labels.noise,
            "private": labels.private,
        },
        "figures": {name: value for name, value in outcome.facts.items() if not name.endswith("_measured")},
        "from_true_labels_do_not_publish": {
            name: value for name, value in outcome.facts.items() if name.endswith("_measured")
        },
        "seconds": round(seconds, 1),
    }


def _write(out: Path, public: PublicInputs, outcome: LabelDpResult, figures: dict[str, Any]) -> None:
    from pate_fed.disk import write_arrays

    write_arrays(out / "labels.npz", label=outcome.labels.label)
    _write_figures(out, figures)
    from pate_fed.learning.students.export import write_torchscript

    write_torchscript(outcome.networks, public.shape, out / "student.ts")


def _write_figures(out: Path, figures: dict[str, Any]) -> None:
    from pate_fed.disk import write_result

    write_result(out / "metrics.json", (json.dumps(figures, indent=1) + "\n").encode())


def _lines(outcome: LabelDpResult, right: float | None, out: Path | None, more: list[str]) -> list[str]:
    from pate_fed.format import epsilon_text

    def shown(value: float | int | None) -> str:
        return "none" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)

    def named(name: str) -> str:
        return name.removesuffix("_measured").replace("_", " ").replace("equation8", "(Equation 8)")

    labels = outcome.labels
    public = [f"{named(k)} {shown(v)}" for k, v in outcome.facts.items() if not k.endswith("_measured")]
    private = [f"{named(k)} {shown(v)}" for k, v in outcome.facts.items() if k.endswith("_measured")]
    lines = [f"{outcome.method}: {labels.words()}", *more]
    lines += ["; ".join(public)] if public else []
    lines += [f"from the true labels, not to be published: {'; '.join(private)}"] if private else []
    tail = f" report={out / 'metrics.json'}" if out is not None else ""
    accuracy = "null" if right is None else f"{right:.4f}"
    lines.append(
        f"SUCCESS  ε={epsilon_text(labels.epsilon)} δ={labels.delta:g} unit=label "
        f"labels={int((labels.label >= 0).sum())} accuracy={accuracy}{tail}"
    )
    return lines
