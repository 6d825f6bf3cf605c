"""Votes at the coordinator: batch by batch, from what the ledger holds; noisy winners; a student of them.

The one place where votes become public. Nothing data-dependent decides whether it goes on: the filter runs on
what was asked and answered, both of which are released anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.config.study import Study
from pate_fed.data import repeated_inputs
from pate_fed.errors import InputError, IntegrityError
from pate_fed.format import counted, wilson_interval
from pate_fed.kinds.terms import Terms
from pate_fed.kinds.votes import Mechanism, VoteTerms, make_interactive, make_mechanism
from pate_fed.learning.students.query_selection import PublicView, choose_by_own
from pate_fed.privacy import Ledger, NoiseSource
from pate_fed.privacy.ledger.rows import Provenance
from pate_fed.protocol.messages import Question
from pate_fed.report.log import read_log
from pate_fed.report.result import Outcome, PrivacyFigures
from pate_fed.runtime.run_dir import LOG_NAME
from pate_fed.structure.parts import load_part
from server.figures import analysts_epsilon, measure, publishable_epsilon, spending_curve
from server.kinds.base import StudyCourse
from server.kinds.rounds import QueryRound, QueryRounds
from server.release import Release, ReleaseFailedError
from server.state import SanitisedDraw, StudentPredictions, Totals

if TYPE_CHECKING:
    from pate_fed.learning.students.own import FittedStudent
    from pate_fed.learning.students.student import Student
    from pate_fed.learning.teachers.forests import Forest

Ints = NDArray[np.int64]

_FEW = 50  # queries that are worth a batch of their own under hospitals' noise
ENOUGH = 20  # inputs of a class that were asked about, or labels a class, before anything is said
MUCH = 0.75  # of the others' share of answers; below it a class counts as refused
MOST_NAMES = 3


class LabelReleaser:
    """Totals in, labels out, until labels, queries or budget are used up."""

    def __init__(self, terms: Terms, mechanism: Mechanism, *, noise: NoiseSource, ledger: Ledger) -> None:
        self._terms, self._mechanism, self._noise, self._ledger = terms, mechanism, noise, ledger
        self._against = make_interactive(terms)

    @property
    def labels_left(self) -> int:
        """Labels that may still be released."""
        return self._terms.labels - self._ledger.answered

    def room(self, queries: int) -> int:
        """How many of the next `queries` may be asked; 0 ends the study's questions."""
        if self.labels_left <= 0:
            return 0
        queries = min(queries, self._terms.max_queries - self._ledger.asked)
        if self._terms.adds_noise:
            # What is asked is paid in full, so little more than the labels left is asked at once.
            few = 0 if VoteTerms.of(self._terms).aggregation.aggregator == "gnmax" else _FEW
            queries = min(queries, max(self.labels_left, few))
        terms = self._ledger.terms
        budget = terms.budget
        if budget is None or queries <= 0 or terms.caps_keep_budget:
            return max(0, queries)
        return budget.affordable(
            self._mechanism, charged=self._ledger.charged, queries=queries, max_answers=self.labels_left
        )

    def draw(
        self,
        totals: Totals,
        *,
        provenance: Provenance | None = None,
        predictions: NDArray[np.float32] | None = None,
    ) -> Release:
        """Label one batch, in memory: nothing may be used before it is charged.

        At most `room` queries are meant. `provenance` names the student that had a part in the batch;
        `predictions`, float32 (queries, classes), are its probabilities where it is the reference.

        Raises:
            ReleaseFailedError: a mechanism that is none of ours fails.
        """
        draw = self._mechanism.release
        if predictions is not None and self._against is not None:
            draw = partial(self._against.release, predictions=predictions)
        try:
            release = draw(
                totals.value,
                self._noise,
                max_answers=self.labels_left,
                protection=self._ledger.terms.protection,
                coordinator=self._terms.view(totals.voters),
            )
        except IntegrityError as error:
            raise ReleaseFailedError(str(error)) from error
        return Release(
            event=release.event,
            index=totals.index[: release.asked],
            label=release.label,
            provenance=provenance,
        )

    def void(self, index: Ints) -> Release:
        """A batch that was asked and gave nothing; it is never asked again.

        It counts as asked and not answered, with the fewest parties that a batch may have: votes may be on
        their way, and what becomes of them is not in this program's hands any more.
        """
        nothing = np.full(len(index), -1, dtype=np.int64)
        return Release.of(self._ledger.terms, self._mechanism, index, nothing)


