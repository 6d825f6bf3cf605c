"""The coordinator's student: of the study at its end, and of the labels so far where a round rests on one."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.config.registry import find_part
from pate_fed.config.sections import CLASS_SUMS
from pate_fed.config.study import Study
from pate_fed.data import Dataset
from pate_fed.kinds.make import public_encoder
from pate_fed.learning import STUDENTS, TABLE_STUDENTS
from pate_fed.learning.settings import EpochRecord
from pate_fed.learning.teachers.own import is_network, make_own
from pate_fed.report.log import RunLog
from pate_fed.report.result import Epoch, Samples
from pate_fed.report.terminal import Progress
from server.exchange import Stopped
from server.state import CoordinatorState, StudentPredictions

if TYPE_CHECKING:
    from pate_fed.learning.students.own import FittedStudent
    from pate_fed.learning.students.student import Student
    from pate_fed.learning.teachers.forests import Forest

Ints = NDArray[np.int64]


class Learner:
    """Trains the study's kind of student on public inputs and released labels, int64 (m,) each."""

    def __init__(
        self,
        study: Study,
        dataset: Dataset,
        *,
        log: RunLog,
        progress: Progress,
        stop: threading.Event,
        path: Path,
        state: CoordinatorState,
    ) -> None:
        self._study, self._dataset, self._path, self._state = study, dataset, path, state
        self._log, self._progress, self._stop = log, progress, stop

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
        from pate_fed.learning.memory import release_memory

        release_memory(forget=True)  # there are no more votes
        student = self._learn(index, label, probabilities)
        release_memory()
        return student

    def _learn(
        self, index: Ints, label: Ints, probabilities: NDArray[np.float32] | None
    ) -> Student | Forest | FittedStudent:
        plain = self._plain(index, label, None, probabilities)
        if plain is not None:
            return plain
        student = self._network(index, label, None, probabilities)
        student.class_names = self._dataset.class_names
        if (
            self._study.student.code is None
        ):  # tracing what is not ours may fail, and nothing may after the votes
            student.export(self._path.with_suffix(".ts"))
        images = student.generate(48)
        if images is not None:
            self._log.write(Samples(images=images))
        return student

    def of_pool(self, number: int, index: Ints, label: Ints) -> StudentPredictions:
        """Predictions of the public pool by a student for round `number`, and by what the round chooses.

        Raises:
            Stopped: the user asked to stop.
        """
        from pate_fed.learning import expert_scores

        study, pool = self._study, self._dataset.public_images[: self._dataset.num_queries]
        student = self._plain(index, label, number) or self._network(index, label, number)
        scores = probabilities = student.predict_proba(pool)
        if study.queries.strategy == "binary-experts":
            scores = expert_scores(
                pool,
                index=index,
                labels=label,
                num_classes=self._dataset.num_classes,
                seed=study.seed_for("experts", number),
            )
        return StudentPredictions(probabilities=probabilities, scores=scores)

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
        table = self._study.student.name in TABLE_STUDENTS
        with self._progress.phase("testing", len(parts)) as bar:
            for part in parts:
                if self._stop.is_set():
                    raise Stopped
                others = ~np.isin(index, part)
                if others.any():
                    train = self._train_forest if table else self._train_head
                    told = None if probabilities is None else probabilities[others]
                    student = train(index[others], label[others], None, told)
                    found.append(student.predict(self._dataset.public_images[part]))
                else:
                    found.append(np.full(len(part), -1, dtype=np.int64))
                bar.advance()
        return tuple(found)

    def _plain(
        self, index: Ints, label: Ints, number: int | None, probabilities: NDArray[np.float32] | None = None
    ) -> Forest | FittedStudent | None:
        """A student without epochs; None where a network learns."""
        made = self._make_own() if self._study.student.own else None
        if self._study.student.name not in TABLE_STUDENTS and (made is None or is_network(made)):
            return None
        with self._progress.phase(_name(number), 1) as bar:
            student: Forest | FittedStudent
            if made is None:
                student = self._train_forest(index, label, number, probabilities)
            else:
                student = self._estimator(made, index, label, number, probabilities)
            bar.advance()
        return student

    def _make_own(self) -> Any:
        """A fresh network or estimator of the user's own."""
        dataset, name = self._dataset, self._study.student.code or ""
        return make_own(
            find_part(name, "student"),
            what=f"student {name!r}",
            input_shape=tuple(dataset.public_images.shape[1:]),
            num_classes=dataset.num_classes,
        )

    def _estimator(
        self,
        made: Any,
        index: Ints,
        label: Ints,
        number: int | None,
        probabilities: NDArray[np.float32] | None,
    ) -> FittedStudent:
        from pate_fed.learning.students.own import fit_own_student

        dataset = self._dataset
        student = fit_own_student(
            made,
            dataset.public_images[: dataset.num_queries],
            index,
            label,
            what=f"student {self._study.student.name!r}",
            num_classes=dataset.num_classes,
            seed=self._seed(number),
            probabilities=probabilities,
        )
        student.kept = student.predict_proba(dataset.public_images)
        return student

    def _train_forest(
        self, index: Ints, label: Ints, number: int | None, probabilities: NDArray[np.float32] | None
    ) -> Forest:
        train = find_part(self._study.student.name, "student")
        forest: Forest = train(
            self._dataset.public_images[index],
            label,
            num_classes=self._dataset.num_classes,
            trees=self._study.student.trees,
            seed=self._seed(number),
            probabilities=probabilities,
        )
        return forest

    def _train_head(
        self, index: Ints, label: Ints, number: int | None, probabilities: NDArray[np.float32] | None
    ) -> Student:
        """A student in closed form, which has no epochs to tell of."""
        from pate_fed.learning.students.data import LabelledPool

        dataset, train = self._dataset, find_part(self._study.student.name, "student")
        labelled = LabelledPool(
            images=dataset.public_images[: dataset.num_queries],
            labelled_index=index,
            labels=label,
            num_classes=dataset.num_classes,
            probabilities=probabilities,
        )
        student: Student = train(
            labelled,
            self._study.student,
            seed=self._seed(number),
            device=self._study.engine.device,
            encoder=public_encoder(self._study, dataset),
        )
        return student

    def _network(
        self, index: Ints, label: Ints, number: int | None, probabilities: NDArray[np.float32] | None = None
    ) -> Student:
        from pate_fed.learning.students.data import LabelledPool

        study, dataset = self._study, self._dataset
        train = find_part(STUDENTS[0] if study.student.own else study.student.name, "student")
        pool, truth = dataset.num_queries, dataset.public_labels[index]
        with self._progress.phase(_name(number), study.student.total_epochs) as bar:
            done = 0

            def on_epoch(record: EpochRecord) -> None:
                nonlocal done
                if number is None:
                    self._log.write(Epoch.of(record))
                bar.advance(record.epoch - done)  # several at first, where a killed run goes on
                done = record.epoch
                if self._stop.is_set():
                    raise Stopped

            labelled = LabelledPool(
                images=dataset.public_images[:pool],
                labelled_index=index,
                labels=label,
                num_classes=dataset.num_classes,
                probabilities=probabilities,
                true_labels=truth if (truth >= 0).all() else None,
                test_images=dataset.public_images[pool:],
                test_labels=dataset.public_labels[pool:],
                least_noise=self._least_noise(),
            )
            student: Student = train(
                labelled,
                study.student,
                seed=self._seed(number),
                device=study.engine.device,
                encoder=public_encoder(study, dataset),
                checkpoint=self._state.checkpoint(index, label),
                on_epoch=on_epoch,
                make=self._make_own if study.student.code else None,
            )
            if len(student.history) < study.student.total_epochs:
                bar.advance(0, "ended early: no more of the held-out labels were met")
        return student

    def _least_noise(self) -> float:
        """The share of labels that the noise alone turns; 0 where that is not known."""
        from pate_fed.learning.students.noise_rate import least_noise_rate

        study = self._study
        if study.aggregation.aggregator in ("lnmax", CLASS_SUMS) or study.aggregation.sigma2 is None:
            return 0.0
        return least_noise_rate(
            sigma2=study.aggregation.sigma2,
            num_teachers=study.parties.num_teachers,
            num_classes=self._dataset.num_classes,
        )

    def _seed(self, number: int | None) -> int:
        return self._study.seed_for("student", *([] if number is None else [number]))


def _name(number: int | None) -> str:
    return "learning" if number is None else f"learning, for round {number}"
