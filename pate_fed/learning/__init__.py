"""Teachers that vote and students that learn from released labels; knows nothing of privacy or federation.

Settings are here, light to import; networks, teachers, students and features are in the rooms below and need
torch.

Begin with `settings.py`: the names of all built-in teachers and students. `tensors.py` turns images and
rows into what a model takes, and writes and reads models without pickle.
"""

from __future__ import annotations

from pate_fed.learning.settings import (
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

__all__ = [
    "RIDGE",
    "STRATEGIES",
    "STUDENTS",
    "TABLE_STUDENTS",
    "TABLE_TEACHERS",
    "TEACHERS",
    "EpochRecord",
    "StudentSettings",
    "TeacherSettings",
    "choose_order",
]