class VoteCourse(StudyCourse):
    """The course of a study with votes. `totals` are private, by their batches' digests."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._releaser = LabelReleaser(
            self._terms, make_mechanism(self._terms), noise=self._noise, ledger=self._ledger
        )
        pool = self._dataset.num_queries
        self._repeated = repeated_inputs(self._dataset)[:pool]
        self.rounds = QueryRounds(
            self._study.queries,
            self._ledger,
            self._state,
            order=_asking_order(self._study, pool, self._repeated),
            against=make_interactive(self._terms),
            learn=self._learn_predictions,
            own=self._choose_by_own if self._study.queries.own_strategy else None,
        )
        self.rounds.reinforced()  # a damaged file of an earlier round is found before anything is asked
        self.totals = self._kept_totals()
        self._beside = self._test_inputs()
        self._evaluated: Totals | None = None

    # Ask.

    def next_question(self, number: int) -> Question | None:
        """One batch after another, until labels, queries or the budget are used up.

        A batch's size is what the budget holds for certain. The first names the test inputs too: a message
        more to each party, and under masks a sum more, would cost far more than rows.
        """
        left = self._dataset.num_queries - int(self._repeated.sum()) - self._ledger.asked
        size = self.rounds.limit(self._releaser.room(min(self._study.queries.batch_size, left)))
        if not size:
            return None
        beside, self._beside = self._beside, self._beside[:0]
        index = np.concatenate([self.rounds.choose(size), beside])
        return self._question(number, index, measured=len(beside))

    def task(self, question: Question) -> str:
        """A batch by its number."""
        return f"voting, batch {question.batch + 1}"

    def _test_inputs(self) -> Ints:
        """Places of the test inputs where teachers are measured on them: two accuracies, nothing released."""
        pool, inputs = self._dataset.num_queries, len(self._dataset.public_labels)
        # A vote under hospitals' noise costs whether or not anything is released.
        wanted = self._study.queries.evaluate and not self._terms.adds_noise
        return np.arange(pool, inputs if wanted else pool, dtype=np.int64)

    def _choose_by_own(self, left: Ints, wanted: int, index: Ints, label: Ints, present: QueryRound) -> Ints:
        """The next questions by a strategy of the user's own, which is shown nothing but what is public."""
        name, dataset, told = self._study.queries.strategy, self._dataset, present.predictions
        seen = PublicView(
            inputs=dataset.public_images[: dataset.num_queries],
            left=left,
            index=index,
            labels=label,
            probabilities=None if told is None else told.probabilities.copy(),
            num_classes=dataset.num_classes,
            wanted=wanted,
            seed=self._study.seed_for("strategy", present.number, dataset.num_queries - len(left)),
        )
        return choose_by_own(load_part(name, "query strategy"), seen, name=name)

    # Release.

    def release(self, question: Question, totals: Totals) -> Release:
        """Add noise to one batch's totals, and take the winners."""
        return self._releaser.draw(
            totals,
            provenance=self.rounds.current().provenance,
            predictions=self.rounds.predictions(question.released),
        )

    def void(self, question: Question) -> Release:
        """A batch without labels."""
        return self._releaser.void(question.released)

    def released(self, question: Question, totals: Totals) -> None:
        """Keep the totals for figures."""
        self.totals[question.digest] = totals

    def measured(self, totals: Totals) -> None:
        """Keep votes on test inputs for figures."""
        self._evaluated = totals

    def _kept_totals(self) -> dict[str, Totals]:
        """Totals of what an earlier process released; where they are damaged, figures do without."""
        found: dict[str, Totals] = {}
        for digest in (entry.batch_digest for entry in self._ledger.entries()):
            with suppress(IntegrityError):
                totals = self._state.totals(digest)
                found |= {} if totals is None else {digest: totals}
        return found

    # Measure and learn.

    def measure(self) -> None:
        """Accuracy of teachers, ensemble and labels, where the public inputs' true labels are known."""
        found = measure(
            self._ledger,
            self.totals,
            self._evaluated,
            truth=self._dataset.public_labels,
            num_teachers=self._study.parties.num_teachers,
            exact=not self._terms.adds_noise,
        )
        if found is not None:
            self.figures.accuracy, evaluation = found
            self._log.write(evaluation)

    def learn(self) -> None:
        """Train the student on released labels and all public inputs; test it by the rule of `testing`."""
        asked, answered, _ = self._ledger.released()
        if not answered.any():
            threshold = VoteTerms.of(self._terms).aggregation.threshold
            raise InputError(
                f"none of {len(answered)} queries was answered, so nothing can be learnt: the "
                f"threshold of {threshold:g} votes is out of these teachers' reach (--threshold)"
            )
        with self.figures.timed("student"):
            index, label = self.rounds.labels()
            student = self._learner.learn(index, label)
        student.save(self._setup.student_path)
        self.figures.student = student
        self.figures.cautions = self._cautions(student)
        self._measure_student(student, asked=asked, index=index, label=label)

    def _cautions(self, student: Student | Forest | FittedStudent) -> tuple[str, ...]:
        index, answered, label = self._ledger.released()
        return refusal_warnings(
            answered=answered,
            label=label,
            said=student.predict(self._dataset.public_images[index]),
            class_names=self._dataset.class_names,
        )

    def _learn_predictions(self, number: int, index: Ints, label: Ints) -> StudentPredictions:
        with self.figures.timed("student"):
            return self._learner.of_pool(number, index, label)

    # Figures of exact totals.

    def private_figures(self, privacy: PrivacyFigures, *, complete: bool) -> PrivacyFigures:
        """The analyst's ε, and the sanitised one of a study that came to its end."""
        mechanism = make_interactive(self._terms) or make_mechanism(self._terms)
        analysts = analysts_epsilon(mechanism, self._ledger, self.totals, self.rounds)
        privacy = replace(privacy, data_dependent_do_not_publish=analysts)
        drawn = self._drawn()
        if drawn is None and complete:
            drawn = publishable_epsilon(mechanism, self._ledger, self.totals, self._noise)
            if drawn is not None:
                self._state.keep_sanitised(drawn)
        if drawn is None:
            return privacy
        return replace(privacy, sanitised=drawn.epsilon, sanitised_sd=drawn.deviation_do_not_publish)

    def _drawn(self) -> SanitisedDraw | None:
        """The sanitised ε that an earlier process drew, or told: it is paid for once."""
        if self._ledger.terms.sanitise is None:
            return None
        told = (
            SanitisedDraw(epsilon=each.privacy.sanitised, deviation_do_not_publish=each.privacy.sanitised_sd)
            for _, each in read_log(self._setup.run_dir / LOG_NAME)
            if isinstance(each, Outcome) and each.privacy.sanitised is not None
        )
        return self._state.sanitised or next(told, None)

    def more_labels(self) -> dict[str, Ints]:
        """Of interactive rounds the students' own labels that the teachers did not contradict."""
        if make_interactive(self._terms) is None:
            return {}
        return {"reinforced": self.rounds.reinforced()}

    def log_spending(self) -> None:
        """ε along the run."""
        self._log.write(spending_curve(self._ledger))


