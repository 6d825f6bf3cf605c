"""What a coordinator asks, releases and learns, a file a kind.

`base.py` is what every kind has; admission, masks, charge, presence and going on stand in `server/` and ask
it. `rounds.py` is of votes: rounds of questions that a student of the labels so far shapes.
"""

from __future__ import annotations

from server.kinds.base import Course, Figures, RunContext, Setup, StudySetup
from server.kinds.labels import LabelCourse
from server.kinds.own import OwnCourse
from server.kinds.sums import RoundCourse, ScoredCourse, SumCourse
from server.kinds.votes import VoteCourse

__all__ = ["COURSES", "Course", "Figures", "RunContext", "Setup", "StudySetup"]

COURSES: dict[str, type[Course]] = {
    "votes": VoteCourse,
    "class-sums": SumCourse,
    "sums-in-rounds": RoundCourse,
    "sums-and-scores": ScoredCourse,
    "private-labels": LabelCourse,
    "own": OwnCourse,
}
"""The courses of the kinds, by their names."""
