"""Private labels at the coordinator: one question, one release, and a method that learns from it.

What an auditor should find: what comes back is noisy already, by randomised response or as a masked sum of
noisy counts; labels follow from it, and are on the ledger's disk before a method learns from them. Counts
that were asked for and did not come are charged too: hospitals give them once. Responses come again as they
were, so nothing is charged for those that did not come.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.config.backend import Engine
from pate_fed.errors import BudgetError, IntegrityError
from pate_fed.format import accuracy_text, delta_text, epsilon_text, share_text
from pate_fed.kinds.label_dp.noise_cluster import summed_labels
from pate_fed.kinds.label_dp.options import LabelOptions
from pate_fed.kinds.label_dp.release import NO_LABEL, PrivateLabels
from pate_fed.kinds.label_dp.source import LabelSource
from pate_fed.kinds.labels import LABEL_OF, THERE, LabelTerms, clusters_file, lost_text
from pate_fed.kinds.terms import Terms
from pate_fed.privacy import Ledger, LedgerTerms, NoiseSource, noise_from_seed
from pate_fed.protocol.messages import Question
from pate_fed.report.accuracy import Accuracy
from pate_fed.report.log import read_log
from pate_fed.report.result import LabelStudyRecord, Outcome, PrivacyFigures, RunResult
from pate_fed.runtime.run_dir import LOG_NAME
from server.kinds.base import Course, Figures, RunContext, Setup, fixed_facts
from server.release import Release
from server.state import Totals

if TYPE_CHECKING:
    from pate_fed.kinds.label_dp.methods import LabelDpResult

Ints = NDArray[np.int64]

_ANSWER_S = 600.0


@dataclass(slots=True, kw_only=True, eq=False)
class LabelWork:
    """A method of private labels, wherever they are, and what it came to.

    `method` learns from a source of labels. `test` are public images, uint8 (m, H, W, C), and their classes,
    int64 (m,). `outcome` is there once it has learnt. Of `contested` inputs more than one hospital told a
    label, so that they have none.
    """

    options: LabelOptions
    method: Callable[[LabelSource], LabelDpResult] = field(repr=False)
    test: tuple[NDArray[np.uint8], Ints] | None = field(default=None, repr=False)
    outcome: LabelDpResult | None = field(default=None, repr=False)
    contested: int = 0

    def learn(self, source: LabelSource, figures: Figures) -> LabelDpResult:
        """Let the method ask the source, and learn."""
        with figures.timed("student"):
            self.outcome = self.method(source)
        return self.outcome

    def finish(self, outcome: LabelDpResult, run_dir: Path, figures: Figures) -> None:
        """Write `student.ts`, and test the student."""
        from pate_fed.learning.students.export import write_torchscript

        write_torchscript(outcome.networks, outcome.shape, run_dir / "student.ts")
        if self.test is not None:
            images, labels = self.test
            figures.accuracy = Accuracy.of_probabilities(outcome.predict_proba(images), labels)

    def record(
        self, fixed: LedgerTerms, *, terms: Terms | None = None, backend: str = ""
    ) -> LabelStudyRecord:
        """What is run; under `terms` where hospitals have the labels."""
        options = self.options
        return LabelStudyRecord(
            study=options.name,
            mechanism=options.method,
            dataset=options.dataset,
            num_clients=options.hospitals or 1,
            least_clients=1 if terms is None else terms.least_clients,
            teachers_per_client=fixed.mechanisms[0].num_teachers,
            num_classes=options.num_classes,
            pool_size=options.records,
            pool_digest=options.pool_digest,
            max_queries=fixed.most_asked or 0,
            labels=fixed.most_answered or 0,
            epsilon=options.epsilon,
            delta=fixed.delta,
            unit=fixed.protection.unit,
            adjacency=fixed.protection.adjacency,
            seed=options.seed,
            backend=backend,
            test_size=0 if self.test is None else len(self.test[1]),
            **fixed_facts(fixed),
        )

    def add_metrics(self, metrics: dict[str, Any], result: RunResult, *, mechanism: str) -> None:
        """What a study of private labels has beside every run's figures; `mechanism` names the release's."""
        figures, privacy, outcome = metrics["accuracy"], result.outcome.privacy, self.outcome
        figures["test"] = figures["student"]
        metrics["privacy"] |= {
            "epsilon": max(privacy.student or 0.0, privacy.coordinator or 0.0),
            "mechanism": mechanism if outcome is None else outcome.labels.how,
            "noise": result.study.noise,
            "private": result.study.noise_private,
        }
        metrics |= {"method": self.options.method, "dataset": self.options.dataset}
        metrics["records"] = self.options.records
        if outcome is not None:
            public, measured = _facts(outcome)
            metrics |= {"figures": public, "from_true_labels_do_not_publish": measured}
        if result.outcome.reason is not None:
            metrics["error"] = result.outcome.reason

    def lines(self, *of_hospitals: str) -> tuple[str, ...]:
        """What the method came to, as text, with that `of_hospitals` in between; nothing before it has."""
        if self.outcome is None:
            return ()
        public, measured = _facts(self.outcome)
        found = [f"{self.options.method}: {self.outcome.labels.text()}", *of_hospitals]
        found += ["; ".join(_shown(public, {}))] if public else []
        if measured:
            tried = dict.fromkeys(measured, self.options.records)  # of these many records an accuracy is
            for name in public.keys() & {"answers", "kept"}:
                tried[f"{name}_right_measured"] = int(public[name] or 0)
            shown = "; ".join(_shown(measured, tried))
            found.append(f"from the true labels, not to be published: {shown}")
        return tuple(found)


def _facts(outcome: LabelDpResult) -> tuple[dict[str, float | int | None], dict[str, float | int | None]]:
    """Figures about the method that may be published, and those that may not."""
    measured = {name: value for name, value in outcome.facts.items() if name.endswith("_measured")}
    return {name: value for name, value in outcome.facts.items() if name not in measured}, measured


def _shown(facts: dict[str, float | int | None], tried: dict[str, int]) -> list[str]:
    """Figures by their names as people read them; accuracies as such, of so many that were `tried`."""
    found = []
    for name, value in facts.items():
        if name == "majority_measured":
            found.append(f"majority {share_text(value, tried[name])}")
            continue
        if name.endswith("_right_measured"):
            found.append(f"{name.split('_')[0]}: {accuracy_text(value, tried[name])}")
            continue
        text = name.removesuffix("_measured").replace("_", " ").replace("equation8", "(Equation 8)")
        shown = "none" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
        found.append(f"{text} {shown}")
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LabelSetup(Setup):
    """Labels at hospitals, in `clusters` int64 (pool_size,) where they are counted in some.

    `truth` int64 (pool_size,) are all labels, where a simulation has them.
    """

    work: LabelWork
    clusters: Ints | None = field(default=None, repr=False)
    truth: Ints | None = field(default=None, repr=False)

    @classmethod
    def of(cls, work: LabelWork, terms: Terms, run_dir: Path, *, backend: str, **labels: Any) -> LabelSetup:
        """Of hospitals on a backend, which train nothing: each answers soon."""
        engine = Engine(backend=backend, teach_timeout_s=_ANSWER_S, vote_timeout_s=_ANSWER_S)
        noise, text = noise_from_seed(terms.seed), work.options.to_toml()
        return cls(work=work, terms=terms, run_dir=run_dir, engine=engine, text=text, noise=noise, **labels)

    def file(self) -> bytes:
        """The public clusters."""
        return b"" if self.clusters is None else clusters_file(self.clusters)

    def record(self, fixed: LedgerTerms) -> LabelStudyRecord:
        """The options, and what hospitals agree to."""
        return self.work.record(fixed, terms=self.terms, backend=self.engine.backend)

    def add_metrics(self, metrics: dict[str, Any], result: RunResult, figures: Figures) -> None:
        """The method's, and the hospitals'; all of the latter is public."""
        terms, asks = self.terms, LabelTerms.of(self.terms)
        self.work.add_metrics(metrics, result, mechanism=asks.release(terms).name)
        asked = bool(result.outcome.privacy.coordinator)
        metrics["hospitals"] = {
            "asked": terms.num_clients,
            "answered": figures.hospitals,
            "least": terms.least_clients,
            "left_out": [{"hospital": each.party, "reason": each.reason} for each in result.left_out],
            "kept": figures.kept,
            "backend": self.engine.backend,
            "coordinator": {
                "epsilon": asks.spent(terms) if asked else 0.0,
                "delta": terms.delta,
                "sees": terms.view(terms.least_clients).text() if asked else "nothing",
            },
            "sigma_party": terms.sigma_party,
            "colluders": terms.colluders if terms.secure_sum else None,
            "terms_digest": terms.digest,
            "terms": json.loads(terms.to_json()),
        }

    def lines(self, figures: Figures) -> tuple[str, ...]:
        """What the method came to, and how many hospitals had a part in it."""
        terms, asks = self.terms, LabelTerms.of(self.terms)
        told = f"{figures.hospitals} of {terms.num_clients} answered, {terms.least_clients} were needed"
        if figures.hospitals is None:
            told = "what they released is on the ledger: nobody was asked again"
        lines = [f"hospitals: {told}; the coordinator saw {terms.view(terms.least_clients).text()}"]
        if self.work.contested:
            told = f"without a label, as more than one hospital has them: {self.work.contested} inputs"
            lines.append(told)
        if figures.kept:
            lines.append("their counts were summed before and kept: nobody was asked again")
        epsilon, spends = terms.privacy.epsilon or 0.0, asks.spendable(terms)
        if spends < epsilon:
            lines.append(
                f"more noise than asked for: of ε {epsilon:g} only {epsilon_text(spends)} is "
                f"spent, since each of {terms.num_clients} hospitals adds at least {terms.sigma_party:.3g} "
                "labels to every count, and that costs accuracy; fewer hospitals in one sum would spend more"
                " of it"
            )
        return self.work.lines(*lines)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HospitalLabels:
    """Labels that hospitals released under the terms of a setup, as the source that a method asks.

    `truth` int64 (pool_size,) are all true labels where a simulation has them. `sigma` is the noise in the
    sum, in labels; None where nothing was summed, or nobody asked in this process.
    """

    setup: LabelSetup
    labels: PrivateLabels
    truth: Ints | None = field(repr=False)
    sigma: float | None

    def spendable(self, epsilon: float, delta: float) -> float:
        """How much of ε counts under masks spend."""
        return LabelTerms.of(self.setup.terms).spendable(self.setup.terms)

    def respond(self, epsilon: float) -> PrivateLabels:
        """Labels after randomised response at each hospital, -1 where one is left out."""
        return self._asked_as(b"")

    def count(self, clusters: Ints, num_clusters: int, *, epsilon: float, delta: float) -> PrivateLabels:
        """Labels of all inputs from the hospitals' noisy counts in public clusters, summed under masks."""
        return self._asked_as(clusters_file(clusters))

    def _asked_as(self, file: bytes) -> PrivateLabels:
        if file != self.setup.file():
            raise IntegrityError("the method asks for labels in other clusters than the hospitals were asked")
        return self.labels


