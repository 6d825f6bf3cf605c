"""`pate-fed label-dp`: learn from private labels of public inputs, or be advised how. Loads late."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pate_fed.arguments import Parser
from pate_fed.errors import InputError
from pate_fed.hosting import add_address_options

if TYPE_CHECKING:
    from pate_fed.label_dp.hospitals import Hospitals, Place
    from pate_fed.label_dp.methods import Outcome
    from pate_fed.label_dp.public import PublicInputs
    from pate_fed.label_dp.terms import LabelTerms

__all__ = ["add_label_dp_command"]

_KEY_DAYS = 365
_SETS = ("glyph", "fashion-mnist", "mnist", "svhn", "cifar10", "cifar100", "cinic10", "files")


def add_label_dp_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register `label-dp`."""
    made = commands.add_parser("label-dp", help="learn where features are public and labels private")
    made.add_argument("--epsilon", type=float, required=True, help="budget of one record's label")
    made.add_argument("--delta", type=float, default=1e-5, help="δ, where a method has one (default 1e-5)")
    made.add_argument("--advise", action="store_true", help="say which method suits; touches no data")
    made.add_argument("--classes", type=int, metavar="K", help="classes of --advise or of --dataset files")
    made.add_argument("--records", type=int, metavar="N", help="records of --advise; else take the first N")
    made.add_argument("--abundant-compute", action="store_true", help="--advise: teachers are cheap")
    made.add_argument(
        "--method",
        default="randres+denoise-ssl",
        metavar="NAME",
        help="how labels are made private, and learnt from (default randres+denoise-ssl; a wrong name lists "
        "all)",
    )
    made.add_argument("--dataset", default="fashion-mnist", metavar="NAME", help=", ".join(_SETS))
    made.add_argument("--data-dir", metavar="DIR", help="folder of the data files (else PATE_FED_DATA)")
    made.add_argument("--download", action="store_true", help="let torchvision fetch the data set")
    for name in ("images", "labels", "test-images", "test-labels"):
        made.add_argument(f"--{name}", metavar="FILE", help="--dataset files: a .npy or .npz")
    made.add_argument("--network", default="light", metavar="NAME", help="light (default) or one on images")
    made.add_argument(
        "--clusterer", default="light", metavar="NAME", help="light, pca, scan or MODULE:FUNCTION"
    )
    made.add_argument("--clusters", type=int, metavar="N", help="clusters (default: what suits the method)")
    made.add_argument("--teachers", type=int, default=250, help="PATE-FM's teachers (default 250)")
    made.add_argument("--epochs", type=int, default=5, help="passes over the records (default 5)")
    made.add_argument("--hospitals", type=int, metavar="N", help="labels at N hospitals, which trust nobody")
    made.add_argument("--quorum", type=float, help="--hospitals: least share that must answer (default 0.8)")
    made.add_argument(
        "--backend",
        choices=("inline", "ray"),
        help="--hospitals: in this process (default: each answers within milliseconds) or on Ray",
    )
    made.add_argument("--policy", metavar="FILE", help="--hospitals: the policy.toml that each of them has")
    apart = made.add_argument_group("hospitals with processes of their own, python -m pate_fed.client")
    apart.add_argument("--init", metavar="DIR", help="make this study's keys in a new folder, and stop there")
    add_address_options(apart)
    made.add_argument("--device", default="cpu", metavar="NAME", help="cpu (default), cuda or auto")
    made.add_argument("--seed", type=int, help="seeded noise, which protects nobody: for simulation")
    made.add_argument("--out", metavar="DIR", help="metrics.json, labels.npz and student.ts go there")
    made.add_argument("--format", choices=("text", "json"), default="text")
    made.set_defaults(run=_label_dp)


def _label_dp(arguments: argparse.Namespace) -> int:
    try:
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

    from pate_fed.label_dp import RandRes, check_every_class
    from pate_fed.label_dp.clusters import find_clusterer
    from pate_fed.label_dp.learners import LearnSettings
    from pate_fed.label_dp.methods import MethodSettings, check_method, run_method
    from pate_fed.label_dp.public import PublicInputs
    from pate_fed.label_dp.teachers import TeachSettings
    from pate_fed.privacy import noise_from_seed

    check_method(arguments.method, at_hospitals=arguments.hospitals is not None)
    apart = _are_apart(arguments)
    images, labels, tests, classes = _data(arguments, apart=apart)
    if labels is not None:
        check_every_class(labels, classes)
    RandRes(num_classes=classes, epsilon=arguments.epsilon)  # ε is refused before the work, not after
    out = None if arguments.out is None else _folder(Path(arguments.out))
    noise, seed = noise_from_seed(arguments.seed), arguments.seed or 0
    hospitals = _hospitals(arguments, images, labels, classes, out)
    started = time.monotonic()
    public = PublicInputs(
        images,
        num_classes=classes,
        network=arguments.network,
        device=arguments.device,
        seed=seed,
        flip=arguments.dataset.startswith("ci"),
        say=lambda line: print(line, file=sys.stderr),
    )
    settings = MethodSettings(
        delta=arguments.delta,
        learn=LearnSettings(epochs=arguments.epochs),
        clusterer=find_clusterer(arguments.clusterer),
        num_clusters=arguments.clusters,
        teach=TeachSettings(num_teachers=arguments.teachers),
        hospitals=hospitals,
    )
    if arguments.init is not None and hospitals is not None:
        return _init(arguments, hospitals.terms_of(arguments.method, public, settings, arguments.epsilon))
    outcome = run_method(
        arguments.method,
        public,
        labels,
        epsilon=arguments.epsilon,
        noise=noise,
        settings=settings,
        seed=seed,
    )
    right = None if tests is None else float((outcome.classify(tests[0]) == tests[1]).mean())
    figures = _figures(arguments, outcome, right, time.monotonic() - started)
    if hospitals is not None:
        figures["hospitals"] = hospitals.to_dict()
    if out is not None:
        _write(out, public, outcome, figures)
    lines = _lines(outcome, right, out, [] if hospitals is None else hospitals.lines())
    print(json.dumps(figures) if arguments.format == "json" else "\n".join(lines))
    return 0


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


