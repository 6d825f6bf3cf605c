"""Teachers that vote and students that learn from released labels; knows nothing of privacy or federation.

Settings import at once; whatever needs torch is loaded when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pate_fed.learning.choosing import STRATEGIES, choose_order
from pate_fed.learning.settings import (
    STUDENTS,
    TABLE_STUDENTS,
    TABLE_TEACHERS,
    TEACHERS,
    EpochRecord,
    StudentSettings,
    TeacherSettings,
)

if TYPE_CHECKING:
    from pate_fed.learning.device import resolve_device
    from pate_fed.learning.experts import expert_scores
    from pate_fed.learning.features import Encoder, encoder_for, fit_encoder
    from pate_fed.learning.forests import Forest, train_forest
    from pate_fed.learning.noise_rate import estimate_noise_rate, least_noise_rate
    from pate_fed.learning.student import Student
    from pate_fed.learning.teachers import Teacher, train_teacher
    from pate_fed.learning.training import train_student

__all__ = [
    "STRATEGIES",
    "STUDENTS",
    "TABLE_STUDENTS",
    "TABLE_TEACHERS",
    "TEACHERS",
    "Encoder",
    "EpochRecord",
    "Forest",
    "Student",
    "StudentSettings",
    "Teacher",
    "TeacherSettings",
    "choose_order",
    "encoder_for",
    "estimate_noise_rate",
    "expert_scores",
    "fit_encoder",
    "least_noise_rate",
    "resolve_device",
    "train_forest",
    "train_student",
    "train_teacher",
]

_LAZY = {
    "Encoder": "features",
    "Forest": "forests",
    "train_forest": "forests",
    "Student": "student",
    "encoder_for": "features",
    "expert_scores": "experts",
    "fit_encoder": "features",
    "train_student": "training",
    "estimate_noise_rate": "noise_rate",
    "least_noise_rate": "noise_rate",
    "Teacher": "teachers",
    "train_teacher": "teachers",
    "resolve_device": "device",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
