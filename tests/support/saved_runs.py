"""Run directories as a study leaves them, made up in no time: log, study.toml, metrics, labels, no ledger."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from builders import make_sum_terms, make_terms

from pate_fed.config.sections import Queries
from pate_fed.config.study import Study, study_from_dict
from pate_fed.report.accuracy import Accuracy, HowTested
from pate_fed.report.log import Event, RunLog, Taught, Voted, read_result
from pate_fed.report.metrics import write_metrics
from pate_fed.report.result import (
    Epoch,
    Evaluation,
    LabelStudyRecord,
    LeftOut,
    Outcome,
    PrivacyFigures,
    ReleasedBatch,
    Seconds,
    Spending,
    StudyRecord,
)

RECORD = StudyRecord(
    terms=make_terms(study="made-up"),
    dataset="glyph",
    queries=Queries(labels=200, max_queries=1500, rounds=1),
    student="co-teaching",
    backend="grpc",
    test_size=500,
    guaranteed=3.5,
    protects="one record replaced (one vote of a query moves)",
    noise="discrete Gaussian, the operating system's CSPRNG",
    noise_private=True,
)
SUMS = replace(RECORD, terms=make_sum_terms())
LABELS = LabelStudyRecord(
    dataset="glyph",
    protects="one record's label",
    noise="randomised response",
    noise_private=True,
    coordinator="labels",
    coordinator_sees="all labels",
    study="labels",
    mechanism="alibi",
    num_clients=1,
    least_clients=1,
    teachers_per_client=0,
    num_classes=3,
    pool_size=2000,
    pool_digest="11" * 32,
    max_queries=2000,
    labels=2000,
    epsilon=1.0,
    delta=1e-5,
    unit="label",
    adjacency="replace-one",
)


def make_study(**aggregation: Any) -> Study:
    """The resolved study of ten hospitals."""
    study = {"parties": {"num_clients": 10}, "aggregation": aggregation, "privacy": {"allow_weak": True}}
    return study_from_dict(study).resolve()


def make_outcome(*, epsilon: float = 3.5, right: int = 450) -> Outcome:
    """A success whose student got so many of 500 right; what votes tell is 0.123, 0.456 and 2.345."""
    half = right // 2
    return Outcome(
        status="success",
        accuracy=Accuracy(
            teacher_mean=0.1234,
            ensemble=0.4567,
            votes_n=1500,
            labels=0.9,
            labels_n=100,
            labels_majority=0.4,
            student=right / 500,
            student_n=500,
            majority=0.5,
            by_class=((half, 250), (right - half, 250)),
            tested=HowTested(kept=500),
        ),
        privacy=PrivacyFigures(student=epsilon, spent=epsilon - 0.5, data_dependent_do_not_publish=2.3456),
        seconds=Seconds(teach=10.0, vote=2.0, aggregate=0.5, student=30.0, total=50.0),
    )


def events(record: StudyRecord | LabelStudyRecord = RECORD, outcome: Outcome | None = None) -> list[Event]:
    """What a finished run's log holds, in order; `outcome` is its last."""
    fall = [math.exp(-epoch / 3) for epoch in range(8)]
    return [
        record,
        LeftOut(party="hospital-7", phase="vote", reason="no answer within 600 s"),
        Taught(clients=10, seconds=10.0),
        Voted(batch=0, clients=9, queries=200, seconds=2.0),
        ReleasedBatch(batch=0, asked=150, answered=100, epsilon=3.0),
        Evaluation(
            confusion=((40, 5, 0), (2, 30, 3), (0, 0, 20)),
            top_edges=(0, 5, 11),
            top_answered=(31, 69),
            top_refused=(41, 9),
        ),
        *(
            Epoch(epoch=place + 1, test_accuracy=0.9 - 0.4 * each, values={"loss_supervised": 0.2 + each})
            for place, each in enumerate(fall)
        ),
        Spending(asked=(75, 150), answered=(50, 100), epsilon=(2.0, 3.0)),
        make_outcome() if outcome is None else outcome,
    ]


def save_run(folder: Path, told: list[Event], *, study: Study | None = None) -> Path:
    """Write a run's directory; where the last event is no outcome, the run was cut off."""
    folder.mkdir(parents=True)
    if study is not None:
        (folder / "study.toml").write_text(study.to_toml(), encoding="utf-8")
    with RunLog(folder / "log.jsonl") as log:
        for event in told:
            log.write(event)
    if isinstance(told[-1], Outcome):
        label = np.repeat(np.array([0, 1, 2, -1]), [42, 35, 23, 50])
        np.savez(folder / "labels.npz", index=np.arange(150), answered=label >= 0, label=label)
        write_metrics(read_result(folder), folder / "metrics.json")
    return folder
