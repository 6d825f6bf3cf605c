"""Teachers that vote and students that learn from released labels; knows nothing of privacy or federation.

Settings are here, light to import; networks, teachers and students are in the rooms below and need torch.
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
from pate_fed.learning.students.query_selection import STRATEGIES, choose_order, expert_scores

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
    "expert_scores",
]