def _asking_order(study: Study, pool: int, repeated: NDArray[np.bool_]) -> Ints:
    """Places in the order in which they are asked about, but for inputs that are the same as an earlier one.

    Data of one's own may be sorted by anything, so they are asked about at random, fixed by the study.
    """
    order = np.arange(pool, dtype=np.int64)
    if study.data.from_files or study.data.own:
        order = np.random.default_rng(study.seed_for("queries")).permutation(pool)
    return order[~repeated[order]]


def refusal_warnings(
    *,
    answered: NDArray[np.bool_],
    label: NDArray[np.int64],
    said: NDArray[np.int64],
    class_names: Sequence[str],
) -> tuple[str, ...]:
    """A sentence on classes whose inputs are seldom answered, and one on classes without any label.

    A threshold answers where teachers agree, and they agree least on a class of which they have few records.
    No vote and no true label is used: what was asked and answered is public, and so is what the student says.

    `said` is what the student says of each input that was asked about, `label` its released label where
    `answered`; all (asked,). A class is told of where its share of answers is below three quarters of the
    others', by the upper end of its 95 % interval (Wilson).
    """
    found = []
    refused = [each for each in range(len(class_names)) if _is_refused(answered, said == each)]
    if refused:
        own = np.isin(said, refused)
        share, others = (float(answered[kind].mean()) for kind in (own, ~own))
        found.append(
            f"The threshold refuses {_names(refused, class_names)}: of the inputs that the student takes for "
            f"{_it(refused)} {share:.0%} were answered, of the others {others:.0%}. A lower --threshold, or "
            "--query-strategy class-balanced, gives more labels there."
        )
    counts = np.bincount(label[answered], minlength=len(class_names))
    missing = np.flatnonzero(counts == 0).tolist()
    if missing and counts.sum() >= ENOUGH * len(class_names):
        labels = counted(int(counts.sum()), "label")
        found.append(
            f"None of {labels} is {_names(missing, class_names)}: the student cannot tell {_it(missing)}."
        )
    return tuple(found)


def _is_refused(answered: NDArray[np.bool_], own: NDArray[np.bool_]) -> bool:
    if min(own.sum(), (~own).sum()) < ENOUGH:
        return False
    share, others = (float(answered[kind].mean()) for kind in (own, ~own))
    return wilson_interval(share, int(own.sum()))[1] < MUCH * others


def _it(classes: Sequence[int]) -> str:
    return "it" if len(classes) == 1 else "them"


def _names(classes: Sequence[int], class_names: Sequence[str]) -> str:
    names = [class_names[each] for each in classes[:MOST_NAMES]]
    more = len(classes) - len(names)
    noun = "class" if len(classes) == 1 else "classes"
    return f"{noun} {', '.join(names)}" + (f" and {more} more" if more else "")
