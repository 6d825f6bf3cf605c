"""Which method suits an ε, a number of classes and of records: LDP's section 6, from public numbers alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pate_fed.errors import InputError
from pate_fed.format import delta_text, epsilon_text
from pate_fed.kinds.label_dp.noise_cluster import NoiseCluster
from pate_fed.kinds.label_dp.pate_fm import plan_pate_fm
from pate_fed.kinds.label_dp.randres import RandRes
from pate_fed.privacy.checks import check_count

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
