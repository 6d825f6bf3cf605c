"""Whole methods by name: how labels are made private, and how they are learnt from.

LDP, figure 1: NoiseCluster alone (pipeline 1), private labels and a learner (pipeline 2), PATE-FM (pipeline
3); LP-1ST, LP-2ST and ALIBI are what Table 6 compares with. Whatever depends on labels comes from a
`LabelSource`, which has it on record before it is learnt from.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import BudgetError, InputError, IntegrityError
from pate_fed.format import epsilon_text
from pate_fed.kinds.label_dp.aug_descent import DescentSettings, aug_descent
from pate_fed.kinds.label_dp.clusters import (
    Clusterer,
    Scan,
    encoder_clusters,
    fine_clusters,
    nearest_centre,
    noise_clusters,
)
from pate_fed.kinds.label_dp.learners import (
    LearnSettings,
    TeachSettings,
    denoise,
    equation8,
    estimated_accuracy,
    ldp_normal,
    ldp_ssl,
    queries_of,
    teach,
)
from pate_fed.kinds.label_dp.options import check_method
from pate_fed.kinds.label_dp.pate_fm import plan_pate_fm
from pate_fed.kinds.label_dp.public import PublicInputs
from pate_fed.kinds.label_dp.randres import Alibi, PriorRes, RandRes
from pate_fed.kinds.label_dp.release import NO_LABEL, PrivateLabels, label_accuracy
from pate_fed.kinds.label_dp.source import LabelsInOnePlace, LabelSource, Released
from pate_fed.learning.networks.classifiers import Classifier, Shape

Ints = NDArray[np.int64]
Facts = dict[str, float | int | None]

CLUSTERERS: dict[str, Clusterer] = {"light": encoder_clusters, "scan": Scan()}
ROWS = "noisy rows"  # ALIBI's, of which the labels are made
MIXUP = 1.0
LIGHT_WEIGHT = 1.0  # λ_u of the light network in AugDescent; held-out records: 80.7 % against 79.1 % with 25


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodSettings:
    """What all methods are given alike; `num_clusters` None takes a number that suits the method."""

    delta: float = 1e-5
    learn: LearnSettings = field(default_factory=LearnSettings)
    descent_weight: float = 25.0
    clusterer: Clusterer = encoder_clusters
    num_clusters: int | None = None
    teach: TeachSettings = field(default_factory=TeachSettings)
    student_labels: int | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class LabelDpResult:
    """What a method gave: `predict_proba` gives class probabilities of images, float64 (m, K).

    `networks` are what can be exported, and the probabilities their mean.

    `labels` are of all records, images of `shape`; `released` those among them that left a mechanism, int64
    (n,) with -1 where none did: PATE-FM's student labels all others. `facts` are figures about the method for
    people; those whose name ends with "_measured" were taken with the true labels at hand, and are not to be
    published.
    """

    labels: PrivateLabels
    released: Ints
    shape: Shape
    predict_proba: Callable[[NDArray[np.uint8]], NDArray[np.float64]]
    networks: list[Classifier] = field(default_factory=list)
    facts: Facts = field(default_factory=dict)

    def classify(self, images: NDArray[np.uint8]) -> Ints:
        """Classes of images, int64 (m,)."""
        return np.asarray(self.predict_proba(images).argmax(axis=1), dtype=np.int64)


@dataclass(slots=True, kw_only=True, eq=False)
class PateFmCache:
    """What further PATE-FM methods on the same noise, settings and inputs need not compute again, at no cost.

    `totals` are ready totals of the teachers, int64 (queries, classes), on `queries_of(records, asked,
    seed=public.seed)`; `students` keeps what was learnt, by ε and seed.
    """

    totals: Ints | None = None
    students: dict[tuple[float, int], tuple[PrivateLabels, Ints, Classifier, Facts]] = field(
        default_factory=dict
    )


@dataclass(slots=True, kw_only=True, eq=False)
class _Run:
    """One method on one set of records."""

    public: PublicInputs
    source: LabelSource
    epsilon: float
    settings: MethodSettings
    seed: int
    cache: PateFmCache
    facts: Facts = field(default_factory=dict)

    @property
    def here(self) -> LabelsInOnePlace:
        """The source, where all labels are in one place."""
        if not isinstance(self.source, LabelsInOnePlace):
            raise InputError("the labels are at hospitals: a method that asks them is meant")
        return self.source

    def pate_fm(self) -> tuple[PrivateLabels, Ints, Classifier]:
        """Labels of all records by the student, those that the teachers gave, and the student."""
        key, here = (self.epsilon, self.seed), self.here
        if key in self.cache.students:
            labels, released, student, facts = self.cache.students[key]
            self.facts |= facts
            return labels, released, student
        settings, records = self.settings, len(self.public)
        plan = plan_pate_fm(
            num_teachers=settings.teach.num_teachers,
            num_classes=self.public.num_classes,
            epsilon=self.epsilon,
            delta=settings.delta,
            labels=settings.student_labels,
        )
        queries = queries_of(records, plan.asked, seed=self.public.seed)

        def draw() -> Released:
            totals = self.cache.totals
            if totals is None:
                totals = teach(self.public, here.truth, queries, settings.teach, seed=self.public.seed)
            release = plan.release(totals[: len(queries)], here.noise)
            return Released(index=queries[: release.asked], label=release.label)

        terms = here.terms(plan.mechanism, delta=plan.delta, asked=plan.asked, answered=plan.answered)
        released = here.record.release(terms, draw).everywhere(records)
        self.facts["answers"] = int((released != NO_LABEL).sum())
        self.facts["answers_right_measured"] = label_accuracy(released, here.truth)
        student = ldp_ssl(self.public, released, settings.learn, seed=self.seed)
        everywhere = self.public.probabilities([student]).argmax(axis=1)
        labels = plan.labelled(np.asarray(everywhere, dtype=np.int64), here.noise)
        self.cache.students[key] = labels, released, student, dict(self.facts)
        return labels, released, student

    # Whole methods.

    def noise_cluster(self) -> LabelDpResult:
        public, settings = self.public, self.settings
        spends = self.source.spendable(self.epsilon, settings.delta)
        clusters, count = clusters_to_name(public, settings, spends)
        labels = self.source.count(clusters, count, epsilon=self.epsilon, delta=settings.delta)
        self.facts |= {"sigma": self.source.sigma, "clusters": count}
        return self._learnt(labels, [named_centres(public, clusters, labels, count)])

    def lp_2st(self) -> LabelDpResult:
        """Half of the labels teach a prior for the response on the other half; each is answered once."""
        public, learn, here = self.public, self.settings.learn, self.here
        first = RandRes(num_classes=public.num_classes, epsilon=self.epsilon)
        second = PriorRes(num_classes=public.num_classes, epsilon=self.epsilon)
        terms = here.terms(first.on_ledger, second.on_ledger, delta=0.0)
        half = np.random.default_rng([2, self.seed]).random(len(public)) < 0.5
        index, rest = np.flatnonzero(half), np.flatnonzero(~half)
        drawn: list[Released] = []

        def draw() -> Released:
            drawn.append(Released(index=index, label=first.release(here.truth[index], here.noise).label))
            return drawn[0]

        answers = here.record.release(terms, draw)
        if not drawn and not here.noise.private:
            draw()  # by an earlier process: a seed's stream goes on where that one's did, and gives the same
        staged = PrivateLabels.by(first, answers.everywhere(len(public)), here.noise)
        network = ldp_normal(public, staged, learn, seed=self.seed, mixup=MIXUP)

        def respond() -> Released:
            prior = public.probabilities([network])[rest]
            return Released(index=rest, label=second.release(here.truth[rest], prior, here.noise).label)

        staged.label[rest] = here.record.release(terms, respond, stage=1).label
        staged = replace(staged, how="randomised response in two stages")
        return self._learnt(staged, [ldp_normal(public, staged, learn, seed=self.seed + 1, mixup=MIXUP)])

    def alibi(self) -> LabelDpResult:
        """Twice: under a uniform prior, then under the first network's predictions."""
        public, learn, here = self.public, self.settings.learn, self.here
        mechanism = Alibi(num_classes=public.num_classes, epsilon=self.epsilon)
        rows: Ints | None = None

        def draw() -> PrivateLabels:
            nonlocal rows
            rows = here.record.keep(ROWS, lambda: mechanism.noisy_rows(here.truth, here.noise))
            return mechanism.private_labels(rows, here.noise)

        def gone() -> Ints:
            raise BudgetError(
                f"the released {ROWS} are gone; ε={epsilon_text(self.epsilon)} is spent by the ledger, "
                "and they are not drawn a second time"
            )

        released = here.release(mechanism, draw)
        if rows is None:  # by an earlier process
            rows = here.record.keep(ROWS, gone)
        labels = mechanism.private_labels(rows, here.noise)
        if not np.array_equal(released.label, labels.label):
            raise IntegrityError(f"the kept {ROWS} are not those that the labels on the ledger came from")
        first = ldp_normal(public, labels, learn, seed=self.seed)
        again = mechanism.private_labels(rows, here.noise, public.probabilities([first]))
        return self._learnt(labels, [ldp_normal(public, again, learn, seed=self.seed + 1)])

    def learn(self, labels: PrivateLabels, learner: str) -> LabelDpResult:
        """One of the learners from labels that are there."""
        public, settings = self.public, self.settings
        response = RandRes(num_classes=public.num_classes, epsilon=self.epsilon)
        keep = response.probability if labels.delta == 0.0 else 1.0
        if learner in ("normal", "mixup"):
            mixup = MIXUP if learner == "mixup" else 0.0
            networks = [ldp_normal(public, labels, settings.learn, seed=self.seed, mixup=mixup)]
        elif learner == "ssl":
            networks = [ldp_ssl(public, labels.label, settings.learn, seed=self.seed, keep_probability=keep)]
        elif learner == "aug-descent":
            descent = DescentSettings(
                learn=replace(settings.learn, learning_rate=settings.learn.learning_rate / 3),
                warm_up=max(1, settings.learn.epochs // 3),
                unlabelled_weight=LIGHT_WEIGHT if public.linear else settings.descent_weight,
                most_clean=keep,
                strong_only=not public.linear,
            )
            networks = aug_descent(public, labels.label, descent, seed=self.seed)
        else:
            return self._denoise(labels)
        return self._learnt(labels, networks)

    def _denoise(self, labels: PrivateLabels) -> LabelDpResult:
        public, settings = self.public, self.settings
        clusters, count = _fine_clusters(public, settings)
        found = denoise(
            labels.label,
            clusters,
            num_clusters=count,
            num_classes=public.num_classes,
            centres=public.centres(clusters, count),
            seed=self.seed,
        )
        self.facts |= {"clusters": count, "spread": found.alpha, "kept": int(found.agreed.sum())}
        agreed, truth, right = np.where(found.agreed, labels.label, NO_LABEL), self.source.truth, None
        if truth is not None:
            right = float((found.pseudo == truth).mean())
            self.facts["kept_right_measured"] = label_accuracy(agreed, truth)
            self.facts["pseudo_right_measured"] = right
        if labels.delta == 0.0:
            response = RandRes(num_classes=public.num_classes, epsilon=self.epsilon)
            guess = estimated_accuracy(
                found.agreement, keep_probability=response.probability, other=response.other
            )
            self.facts |= {
                "pseudo_right_estimated": guess,
                "kept_right_equation8": equation8(guess, self.epsilon),
            }
            if right is not None:
                self.facts["kept_right_equation8_measured"] = equation8(right, self.epsilon)
        return self._learnt(labels, [ldp_ssl(public, agreed, settings.learn, seed=self.seed)])

    def _learnt(self, labels: PrivateLabels, networks: list[Classifier]) -> LabelDpResult:
        return LabelDpResult(
            labels=labels,
            released=labels.label,
            shape=self.public.shape,
            predict_proba=partial(self.public.probabilities, networks),
            networks=networks,
            facts=self.facts,
        )


def prepare_method(name: str, public: PublicInputs, settings: MethodSettings) -> None:
    """Find the clusters that a method learns with: what is wrong with them is said before ε is spent.

    Raises:
        InputError: there are too few, or a clusterer that gives none.
    """
    if name.endswith("denoise-ssl"):
        _fine_clusters(public, settings)


def _fine_clusters(public: PublicInputs, settings: MethodSettings) -> tuple[Ints, int]:
    """DenoiseSSL's clusters of the inputs, int64 (n,), and their number."""
    count = settings.num_clusters or fine_clusters(len(public), public.num_classes)
    return public.clusters(settings.clusterer, count), count


def clusters_to_name(public: PublicInputs, settings: MethodSettings, epsilon: float) -> tuple[Ints, int]:
    """NoiseCluster's clusters of the inputs, int64 (n,), and their number; no label has a part in them.

    `epsilon` is what counts in them will spend.
    """
    count = settings.num_clusters
    if count is None:
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


def run_method(
    name: str,
    public: PublicInputs,
    source: LabelSource,
    *,
    epsilon: float,
    settings: MethodSettings,
    seed: int,
    cache: PateFmCache | None = None,
) -> LabelDpResult:
    """One of `METHODS` from the private labels of the public inputs.

    Raises:
        InputError: no such method, or settings that do not go with it.
    """
    check_method(name, at_hospitals=not isinstance(source, LabelsInOnePlace))
    prepare_method(name, public, settings)
    run = _Run(
        public=public,
        source=source,
        epsilon=epsilon,
        settings=settings,
        seed=seed,
        cache=PateFmCache() if cache is None else cache,
    )
    mechanism, _, learner = {"lp-1st": "randres+mixup"}.get(name, name).partition("+")
    if mechanism == "randres":
        outcome = run.learn(source.respond(epsilon), learner)
    elif mechanism == "pate-fm":
        labels, released, student = run.pate_fm()
        outcome = run.learn(labels, learner) if learner else run._learnt(labels, [student])
        outcome.released = released
    else:
        whole = {"noise-cluster": run.noise_cluster, "alibi": run.alibi, "lp-2st": run.lp_2st}
        outcome = whole[name]()
    if source.truth is not None:
        outcome.facts["majority_measured"] = float(np.bincount(source.truth).max() / len(source.truth))
        outcome.facts["labels_right_measured"] = label_accuracy(outcome.labels.label, source.truth)
    return outcome


def find_clusterer(name: str) -> Clusterer:
    """One of `CLUSTERERS`, or a user's own as MODULE:FUNCTION.

    Raises:
        InputError: there is no such one, or it cannot be called as one.
    """
    if name in CLUSTERERS:
        return CLUSTERERS[name]
    from importlib import import_module

    module, _, function = name.partition(":")
    try:
        found: Clusterer = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError, SyntaxError) as error:
        raise InputError(
            f"--clusterer {name}: one of {', '.join(CLUSTERERS)} or MODULE:FUNCTION is meant ({error})"
        ) from error
    if not callable(found):
        raise InputError(f"--clusterer {name}: a {type(found).__name__}; a function is meant")
    try:
        signature = inspect.signature(found)
    except ValueError:  # some that are written in C tell nothing about themselves
        return found
    try:
        signature.bind(None, 2, seed=0)
    except TypeError as error:
        raise InputError(
            f"--clusterer {name}: a function (inputs, num_clusters, *, seed) is meant ({error})"
        ) from error
    return found
