"""Options of `pate-fed label-dp`, the methods' names, which go together, and which suits. Loads no torch.

An option that would have no effect is refused, not ignored.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

from pate_fed.errors import InputError
from pate_fed.format import delta_text, epsilon_text
from pate_fed.kinds.label_dp.noise_cluster import NoiseCluster
from pate_fed.kinds.label_dp.pate_fm import plan_pate_fm
from pate_fed.kinds.label_dp.randres import RandRes
from pate_fed.privacy.checks import check_count
from pate_fed.structure import nearest

METHODS = (
    "noise-cluster",
    "randres+normal",
    "randres+ssl",
    "randres+denoise-ssl",
    "randres+aug-descent",
    "pate-fm",
    "pate-fm+normal",
    "pate-fm+ssl",
    "pate-fm+denoise-ssl",
    "pate-fm+aug-descent",
    "alibi",
    "lp-1st",
    "lp-2st",
)
FILES = "files"  # the data set that a user has
_DEFAULTS = {
    "method": "randres+denoise-ssl",
    "dataset": "fashion-mnist",
    "network": "light",
    "clusterer": "light",
    "teachers": 250,
    "epochs": 5,
    "device": "cpu",
}
_OF_FILES = ("images", "labels", "test_images", "test_labels")
_OF_LEARNING = (
    *_DEFAULTS,
    *_OF_FILES,
    *("data_dir", "download", "clusters", "hospitals", "quorum", "backend", "policy", "init", "address"),
    *("tls_dir", "insecure", "insecure_anywhere", "seed", "run_dir"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelOptions:
    """The resolved options of one study, and what its records say in public: `study.toml` of a run directory.

    None is an option that the method has no use for, or that was left to it.
    """

    method: str
    epsilon: float
    delta: float
    dataset: str
    records: int
    num_classes: int
    pool_digest: str
    network: str
    clusterer: str
    clusters: int | None
    teachers: int
    epochs: int
    hospitals: int | None
    quorum: float | None
    device: str
    seed: int | None

    @classmethod
    def of(cls, arguments: argparse.Namespace, **known: Any) -> LabelOptions:
        """From the options with their defaults, and what is `known` of the records."""
        given = {entry.name: getattr(arguments, entry.name, None) for entry in fields(cls)}
        return cls(**{**given, **known})

    @property
    def name(self) -> str:
        """The study's name, by which a run directory is called."""
        return f"label-dp-{self.method}"

    @property
    def digest(self) -> str:
        """SHA-256 hex of `study.toml`."""
        return hashlib.sha256(self.to_toml().encode()).hexdigest()

    def to_toml(self) -> str:
        """The text of `study.toml`: equal options give equal text."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        lines = (f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in given.items())
        return "\n".join(("[label-dp]", *lines, ""))


def check_method(name: str, *, at_hospitals: bool) -> None:
    """Refuse, by an InputError, no method, or one that does not go with labels at hospitals."""
    if name not in METHODS:
        raise InputError(f"--method {name}: one of {', '.join(METHODS)} is meant{nearest(name, METHODS)}")
    if at_hospitals and not name.startswith(("randres", "lp-1st", "noise-cluster")):
        raise InputError(
            f"--num-clients with --method {name}: only randres, lp-1st and noise-cluster work where labels "
            "are at hospitals"
        )


def fill_defaults(arguments: argparse.Namespace) -> None:
    """Fill in the options that were left out, and refuse those that would have no effect beside the others.

    Raises:
        InputError: there is one; the message names it, and what it goes with.
    """
    given = {
        name: value for name, value in vars(arguments).items() if value is not None and value is not False
    }
    idle = dict.fromkeys(_OF_LEARNING, "does not go with --advise, which touches no data")
    if not arguments.advise:
        for name, value in _DEFAULTS.items():
            if getattr(arguments, name) is None:
                setattr(arguments, name, value)
        idle = dict(_idle(arguments))
    for name, value in given.items():
        if name in idle:
            shown = "" if value is True else f" {value}"
            raise InputError(f"--{name.replace('_', '-')}{shown}: {idle[name]}")


def _idle(arguments: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Options that would have no effect where labels are learnt from, each with the reason."""
    dataset, method = arguments.dataset, arguments.method
    yield "abundant_compute", "goes with --advise"
    if arguments.hospitals is None:
        yield from ((name, "goes with --num-clients") for name in ("quorum", "backend", "policy"))
    if dataset == FILES:
        yield "records", "goes with --advise or a named data set; of --dataset files all records are taken"
        for name in ("data_dir", "download"):
            yield name, "goes with a named data set; --dataset files has --images and --labels"
        if arguments.test_images is None:
            yield "test_labels", "give --test-images FILE too, whose labels these are"
    else:
        yield "classes", f"goes with --advise or --dataset files; {dataset} says how many it has"
        for name in _OF_FILES:
            yield name, f"goes with --dataset files; {dataset} has images and labels of its own"
    if method not in METHODS:
        return  # which is refused by its name
    if not method.startswith("pate-fm"):
        yield "teachers", f"goes with --method pate-fm; {method} has no teachers"
    if method == "noise-cluster":
        for name in ("network", "epochs"):
            yield name, "does not go with --method noise-cluster, which trains no network"
    elif not method.endswith("denoise-ssl"):
        for name in ("clusterer", "clusters"):
            yield name, f"goes with --method noise-cluster or one with denoise-ssl; {method} has no clusters"


