"""What a run leaves for people and programs: log, metrics, report, progress on the terminal.

Nothing heavy is imported here; jinja2 and rich are imported where they are used.
"""

from __future__ import annotations

from pate_fed.report.html import render_report, write_report
from pate_fed.report.log import Event, PartyWork, RunLog, Taught, Voted, read_log, read_result
from pate_fed.report.metrics import (
    collect_versions,
    make_metrics,
    outcome_json,
    outcome_line,
    write_metrics,
)
from pate_fed.report.result import (
    Accuracy,
    Epoch,
    Evaluation,
    LabelStudyRecord,
    LeftOut,
    Outcome,
    PrivacyFigures,
    ReleasedBatch,
    RunResult,
    Samples,
    Seconds,
    Spending,
    StudyRecord,
    count_confusion,
    count_top_votes,
)
from pate_fed.report.terminal import Phase, Progress, counted_phase, make_progress, print_summary

__all__ = [
    "Accuracy",
    "Epoch",
    "Evaluation",
    "Event",
    "LabelStudyRecord",
    "LeftOut",
    "Outcome",
    "PartyWork",
    "Phase",
    "PrivacyFigures",
    "Progress",
    "ReleasedBatch",
    "RunLog",
    "RunResult",
    "Samples",
    "Seconds",
    "Spending",
    "StudyRecord",
    "Taught",
    "Voted",
    "collect_versions",
    "count_confusion",
    "count_top_votes",
    "counted_phase",
    "make_metrics",
    "make_progress",
    "outcome_json",
    "outcome_line",
    "print_summary",
    "read_log",
    "read_result",
    "render_report",
    "write_metrics",
    "write_report",
]