def _hospitals(
    arguments: argparse.Namespace, images: Any, labels: Any, classes: int, out: Path | None
) -> Hospitals | None:
    """Those that have the labels; None where one place has all."""
    if arguments.hospitals is None:
        for name in ("quorum", "backend", "policy"):
            if (value := getattr(arguments, name)) is not None:
                raise InputError(f"--{name} {value}: goes with --hospitals")
        return None
    from pate_fed.data import pool_digest
    from pate_fed.label_dp.hospitals import Hospitals
    from pate_fed.report import make_progress

    if not 1 <= arguments.hospitals <= len(images):
        raise InputError(f"--hospitals {arguments.hospitals}: 1 to {len(images)} (records) is meant")
    found = Hospitals(
        place=_place(arguments, labels, out),
        pool_size=len(images),
        pool_digest=pool_digest(images),
        num_classes=classes,
        quorum=0.8 if arguments.quorum is None else arguments.quorum,
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
        from pate_fed.hosting import open_host

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


def _data(arguments: argparse.Namespace, *, apart: bool) -> tuple[Any, Any, tuple[Any, Any] | None, int]:
    """Images, private labels (None where hospitals have them), a test part if any, the number of classes."""
    import numpy as np

    if arguments.dataset == "files":
        images = _pictures(arguments.images, "--images")
        labels = None if apart else _vector(arguments.labels, "--labels")
        if labels is not None and len(images) != len(labels):
            raise InputError(f"--labels {arguments.labels}: {len(labels)} labels for {len(images)} images")
        classes = arguments.classes
        if classes is None:
            if labels is None:
                raise InputError("give --classes K: no labels are here that would tell how many there are")
            classes = int(labels.max()) + 1
        tests = None
        if arguments.test_images is not None:
            tests = (
                _pictures(arguments.test_images, "--test-images"),
                _vector(arguments.test_labels, "--test-labels"),
            )
        return images, labels, tests, classes
    from pate_fed.data import load_dataset

    found = load_dataset(
        arguments.dataset,
        data_dir=None if arguments.data_dir is None else Path(arguments.data_dir),
        download=arguments.download,
    )
    count = len(found.private_labels) if arguments.records is None else arguments.records
    if not 1 <= count <= len(found.private_labels):
        raise InputError(f"--records {count}: 1 to {len(found.private_labels)} is meant")
    images, labels = np.asarray(found.private_images)[:count], np.asarray(found.private_labels)[:count]
    tests = np.asarray(found.public_images), found.public_labels
    return images, None if apart else labels, tests, found.num_classes


def _pictures(given: str | None, option: str) -> Any:
    from pate_fed.predict import read_pictures

    if given is None:
        raise InputError(f"--dataset files needs {option} FILE")
    return read_pictures(Path(given))


def _vector(given: str | None, option: str) -> Any:
    import numpy as np

    if given is None:
        raise InputError(f"--dataset files needs {option} FILE")
    try:
        found = np.load(given, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InputError(f"{option} {given}: a .npy of whole numbers is meant ({error})") from error
    if not isinstance(found, np.ndarray) or found.ndim != 1 or found.dtype.kind not in "iu" or not len(found):
        raise InputError(f"{option} {given}: a .npy of whole numbers (n,) is meant")
    return found.astype(np.int64)


def _folder(out: Path) -> Path:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {out}: cannot be made ({error.strerror})") from error
    if not os.access(out, os.W_OK):
        raise InputError(f"--out {out}: nothing can be written there")
    return out


def _figures(
    arguments: argparse.Namespace, outcome: Outcome, right: float | None, seconds: float
) -> dict[str, Any]:
    labels = outcome.labels
    return {
        "status": "success",
        "method": outcome.method,
        "dataset": arguments.dataset,
        "records": len(labels.label),
        "num_classes": labels.num_classes,
        "seed": arguments.seed,
        "accuracy": {"test": right},
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


def _write(out: Path, public: PublicInputs, outcome: Outcome, figures: dict[str, Any]) -> None:
    import numpy as np

    np.savez(out / "labels.npz", label=outcome.labels.label)
    if outcome.networks:
        from pate_fed.learning.export import write_torchscript

        write_torchscript(outcome.networks, public.shape, out / "student.ts")
    (out / "metrics.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def _lines(outcome: Outcome, right: float | None, out: Path | None, more: list[str]) -> list[str]:
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
        f"SUCCESS  ε={labels.epsilon:.4g} δ={labels.delta:g} unit=label "
        f"labels={int((labels.label >= 0).sum())} accuracy={accuracy}{tail}"
    )
    return lines