# Which method suits an ε, a number of classes and of records: LDP's section 6, from public numbers alone.

SURE = 5.0  # deviations between a cluster's class and another, from which its private labels name it
CLEAN, GOOD = 0.99, 0.8  # private labels right that often need no denoising, or none by clusters
MANY_CLASSES, LOW_EPSILON = 50, 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The method, why, and what to expect; all from ε, δ and counts."""

    method: str
    reason: str
    kept: float
    deviations: float
    noise_cluster_sigma: float
    epsilon: float
    delta: float
    num_classes: int
    records: int
    alternatives: tuple[str, ...]

    def lines(self) -> list[str]:
        """The advice as text, a line each."""
        a_class = self.records // self.num_classes
        return [
            f"ε={epsilon_text(self.epsilon)} δ={delta_text(self.delta)}, {self.num_classes} classes, "
            f"{self.records} records, one label replaced",
            f"randomised response keeps {100 * self.kept:.2f} % of the labels (δ=0)",
            f"in a cluster of {a_class} records its class stands {self.deviations:.1f} standard deviations "
            "out of such labels",
            f"NoiseCluster's noise on the counts of such a cluster: σ={self.noise_cluster_sigma:.3g} labels",
            f"advice: --method {self.method}: {self.reason}",
            *(f"or: {line}" for line in self.alternatives),
            "the accuracy behind this advice was published for CIFAR-10, CIFAR-100 and CINIC-10; measure "
            "yours with a public data set like your own",
        ]


def advise(
    *, epsilon: float, delta: float, num_classes: int, records: int, abundant_compute: bool = False
) -> Advice:
    """The paper's recommendations in this order: very low ε, much compute, labels nearly clean, all else.

    Raises:
        InputError: counts or budget out of range.
    """
    check_count("records", records, least=1)
    if records < num_classes:
        raise InputError(f"records={records}: must be at least the {num_classes} classes")
    response = RandRes(num_classes=num_classes, epsilon=epsilon)
    kept, other = response.probability, response.other
    in_cluster = records / num_classes
    deviations = (kept - other) * math.sqrt(in_cluster / (kept + other))
    sigma = NoiseCluster(
        num_clusters=num_classes, num_classes=num_classes, epsilon=epsilon, delta=delta
    ).sigma
    teachers = max(2, min(800, records // 60))
    vote = plan_pate_fm(num_teachers=teachers, num_classes=num_classes, epsilon=epsilon, delta=delta)
    pate = (
        f"--method pate-fm+aug-descent --teachers {teachers}: {vote.answered} answers with "
        f"σ2={vote.mechanism.sigma2:.3g} votes, where many teachers can be trained"
    )
    cluster = "--method noise-cluster: no network learns from noisy labels, accuracy is the clusters' own"
    others: tuple[str, ...]
    low = num_classes >= MANY_CLASSES and epsilon <= LOW_EPSILON
    if deviations < SURE and not (abundant_compute and low):
        method, others = "noise-cluster", (pate,)
        reason = "private labels of single records drown in noise at this ε, counts of clusters do not"
    elif abundant_compute and (low or kept < GOOD):
        method, others = "pate-fm+aug-descent", ("--method randres+aug-descent: far less compute", cluster)
        reason = "with compute for hundreds of teachers it adds less noise than a response a label"
    elif kept >= CLEAN:
        method, others = "lp-1st", ("--method randres+aug-descent",)
        reason = "nearly all labels stay as they are, so plain learning will do"
    elif kept >= GOOD:
        method, others = "randres+aug-descent", ("--method randres+ssl", pate)
        reason = "most labels stay; clusters would throw away more right labels than wrong ones"
    else:
        method, others = "randres+denoise-ssl", ("--method randres+aug-descent", cluster, pate)
        reason = "clusters find the labels that are probably right among many wrong ones"
    return Advice(
        method=method,
        reason=reason,
        kept=kept,
        deviations=deviations,
        noise_cluster_sigma=sigma,
        epsilon=epsilon,
        delta=delta,
        num_classes=num_classes,
        records=records,
        alternatives=others,
    )