class LabelCourse(Course):
    """The course of a study of private labels."""

    def __init__(
        self, setup: LabelSetup, ledger: Ledger, context: RunContext, figures: Figures, *, noise: NoiseSource
    ) -> None:
        super().__init__(setup, ledger, context, figures, noise=noise)
        self._setup, self._asks = setup, LabelTerms.of(setup.terms)
        self._mechanism = self._asks.release(setup.terms)
        self.once = not self._asks.noisy_alone  # a response is drawn once, and comes again as it was
        spent, delta = self._asks.spent(setup.terms), setup.terms.delta
        self.lost = lost_text(f"ε={epsilon_text(spent)} δ={delta_text(delta)}")
        if not setup.apart:
            figures.asked = figures.asked or _may_have_asked(setup.run_dir)

    def next_question(self, number: int) -> Question | None:
        """All clusters or inputs, once."""
        if not self._ledger.entries():
            return self._question(number, np.arange(self._terms.bounds.rows, dtype=np.int64))
        if not self._ledger.answered:
            raise BudgetError(f"hospitals were asked before, and there was no sum; {self.lost}")
        return None

    def task(self, question: Question) -> str:
        """Counts or responses."""
        return "noisy counts under masks" if self._terms.secure_sum else "labels from hospitals"

    def release(self, question: Question, totals: Totals) -> Release:
        """Each cluster's largest count; or the labels as they are told, where one hospital tells one."""
        bounds, value = self._terms.bounds, totals.value
        if value.shape != (bounds.rows, bounds.columns):
            raise IntegrityError("the kept totals are of another study")
        if self._setup.clusters is None:
            there = value[:, THERE]
            self._setup.work.contested = int((there > 1).sum())
            return self._as_charged(np.where(there == 1, value[:, LABEL_OF], NO_LABEL))
        shared = self._asks.shared(self._terms)
        return self._as_charged(
            summed_labels(shared, value, self._setup.clusters, self._noise, survivors=totals.voters)
        )

    def void(self, question: Question) -> Release:
        """No label of any input."""
        return self._as_charged(np.full(self._terms.pool_size, NO_LABEL, dtype=np.int64))

    def _as_charged(self, label: Ints) -> Release:
        index = np.arange(len(label), dtype=np.int64)
        return Release.of(self._ledger.terms, self._mechanism, index, label)

    def measure(self) -> None:
        """The method itself measures a simulation's labels."""

    def learn(self) -> None:
        """Let the method learn from what is on the ledger."""
        setup, terms, figures = self._setup, self._terms, self.figures
        share, count = terms.sigma_party, figures.hospitals
        at = "response at hospitals" if count is None else f"response at {count} hospitals"
        labels = PrivateLabels(
            label=self._ledger.released()[2],
            num_classes=terms.num_classes,
            epsilon=self._asks.spent(terms),
            delta=terms.delta,
            how=self._asks.how(terms).replace("response", at),
            noise=self._noise.kind,
            private=self._noise.private,
        )
        sigma = None if share is None or count is None else share * count**0.5
        source = HospitalLabels(setup=setup, labels=labels, truth=setup.truth, sigma=sigma)
        setup.work.finish(setup.work.learn(source, figures), setup.run_dir, figures)

    def private_figures(self, privacy: PrivacyFigures, *, complete: bool) -> PrivacyFigures:
        """What hospitals send is noisy: where nobody was asked, the coordinator learnt nothing."""
        return privacy if self.figures.asked else replace(privacy, coordinator=0.0)


def _may_have_asked(run_dir: Path) -> bool:
    """Whether an earlier process of a simulation may have asked hospitals, of which nothing is left to tell.

    Its outcome tells; one that was killed told none, and whatever it may have been sent counts.
    """
    ends = [each for _, each in read_log(run_dir / LOG_NAME) if isinstance(each, LabelStudyRecord | Outcome)]
    before = ends[:-1][-1:]  # the last begins this process
    return any(not isinstance(each, Outcome) or each.privacy.coordinator != 0 for each in before)
