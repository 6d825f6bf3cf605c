"""A made-up but plausible run: 250 hospitals, ten classes, Confident-GNMax, a co-teaching student."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from builders import make_terms
from saved_runs import events, make_study, save_run

from pate_fed.config.sections import Queries
from pate_fed.report.accuracy import Accuracy, HowTested
from pate_fed.report.result import (
    Epoch,
    Evaluation,
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

BY_CLASS = (
    *((108, 112), (95, 100), (98, 101), (90, 99), (96, 98)),
    *((91, 97), (60, 98), (92, 99), (88, 98), (86, 98)),
)
CLASSES = ("A", "B", "C", "D", "E", "F", "G", "H", "I", "J")


def _record() -> StudyRecord:
    terms = make_terms(
        study="glyph-250",
        num_clients=250,
        least_clients=200,
        num_classes=10,
        classes=CLASSES,
        pool_size=10_000,
        pool_digest="9f2c" * 16,
        threshold=200.0,
        sigma1=150.0,
        sigma2=40.0,
        labels=1000,
        max_queries=9000,
    )
    return StudyRecord(
        terms=terms,
        dataset="glyph",
        queries=Queries(labels=1000, max_queries=9000, rounds=1),
        student="co-teaching",
        backend="ray",
        protects="one record replaced (one vote of a query moves)",
        noise="discrete Gaussian, the operating system's CSPRNG",
        noise_private=True,
        versions={"pate_fed": "0.1.0", "flwr": "1.39.0", "torch": "2.15.0"},
    )


def _releases(answered_in_all: int) -> tuple[ReleasedBatch, ...]:
    releases, rho, first = [], 0.0, answered_in_all * 2 // 5
    batches = [(1000, first), (1000, first - 11), (478, answered_in_all - 2 * first + 11)]
    for batch, (asked, answered) in enumerate(batches):
        rho += asked / (2 * 150**2) + answered / 40**2
        epsilon = rho + 2 * math.sqrt(rho * math.log(1e5))
        releases.append(ReleasedBatch(batch=batch, asked=asked, answered=answered, epsilon=epsilon))
    return tuple(releases)


def _spending(releases: tuple[ReleasedBatch, ...]) -> Spending:
    ends = range(1, len(releases) + 1)
    return Spending(
        asked=tuple(sum(release.asked for release in releases[:end]) for end in ends),
        answered=tuple(sum(release.answered for release in releases[:end]) for end in ends),
        epsilon=tuple(release.epsilon for release in releases),
    )


def _evaluation(rng: np.random.Generator) -> Evaluation:
    queries = 2478
    truth = rng.integers(0, 10, queries)
    agreement = np.clip(rng.beta(5, 2, queries), 0.2, 0.99)
    totals = np.stack([rng.multinomial(250, _votes(t, a)) for t, a in zip(truth, agreement, strict=True)])
    answered = totals.max(axis=1) + rng.normal(0, 150, queries) >= 200
    label = np.where(answered, (totals + rng.normal(0, 40, totals.shape)).argmax(axis=1), -1)
    return Evaluation(
        confusion=count_confusion(truth, label, num_classes=10),
        **count_top_votes(totals, answered, num_teachers=250),
    )


def _votes(truth: int, agreement: float) -> np.ndarray:
    shares = np.full(10, (1 - agreement) / 10)
    shares[(truth + 3) % 10] += (1 - agreement) / 3
    shares[truth] += 1 - shares.sum()
    return shares


def _epochs(rng: np.random.Generator) -> tuple[Epoch, ...]:
    epochs = []
    for epoch in range(1, 31):
        fall = math.exp(-epoch / 8)
        values = {
            "loss_supervised": 0.25 + 1.6 * fall + 0.03 * rng.normal(),
            "loss_unsupervised": 0.45 + 0.4 * fall + 0.02 * rng.normal(),
            "loss_generator": 0.9 - 0.5 * fall + 0.04 * rng.normal(),
            "kept_share": 1 - 0.2 * min(epoch / 15, 1),
            "disagreements": round(40 + 500 * fall),
        }
        epochs.append(
            Epoch(epoch=epoch, test_accuracy=0.91 - 0.35 * fall + 0.006 * rng.normal(), values=values)
        )
    return tuple(epochs)


def _samples(rng: np.random.Generator) -> Samples:
    y, x = np.mgrid[0:28, 0:28]
    images = []
    for _ in range(40):
        cx, cy, r = rng.uniform(10, 18), rng.uniform(10, 18), rng.uniform(5, 9)
        ring = np.exp(-((np.hypot(x - cx, (y - cy) * rng.uniform(0.7, 1.3)) - r) ** 2) / 4)
        images.append(np.clip(ring * 255 + rng.normal(0, 8, ring.shape), 0, 255))
    return Samples(images=np.stack(images).astype(np.uint8)[..., None])


@pytest.fixture(scope="session")
def run_result() -> RunResult:
    """A successful run with every figure known."""
    rng = np.random.default_rng(7)
    evaluation = _evaluation(rng)
    answered = sum(map(sum, evaluation.confusion))
    right = sum(row[place] for place, row in enumerate(evaluation.confusion))
    releases = _releases(answered)
    return RunResult(
        study=_record(),
        outcome=Outcome(
            status="success",
            accuracy=Accuracy(
                teacher_mean=0.623,
                ensemble=0.871,
                votes_n=3478,
                votes_majority=0.108,
                labels=right / answered,
                labels_n=answered,
                labels_majority=0.117,
                student=0.904,
                student_n=1000,
                majority=0.112,
                by_class=BY_CLASS,
                tested=HowTested(kept=1000),
            ),
            privacy=PrivacyFigures(
                student=releases[-1].epsilon, data_dependent_do_not_publish=3.1234567, coordinator=None
            ),
            seconds=Seconds(teach=212.4, vote=31.7, aggregate=2.3, student=104.9, total=361.0),
            peak_memory_mb=2750,
        ),
        releases=releases,
        spending=_spending(releases),
        epochs=_epochs(rng),
        evaluation=evaluation,
        samples=_samples(rng),
        left_out=(LeftOut(party="party-017", phase="vote", reason="no answer within 600 s"),),
        engine_seconds=14.0,
        started="2026-03-01T08:00:00.000+00:00",
        ended="2026-03-01T08:06:01.000+00:00",
    )


@pytest.fixture(scope="session")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished run."""
    return save_run(tmp_path_factory.mktemp("runs") / "made-up", events(), study=make_study())
