"""The coordinator's student, at the end or where a round rests on one, and how it is tested."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from pate_fed.config.registry import find_part
from pate_fed.config.sections import CLASS_SUMS
from pate_fed.config.study import Study
from pate_fed.data import Dataset, first_equal
from pate_fed.data.schema import TARGET_STEPS
from pate_fed.kinds.make import public_encoder
from pate_fed.learning import STUDENTS, TABLE_STUDENTS
from pate_fed.learning.settings import EpochRecord
from pate_fed.learning.teachers.own import is_network, make_own
from pate_fed.report.accuracy import Accuracy, HowTested
from pate_fed.report.labels import LabelFigures
from pate_fed.report.result import Epoch, Samples
from pate_fed.report.targets import TargetFigures
from server.exchange import Stopped
from server.state import StudentPredictions

if TYPE_CHECKING:
    from pate_fed.learning.students.own import FittedStudent
    from pate_fed.learning.students.student import Student
    from pate_fed.learning.teachers.forests import Forest
    from server.kinds.base import RunContext


# Which public inputs test a student, and how: the one rule of it (docs/explanation/student.md).
#
# A part of the pool that is named to test (a known data set's own, or what `data.num_queries` leaves) tests
# alone. Else, until there are 1,000: the inputs that are kept, those that were not asked about, and those
# that were, each told by a student that had not learnt from its label. True labels of public inputs and
# released labels are all that is looked at, so nothing here costs privacy.

Ints = NDArray[np.int64]

ENOUGH = 1000  # test inputs, whose interval is within three points: no others are needed
SPLITS = 10


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TestPart:
    """Places in the public pool, int64 each, no place twice, all with a true label.

    `kept` and `not_asked` are for the published student, each of the parts `left_out` for one that has not
    learnt from its labels.
    """

    __test__ = False  # no test of pytest's

    kept: Ints
    not_asked: Ints
    left_out: tuple[Ints, ...] = ()


def choose_test_part(study: Study, dataset: Dataset, *, asked: Ints) -> TestPart:
    """The inputs that test the student of a study that asked about `asked`, int64 (asked,).

    An input that equals one that was asked about, or is the same patient's, counts as asked about: the
    student may know its label.
    """
    known, kin = dataset.public_labels >= 0, _kin(dataset)
    touched = np.isin(kin, kin[asked])
    kept_place = np.arange(len(known)) >= dataset.num_queries
    none = np.empty(0, dtype=np.int64)
    kept = np.flatnonzero(kept_place & known & ~touched)
    named = not study.data.from_files or study.data.num_queries is not None
    if len(kept) >= ENOUGH or (named and len(kept)):
        return TestPart(kept=kept, not_asked=none)
    not_asked = np.flatnonzero(~kept_place & known & ~touched)
    # What a student chose to ask leaves other inputs, the easier ones, behind.
    at_random = study.queries.strategy == "random"
    if at_random and len(kept) + len(not_asked) >= ENOUGH:
        return TestPart(kept=kept, not_asked=not_asked)
    if not study.cross_validates:
        return TestPart(kept=kept, not_asked=not_asked if at_random else none)
    parts = _split(np.flatnonzero(known & touched), kin, seed=study.seed_for("cross-validation"))
    return TestPart(kept=kept, not_asked=not_asked, left_out=parts)


def _kin(dataset: Dataset) -> Ints:
    """Equal numbers for equal public inputs and for those of one patient: int64 (public,)."""
    first, patients = first_equal(dataset), dataset.public_patients
    if patients is None:
        return first
    rows, (_, patient) = np.arange(len(first)), np.unique(patients, return_inverse=True)
    ends = np.concatenate([first, len(first) + patient])
    graph = coo_array((np.ones(len(ends)), (np.tile(rows, 2), ends)), shape=(2 * len(first), 2 * len(first)))
    return np.asarray(connected_components(graph, directed=False)[1][: len(first)], dtype=np.int64)


def _split(places: Ints, kin: Ints, *, seed: int) -> tuple[Ints, ...]:
    """At random in parts of nearly equal size; what is kin is in the same one."""
    different = np.unique(kin[places])
    if len(different) < 2:
        return ()
    dealt = np.array_split(np.random.default_rng(seed).permutation(different), min(SPLITS, len(different)))
    return tuple(places[np.isin(kin[places], part)] for part in dealt)


def measure_student(
    study: Study,
    dataset: Dataset,
    *,
    asked: Ints,
    predict: Callable[[NDArray[Any]], Ints],
    predict_proba: Callable[[NDArray[Any]], NDArray[Any]] | None = None,
    predict_left_out: Callable[[tuple[Ints, ...]], tuple[Ints, ...]],
) -> Accuracy:
    """The student's accuracy, by the rule above; nothing is known where no public input has a true label.

    `predict` gives the published student's classes of inputs, `predict_proba` their probabilities, where it
    knows any, float (n, classes); `predict_left_out` classes of the inputs in
    each part by a student of the labels outside it, -1 where there is none.
    """
    part = choose_test_part(study, dataset, asked=asked)
    own = np.concatenate([part.kept, part.not_asked])
    places = np.concatenate([own, *part.left_out])
    if not len(places):
        return Accuracy()
    found = [predict(dataset.public_images[own])] if len(own) else []
    found += predict_left_out(part.left_out) if part.left_out else ()
    classes = np.concatenate(found)
    told = classes >= 0
    # A forest learns from labelled rows alone; other students have seen all inputs that may be asked about.
    sees = study.student.name not in TABLE_STUDENTS
    tested = HowTested(
        kept=len(part.kept),
        not_asked=len(part.not_asked),
        left_out=int(told[len(own) :].sum()),
        splits=len(part.left_out),
        seen_unlabelled=int((told & (places < dataset.num_queries)).sum()) if sees else 0,
    )
    accuracy = Accuracy.of_student(classes, dataset.public_labels[places], tested=tested)
    if predict_proba is None or not len(own):
        return accuracy
    rows = dataset.public_images[own]
    return accuracy.with_probabilities(
        predict_proba(rows), dataset.public_labels[own], rows, study.data.table
    )


def measure_target(
    study: Study, dataset: Dataset, numbers: Callable[[NDArray[Any]], NDArray[np.float64]]
) -> Accuracy:
    """How near a student's `numbers` of public inputs with true ones are, by the rule above.

    None of them taught it: all that it knows is the sums.
    """
    places, tested = _none_taught(study, dataset)
    ends = study.data.target_range
    if ends is None or not len(places):
        return Accuracy()
    truth = ends[0] + (ends[1] - ends[0]) * dataset.public_labels[places] / TARGET_STEPS
    figures = TargetFigures.of(numbers(dataset.public_images[places]), truth, ends)
    return Accuracy(target=figures, tested=tested) if figures is not None else Accuracy()


def measure_labels(
    study: Study, dataset: Dataset, predict_proba: Callable[[NDArray[Any]], NDArray[Any]]
) -> Accuracy:
    """How right a student of several labels is on public inputs with true ones, by the rule above.

    `predict_proba` gives each label's probabilities of no and yes, float (n, 2 · labels).
    """
    places, tested = _none_taught(study, dataset)
    assert study.data.table is not None
    names = study.data.table.label_names
    found = predict_proba(dataset.public_images[places]) if len(places) else np.empty((0, 2 * len(names)))
    figures = LabelFigures.of(found[:, 1::2], dataset.public_labels[places], names)
    return Accuracy(by_label=figures, tested=tested) if figures is not None else Accuracy()


def _none_taught(study: Study, dataset: Dataset) -> tuple[Ints, HowTested]:
    """The public inputs that test a student of the sums alone, which none of their labels taught."""
    part = choose_test_part(study, dataset, asked=np.empty(0, dtype=np.int64))
    places = np.concatenate([part.kept, part.not_asked])
    seen = int((places < dataset.num_queries).sum())
    return places, HowTested(kept=len(part.kept), not_asked=len(part.not_asked), seen_unlabelled=seen)


class Learner:
    """Trains the study's kind of student on public inputs and released labels, int64 (m,) each."""

    def __init__(self, study: Study, dataset: Dataset, context: RunContext, *, path: Path) -> None:
        self._study, self._dataset, self._path, self._state = study, dataset, path, context.state
        self._log, self._progress, self._stop = context.log, context.progress, context.stop

    def learn(
        self, index: Ints, label: Ints, probabilities: NDArray[np.float32] | None = None
    ) -> Student | Forest | FittedStudent:
        """The study's student; its epochs are in the log, its TorchScript beside `path` if the code is ours.

        It learns from `probabilities` (m, classes) where labels come with them; an estimator of the user's
        own if its `fit` takes them.

        Raises:
            InputError: a student of the user's own fails.
            Stopped: the user asked to stop.
        """
        from pate_fed.data.dataset import release_memory

        release_memory(forget=True)  # there are no more votes
        lesson = _Lesson(index, label, probabilities)
        student = self._plain(lesson) or self._published(lesson)
        release_memory()
        return student

    def _published(self, lesson: _Lesson) -> Student:
        student = self._network(lesson)
        student.class_names = self._dataset.class_names
        if self._study.student.code is None:  # tracing others' may fail, and nothing may after the votes
            student.export(self._path.with_suffix(".ts"))
        images = student.generate(48)
        if images is not None:
            self._log.write(Samples(images=images))
        return student

    def of_pool(self, number: int, index: Ints, label: Ints) -> StudentPredictions:
        """Predictions of the public pool by a student for round `number`.

        Raises:
            Stopped: the user asked to stop.
        """
        lesson = _Lesson(index, label, number=number)
        student = self._plain(lesson) or self._network(lesson)
        pool = self._dataset.public_images[: self._dataset.num_queries]
        return StudentPredictions(student.predict_proba(pool))

    def predict_left_out(
        self,
        index: Ints,
        label: Ints,
        parts: Sequence[Ints],
        probabilities: NDArray[np.float32] | None = None,
    ) -> tuple[Ints, ...]:
        """Classes of the inputs in each of `parts`, int64 places, by a student of the labels outside it.

        -1 where no label is outside. For students that learn within seconds, as `learn` has it.

        Raises:
            Stopped: the user asked to stop.
        """
        found = list[Ints]()
        train = self._train_forest if self._study.student.name in TABLE_STUDENTS else self._train
        with self._progress.phase("testing", len(parts)) as bar:
            for part in parts:
                if self._stop.is_set():
                    raise Stopped
                others = ~np.isin(index, part)
                if others.any():
                    told = None if probabilities is None else probabilities[others]
                    student = train(_Lesson(index[others], label[others], told))
                    found.append(student.predict(self._dataset.public_images[part]))
                else:
                    found.append(np.full(len(part), -1, dtype=np.int64))
                bar.advance()
        return tuple(found)

    def _plain(self, lesson: _Lesson) -> Forest | FittedStudent | None:
        """A student without epochs; None where a network learns."""
        made = self._make_own() if self._study.student.own else None
        if self._study.student.name not in TABLE_STUDENTS and (made is None or is_network(made)):
            return None
        with self._progress.phase(lesson.name, 1) as bar:
            student: Forest | FittedStudent
            student = self._train_forest(lesson) if made is None else self._estimator(made, lesson)
            bar.advance()
        return student

    def _make_own(self) -> Any:
        """A fresh network or estimator of the user's own."""
        dataset, name = self._dataset, self._study.student.code or ""
        return make_own(
            find_part(name, "student"),
            what=f"student {name!r}",
            input_shape=dataset.input_shape,
            num_classes=dataset.num_classes,
            rows=dataset.public_images.ndim == 2,
        )

    def _estimator(self, made: Any, lesson: _Lesson) -> FittedStudent:
        from pate_fed.learning.students.own import fit_own_student

        dataset = self._dataset
        student = fit_own_student(
            made,
            dataset.public_images[: dataset.num_queries],
            lesson.index,
            lesson.label,
            what=f"student {self._study.student.name!r}",
            num_classes=dataset.num_classes,
            seed=self._seed(lesson),
            probabilities=lesson.probabilities,
        )
        student.kept = student.predict_proba(dataset.public_images)
        return student

    def _train_forest(self, lesson: _Lesson) -> Forest:
        train = find_part(self._study.student.name, "student")
        forest: Forest = train(
            self._dataset.public_images[lesson.index],
            lesson.label,
            num_classes=self._dataset.num_classes,
            trees=self._study.student.trees,
            seed=self._seed(lesson),
            probabilities=lesson.probabilities,
        )
        return forest

    def _train(self, lesson: _Lesson, known: Mapping[str, Any] | None = None, **more: Any) -> Student:
        """A student that sees the whole pool, and what else of it is `known`; `more` is of its epochs."""
        from pate_fed.learning.students.trainer import LabelledPool

        study, dataset = self._study, self._dataset
        train = find_part(STUDENTS[0] if study.student.own else study.student.name, "student")
        labelled = LabelledPool(
            images=dataset.public_images[: dataset.num_queries],
            labelled_index=lesson.index,
            labels=lesson.label,
            num_classes=dataset.num_classes,
            probabilities=lesson.probabilities,
            **(known or {}),
        )
        student: Student = train(
            labelled,
            study.student,
            seed=self._seed(lesson),
            device=study.engine.device,
            encoder=public_encoder(study, dataset),
            **more,
        )
        return student

    def _network(self, lesson: _Lesson) -> Student:
        study, dataset = self._study, self._dataset
        pool, truth = dataset.num_queries, dataset.public_labels[lesson.index]
        known = {
            "true_labels": truth if (truth >= 0).all() else None,
            "test_images": dataset.public_images[pool:],
            "test_labels": dataset.public_labels[pool:],
            "least_noise": self._least_noise(),
        }
        with self._progress.phase(lesson.name, study.student.total_epochs) as bar:
            done = 0

            def on_epoch(record: EpochRecord) -> None:
                nonlocal done
                if lesson.number is None:
                    self._log.write(Epoch.of(record))
                bar.advance(record.epoch - done)  # several at first, where a killed run goes on
                done = record.epoch
                if self._stop.is_set():
                    raise Stopped

            return self._train(
                lesson,
                known,
                checkpoint=self._state.checkpoint(lesson.index, lesson.label),
                on_epoch=on_epoch,
                make=self._make_own if study.student.code else None,
            )

    def _least_noise(self) -> float:
        """The share of labels that the noise alone turns; 0 where that is not known."""
        from pate_fed.learning.students.train import least_noise_rate

        study = self._study
        if study.aggregation.aggregator in ("lnmax", CLASS_SUMS) or study.aggregation.sigma2 is None:
            return 0.0
        return least_noise_rate(
            sigma2=study.aggregation.sigma2,
            num_teachers=study.parties.num_teachers,
            num_classes=self._dataset.num_classes,
        )

    def _seed(self, lesson: _Lesson) -> int:
        return self._study.seed_for("student", *([] if lesson.number is None else [lesson.number]))


@dataclass(frozen=True, slots=True, eq=False)
class _Lesson:
    """What a student learns from, as `Learner.learn` has it, and for which round; None: for the end."""

    index: Ints
    label: Ints
    probabilities: NDArray[np.float32] | None = None
    number: int | None = None

    @property
    def name(self) -> str:
        return "learning" if self.number is None else f"learning, for round {self.number}"
