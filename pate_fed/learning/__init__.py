"""Teachers that vote and students that learn from released labels; knows nothing of privacy or federation.

Settings are here, light to import; networks, teachers, students and features are in the rooms below and need
torch.

Begin with `settings.py`: the names of all built-in teachers and students. `tensors.py` turns images and
rows into what a model takes, and writes and reads models without pickle.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from pate_fed.learning.settings import (
    ADDITIONS,
    PUBLISHED,
    RIDGE,
    STUDENTS,
    TABLE_STUDENTS,
    TABLE_TEACHERS,
    TEACHERS,
    EpochRecord,
    StudentSettings,
    TeacherSettings,
)
from pate_fed.learning.students.query_selection import STRATEGIES, choose_order

if TYPE_CHECKING:
    from pate_fed.learning.networks.encoder import Encoder, fit_encoder
    from pate_fed.learning.students.student import Student
    from pate_fed.learning.students.train import train_student
    from pate_fed.learning.students.trainer import LabelledPool
    from pate_fed.learning.teachers.batched import train_many
    from pate_fed.learning.teachers.forests import train_forest
    from pate_fed.learning.teachers.network import train_teacher

__all__ = [
    "ADDITIONS",
    "PUBLISHED",
    "RIDGE",
    "STRATEGIES",
    "STUDENTS",
    "TABLE_STUDENTS",
    "TABLE_TEACHERS",
    "TEACHERS",
    "Encoder",
    "EpochRecord",
    "LabelledPool",
    "Student",
    "StudentSettings",
    "TeacherSettings",
    "choose_order",
    "fit_encoder",
    "train_forest",
    "train_many",
    "train_student",
    "train_teacher",
]

_PLACES = {
    "networks.encoder": "Encoder fit_encoder",
    "students.student": "Student",
    "students.train": "train_student",
    "students.trainer": "LabelledPool",
    "teachers.batched": "train_many",
    "teachers.forests": "train_forest",
    "teachers.network": "train_teacher",
}


def __getattr__(name: str) -> object:
    """What needs torch, imported when it is first asked for."""
    for place, names in _PLACES.items():
        if name in names.split():
            return getattr(import_module(f"{__name__}.{place}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
