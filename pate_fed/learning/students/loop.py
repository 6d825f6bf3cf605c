"""The loop over a student's stages and epochs: measure, stop early, keep a checkpoint, cleanse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from pate_fed.learning.settings import EpochRecord, StudentSettings
from pate_fed.learning.students.checkpoint import Checkpoint
from pate_fed.learning.students.cleansing import most_suspected
from pate_fed.learning.students.early_stopping import EarlyStop
from pate_fed.learning.students.learner import Learner
from pate_fed.learning.students.sets import Sets
from pate_fed.learning.students.student import Student

__all__ = ["StudentTraining", "run_stages"]

Measure = Callable[[Student], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudentTraining:
    """What the loop is given: how a stage's learner is made, and how its student is measured and told of.

    `tested` measures on the test part, which is only shown; `held_out` on the labels that do not teach, which
    ends a stage; either gives None where there is no such part.
    """

    settings: StudentSettings
    image_shape: tuple[int, int, int]
    num_classes: int
    learner_for: Callable[[Sets], Learner]
    tested: Measure
    held_out: Measure
    held_out_count: int
    on_epoch: Callable[[EpochRecord], None] | None

    def student_of(self, learner: Learner, history: list[EpochRecord]) -> Student:
        """The student that answers with what `learner` has learnt so far."""
        return Student(
            learner.averages,
            learner.generator,
            settings=self.settings,
            image_shape=self.image_shape,
            num_classes=self.num_classes,
            device=str(learner.device),
            history=history,
        )


def run_stages(run: StudentTraining, saved: Checkpoint, sets: Sets) -> Student:
    """All stages from where `saved` stands; between them PATE++ takes off the labels it suspects most.

    Raises:
        PateFedError: a loss or a weight is no longer finite; the error names the epoch and which.
    """
    for stage in range(saved.stage, run.settings.stages + 1):
        left = sets if saved.removed is None else sets.without(saved.removed.to(sets.labels.device))
        student, table = _run_stage(run, saved, left, stage)
        if stage < run.settings.stages and table is not None:
            saved.removed = most_suspected(table, share=run.settings.tau)
    student.removed = None if saved.removed is None else saved.removed.cpu().numpy()
    return student


def _run_stage(
    run: StudentTraining, saved: Checkpoint, sets: Sets, stage: int
) -> tuple[Student, Tensor | None]:
    """One student from scratch, and how often each of its labelled samples was suspected."""
    settings, history = run.settings, saved.history
    learner, stop = run.learner_for(sets), EarlyStop(settings.patience, count=run.held_out_count)
    student = run.student_of(learner, history)
    epoch = saved.restore(learner, stop)
    while epoch < settings.stage_epochs and not stop.over:
        epoch += 1
        record = learner.run_epoch(epoch, sets)
        met = run.held_out(student)
        stop.see(met, learner)
        last = epoch == settings.stage_epochs or stop.over
        accuracy = run.tested(student) if last or epoch % settings.test_every == 0 else None
        history.append(_counted(record, settings, epoch=len(history) + 1, stage=stage))
        history[-1] = replace(history[-1], test_accuracy=accuracy, held_out_share=met)
        saved.write(stage, epoch, learner, stop)
        if run.on_epoch is not None:
            run.on_epoch(history[-1])
    stop.put_back(learner)
    student.check_weights()
    return student, learner.table


def _counted(record: EpochRecord, settings: StudentSettings, *, epoch: int, stage: int) -> EpochRecord:
    """The record with its place among all epochs (losses and rates went by the stage's own), β and τ."""
    return replace(
        record,
        epoch=epoch,
        stage=stage,
        noise_rate=settings.beta if settings.co_teaching else None,
        removal=settings.tau if settings.stages > 1 else None,
    )
