"""Whole methods by name: how labels are made private, and how they are learnt from.

LDP, figure 1: NoiseCluster alone (pipeline 1), private labels and a learner (pipeline 2), PATE-FM (pipeline
3); LP-1ST, LP-2ST and ALIBI are what Table 6 compares with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError
from pate_fed.label_dp.alibi import Alibi
from pate_fed.label_dp.aug_descent import DescentSettings, aug_descent
from pate_fed.label_dp.clusters import Clusterer, encoder_clusters, fine_clusters, noise_clusters
from pate_fed.label_dp.denoise import denoise, equation8, estimated_accuracy
from pate_fed.label_dp.hospitals import Hospitals
from pate_fed.label_dp.learners import LearnSettings, ldp_normal, ldp_ssl
from pate_fed.label_dp.names import METHODS
from pate_fed.label_dp.networks import nearest_centre
from pate_fed.label_dp.noise_cluster import NoiseCluster
from pate_fed.label_dp.pate_fm import plan_pate_fm
from pate_fed.label_dp.public import PublicInputs
from pate_fed.label_dp.randres import PriorRes, RandRes
from pate_fed.label_dp.release import NO_LABEL, PrivateLabels, label_accuracy
from pate_fed.label_dp.teachers import TeachSettings, queries_of, teach
from pate_fed.learning.networks.classifiers import Classifier
from pate_fed.privacy.mechanisms.noise import NoiseSource

__all__ = ["LabelDpResult", "MethodSettings", "Students", "check_method", "clusters_to_name", "run_method"]

Ints = NDArray[np.int64]
Facts = dict[str, float | int | None]
Students = dict[tuple[float, int], tuple[PrivateLabels, Classifier, Facts]]

MIXUP = 1.0
LIGHT_WEIGHT = 1.0  # λ_u of the light network in AugDescent; held-out records: 80.7 % against 79.1 % with 25


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodSettings:
    """What all methods are given alike; `num_clusters` None takes a number that suits the method.

    `hospitals` have the labels where these are not in one place; then randomised response runs at each of
    them, and NoiseCluster's counts are summed under masks.
    """

    delta: float = 1e-5
    learn: LearnSettings = field(default_factory=LearnSettings)
    descent_weight: float = 25.0
    clusterer: Clusterer = encoder_clusters
    num_clusters: int | None = None
    teach: TeachSettings = field(default_factory=TeachSettings)
    student_labels: int | None = None
    hospitals: Hospitals | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class LabelDpResult:
    """What a method gave: `classify` gives classes of images, `networks` what can be exported.

    `facts` are figures about the method for people; those whose name ends with "_measured" were taken with
    the true labels at hand, and are not to be published.
    """

    method: str
    labels: PrivateLabels
    classify: Callable[[NDArray[np.uint8]], Ints]
    networks: list[Classifier] = field(default_factory=list)
    facts: Facts = field(default_factory=dict)


class _Run:
    """One method on one set of records; `given` are the private labels, None where hospitals have them."""

    def __init__(
        self,
        public: PublicInputs,
        given: Ints | None,
        epsilon: float,
        noise: NoiseSource,
        settings: MethodSettings,
        seed: int,
        totals: Ints | None,
        students: Students,
    ) -> None:
        self.students = students
        self.public, self.given, self.epsilon, self.noise = public, given, epsilon, noise
        self.settings, self.seed, self.totals = settings, seed, totals
        self.facts: Facts = {}

    @property
    def truth(self) -> Ints:
        """The private labels, where they are here."""
        if self.given is None:
            raise InputError("the labels are at hospitals: a method that asks them is meant")
        return self.given

    # How labels become private.

    def randres(self) -> PrivateLabels:
        """At one place or, in the local model, at each hospital by itself: the law is the same."""
        if self.settings.hospitals is not None:
            return self.settings.hospitals.respond(self.epsilon)
        mechanism = RandRes(num_classes=self.public.num_classes, epsilon=self.epsilon)
        return mechanism.release(self.truth, self.noise)

    def pate_fm(self) -> tuple[PrivateLabels, list[Classifier]]:
        """Labels of all records by the student, and the student."""
        key = (self.epsilon, self.seed)
        if key in self.students:
            labels, student, facts = self.students[key]
            self.facts |= facts
            return labels, [student]
        settings, records = self.settings, len(self.public)
        plan = plan_pate_fm(
            num_teachers=settings.teach.num_teachers,
            num_classes=self.public.num_classes,
            epsilon=self.epsilon,
            delta=settings.delta,
            labels=settings.student_labels,
        )
        queries = queries_of(records, plan.asked, seed=self.public.seed)
        totals = self.totals
        if totals is None:
            totals = teach(self.public, self.truth, queries, settings.teach, seed=self.public.seed)
        answered = plan.release(totals[: len(queries)], queries, records, self.noise)
        self.facts["answers"] = int((answered.label != NO_LABEL).sum())
        self.facts["answers_right_measured"] = label_accuracy(answered.label, self.truth)
        student = ldp_ssl(self.public, answered.label, settings.learn, seed=self.seed)
        everywhere = self.public.probabilities([student]).argmax(axis=1)
        labels = PrivateLabels(
            label=np.asarray(everywhere, dtype=np.int64),
            num_classes=answered.num_classes,
            epsilon=answered.epsilon,
            delta=answered.delta,
            how=answered.how,
            noise=answered.noise,
            private=answered.private,
        )
        self.students[key] = labels, student, dict(self.facts)
        return labels, [student]

    # Whole methods.

    def noise_cluster(self) -> LabelDpResult:
        public, settings = self.public, self.settings
        clusters, count = clusters_to_name(public, settings, self.epsilon)
        if settings.hospitals is not None:
            labels = settings.hospitals.count(clusters, count, epsilon=self.epsilon, delta=settings.delta)
            self.facts["sigma"] = settings.hospitals.sigma
        else:
            mechanism = NoiseCluster(
                num_clusters=count,
                num_classes=public.num_classes,
                epsilon=self.epsilon,
                delta=settings.delta,
            )
            labels = mechanism.release(clusters, self.truth, self.noise)
            self.facts["sigma"] = mechanism.sigma
        self.facts["clusters"] = count
        return self._learnt(labels, [named_centres(public, clusters, labels, count)])

    def lp_2st(self) -> LabelDpResult:
        """Half of the labels teach a prior for the response on the other half; each is answered once."""
        public, learn = self.public, self.settings.learn
        first = RandRes(num_classes=public.num_classes, epsilon=self.epsilon)
        second = PriorRes(num_classes=public.num_classes, epsilon=self.epsilon)
        half = np.random.default_rng([2, self.seed]).random(len(public)) < 0.5
        label = np.full(len(public), NO_LABEL, dtype=np.int64)
        label[half] = first.release(self.truth[half], self.noise).label
        staged = PrivateLabels(
            label=label,
            num_classes=public.num_classes,
            epsilon=self.epsilon,
            delta=0.0,
            how="randomised response in two stages",
            noise=self.noise.kind,
            private=self.noise.private,
        )
        network = ldp_normal(public, staged, learn, seed=self.seed, mixup=MIXUP)
        prior = public.probabilities([network])[~half]
        label[~half] = second.release(self.truth[~half], prior, self.noise).label
        return self._learnt(staged, [ldp_normal(public, staged, learn, seed=self.seed + 1, mixup=MIXUP)])

    def alibi(self) -> LabelDpResult:
        """Twice: under a uniform prior, then under the first network's predictions."""
        public, learn = self.public, self.settings.learn
        mechanism = Alibi(num_classes=public.num_classes, epsilon=self.epsilon)
        rows = mechanism.noisy_rows(self.truth, self.noise)
        labels = mechanism.private_labels(rows, self.noise)
        first = ldp_normal(public, labels, learn, seed=self.seed)
        again = mechanism.private_labels(rows, self.noise, public.probabilities([first]))
        return self._learnt(labels, [ldp_normal(public, again, learn, seed=self.seed + 1)])

    def learn(self, labels: PrivateLabels, learner: str) -> LabelDpResult:
        """One of the learners from labels that are there."""
        public, settings = self.public, self.settings
        response = RandRes(num_classes=public.num_classes, epsilon=self.epsilon)
        kept = response.probability if labels.delta == 0.0 else 1.0
        if learner in ("normal", "mixup"):
            mixup = MIXUP if learner == "mixup" else 0.0
            return self._learnt(
                labels, [ldp_normal(public, labels, settings.learn, seed=self.seed, mixup=mixup)]
            )
        if learner == "ssl":
            network = ldp_ssl(public, labels.label, settings.learn, seed=self.seed, kept=kept)
            return self._learnt(labels, [network])
        if learner == "aug-descent":
            descent = DescentSettings(
                learn=replace(settings.learn, learning_rate=settings.learn.learning_rate / 3),
                warm_up=max(1, settings.learn.epochs // 3),
                unlabelled_weight=LIGHT_WEIGHT if public.light else settings.descent_weight,
                most_clean=kept,
                strong_only=not public.light,
            )
            return self._learnt(labels, aug_descent(public, labels.label, descent, seed=self.seed))
        return self._denoise(labels)

    def _denoise(self, labels: PrivateLabels) -> LabelDpResult:
        public, settings = self.public, self.settings
        count = settings.num_clusters or fine_clusters(len(public), public.num_classes)
        clusters = public.clusters(settings.clusterer, count)
        found = denoise(
            labels.label,
            clusters,
            num_clusters=count,
            num_classes=public.num_classes,
            centres=public.centres(clusters, count),
            seed=self.seed,
        )
        self.facts |= {"clusters": count, "spread": found.alpha, "kept": int(found.kept.sum())}
        right = None
        if self.given is not None:
            right = float((found.pseudo == self.given).mean())
            kept = np.where(found.kept, labels.label, NO_LABEL)
            self.facts["kept_right_measured"] = label_accuracy(kept, self.given)
            self.facts["pseudo_right_measured"] = right
        if labels.delta == 0.0:
            response = RandRes(num_classes=public.num_classes, epsilon=self.epsilon)
            guess = estimated_accuracy(found.agreement, kept=response.probability, other=response.other)
            self.facts |= {
                "pseudo_right_estimated": guess,
                "kept_right_equation8": equation8(guess, self.epsilon),
            }
            if right is not None:
                self.facts["kept_right_equation8_measured"] = equation8(right, self.epsilon)
        kept = np.where(found.kept, labels.label, NO_LABEL)
        return self._learnt(labels, [ldp_ssl(public, kept, settings.learn, seed=self.seed)])

    def _learnt(self, labels: PrivateLabels, networks: list[Classifier]) -> LabelDpResult:
        def classify(images: NDArray[np.uint8]) -> Ints:
            return np.asarray(self.public.probabilities(networks, images).argmax(axis=1), dtype=np.int64)

        return LabelDpResult(method="", labels=labels, classify=classify, networks=networks, facts=self.facts)


def clusters_to_name(public: PublicInputs, settings: MethodSettings, epsilon: float) -> tuple[Ints, int]:
    """NoiseCluster's clusters of the inputs, int64 (n,), and their number; no label has a part in them."""
    count = settings.num_clusters
    if count is None:
        if settings.hospitals is not None:
            epsilon = settings.hospitals.spendable(epsilon, settings.delta)
        count = noise_clusters(len(public), public.num_classes, epsilon=epsilon, delta=settings.delta)
    return public.clusters(settings.clusterer, count), count


def named_centres(
    public: PublicInputs, clusters: Ints, labels: PrivateLabels, num_clusters: int
) -> Classifier:
    """Named clusters as a classifier: an image has the class of the cluster of the nearest mean features."""
    filled, first = np.unique(clusters, return_index=True)
    centres = public.centres(clusters, num_clusters)[filled]
    front = public.encoder.preprocessing()
    return nearest_centre(front, centres, labels.label[first], public.num_classes).to(public.device)


def check_method(name: str, *, at_hospitals: bool) -> None:
    """Refuse a method that there is not, or that does not go with labels at hospitals.

    Raises:
        InputError: so it is.
    """
    if name not in METHODS:
        near = get_close_matches(name, METHODS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InputError(f"--method {name}: one of {', '.join(METHODS)} is meant{hint}")
    if at_hospitals and not name.startswith(("randres", "lp-1st", "noise-cluster")):
        raise InputError(
            f"--hospitals with --method {name}: only randres, lp-1st and noise-cluster work where labels are "
            "at hospitals"
        )


def run_method(
    name: str,
    public: PublicInputs,
    labels: Ints | None,
    *,
    epsilon: float,
    noise: NoiseSource,
    settings: MethodSettings,
    seed: int,
    totals: Ints | None = None,
    students: Students | None = None,
) -> LabelDpResult:
    """One of `METHODS` from the private `labels`, int64 (n,), of the public inputs.

    `labels` are None where `settings.hospitals` have them and nothing is to be measured with them.

    `totals` are ready totals of PATE-FM's teachers on `queries_of(records, asked, seed=public.seed)`;
    `students` keeps PATE-FM's student and labels by ε and seed for further methods on them, at no further
    cost, where noise, settings and inputs are the same.

    Raises:
        InputError: no such method, or settings that do not go with it.
    """
    check_method(name, at_hospitals=settings.hospitals is not None)
    kept = {} if students is None else students
    run = _Run(public, labels, epsilon, noise, settings, seed, totals, kept)
    if name == "noise-cluster":
        outcome = run.noise_cluster()
    elif name == "alibi":
        outcome = run.alibi()
    elif name == "lp-2st":
        outcome = run.lp_2st()
    else:
        mechanism, _, learner = {"lp-1st": "randres+mixup"}.get(name, name).partition("+")
        if mechanism == "randres":
            outcome = run.learn(run.randres(), learner)
        else:
            made, student = run.pate_fm()
            outcome = run.learn(made, learner) if learner else run._learnt(made, student)
    outcome.method = name
    if labels is not None:
        outcome.facts["labels_right_measured"] = label_accuracy(outcome.labels.label, labels)
    return outcome
