"""The student of the user's own of a run that was read again: its code is named by whoever runs it.

A run's files are data, and may be anybody's: no code is taken from them, none is found by what they name.
A network gets the weights that were kept. An estimator has no file that is safe to read: it learns again from
the released labels and the public inputs, with the run's seed, and is held against what the first one said.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pate_fed.config.data import load_study_data
from pate_fed.config.study import read_study
from pate_fed.errors import InputError, IntegrityError
from pate_fed.kinds.sums import SumTerms
from pate_fed.learning.students.own import PREDICTIONS, FittedStudent, fit_own_student
from pate_fed.learning.teachers.own import is_network, make_own
from pate_fed.report.result import StudyRecord
from pate_fed.structure.parts import full_name, load_part, part_identity, require_same_part

if TYPE_CHECKING:
    from pate_fed.kinds.terms import Terms
    from pate_fed.learning.students.student import Student
    from pate_fed.report.run import Run

_NEAR = 1e-4


def own_student(run: Run, part: Any) -> Student | FittedStudent:
    """The student of a run whose code is `part`: its name, or the object, class or function itself.

    Raises:
        InputError: the run's student is another, the code cannot be loaded or learns something else, or the
            public inputs are not there any more.
        IntegrityError: the code's source is not the one that ran, or a file is damaged.
    """
    study, named = run.result.study, isinstance(part, str)
    known = study.student_part if isinstance(study, StudyRecord) else None
    name = study.student if known is None else known.name
    if not isinstance(study, StudyRecord) or (named and full_name(part, "student") != name):
        raise InputError(f"student {part!r}: the student of {run.path} is {name}")
    if named and known is not None:
        require_same_part(part_identity(part, "student"), known)
    what, classes = f"student {name!r}", study.terms.num_classes
    code = load_part(part, "student") if named else part
    made = make_own(code, what=what, input_shape=study.terms.image_shape, num_classes=classes)
    if is_network(made):
        from pate_fed.learning.students.student import Student

        return Student.load(run.path / "student.pt", network=made)
    if not (run.path / PREDICTIONS).is_file():
        raise InputError(f"{what}: fits, and the one of {run.path} is a network, whose weights are kept")
    return _learnt_again(run, study.terms, made, what)


def _learnt_again(run: Run, terms: Terms, made: Any, what: str) -> FittedStudent:
    study = read_study(run.path / "study.toml").resolve()
    dataset = load_study_data(study)
    if dataset.pool_digest != terms.pool_digest:
        raise InputError(f"{run.path / 'study.toml'}: its public inputs are not those of the run any more")
    if isinstance(terms.asks, SumTerms) and "probabilities" in inspect.signature(made.fit).parameters:
        raise InputError(
            f"{what}: learnt from probabilities that the noisy sums gave, which no file keeps; the run that "
            "`simulate` gave has the student itself"
        )
    answered = run.labels.answered
    student = fit_own_student(
        made,
        dataset.public_images[: dataset.num_queries],
        run.labels.index[answered],
        run.labels.label[answered],
        what=what,
        num_classes=terms.num_classes,
        seed=study.seed_for("student"),
    )
    student.kept = _kept(run.path / PREDICTIONS)
    found = student.predict_proba(dataset.public_images)
    if found.shape != student.kept.shape or not np.allclose(found, student.kept, atol=_NEAR):
        raise InputError(
            f"{what}: learns something else from the same labels than in the run: is it another version of "
            "its library, or does something in it follow from no seed (random_state)?"
        )
    return student


def _kept(path: Path) -> Any:
    try:
        with np.load(path, allow_pickle=False) as held:
            return held["probabilities"]
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise IntegrityError(f"{path}: damaged") from error
