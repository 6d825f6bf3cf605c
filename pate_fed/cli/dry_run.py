"""`--dry-run`: what a study would be, with every check of its beginning; nothing is started or written."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

from pate_fed.cli.parser import print_lines
from pate_fed.config.backend import PROCESSES, cores, teaching_seconds
from pate_fed.config.study import Study
from pate_fed.format import counted, duration_text, epsilon_json
from pate_fed.runtime.run_dir import fresh_run_dir
from pate_fed.structure import to_plain

if TYPE_CHECKING:
    from pate_fed.kinds.terms import Terms


def dry_run(study: Study, *, run_dir: str | None, as_json: bool) -> int:
    """Check a study as its run would and show what is known before the first message; the exit code.

    Only the cache of a drawn data set may be written.

    Raises:
        InputError: what the run itself would refuse before it begins.
    """
    from pate_fed.flower import prepare_environment

    prepare_environment()
    from pate_fed.kinds.guarantee import guarantee_lines, largest_messages
    from pate_fed.privacy.ledger.terms import guaranteed_coordinator_epsilon, guaranteed_epsilon
    from server.app import Coordinator

    study = study.resolve()
    folder = fresh_run_dir(run_dir, study.name)
    coordinator = Coordinator(
        study, run_dir=folder, quiet=True, stop=threading.Event(), started=time.perf_counter()
    )
    terms, fixed, sizes = coordinator.terms, coordinator.ledger_terms, largest_messages(coordinator.terms)
    most = {"to_party": sizes.to_hospital, "to_coordinator": sizes.to_coordinator}
    seconds = _teaching_seconds(study, terms)
    if as_json:
        figures: dict[str, Any] = {
            "status": "dry run",
            "study": study.name,
            "num_clients": terms.num_clients,
            "num_teachers": terms.num_teachers,
            "num_classes": terms.num_classes,
            "pool_size": terms.pool_size,
            "aggregation": to_plain(study.resolve().aggregation),
            "most_queries": terms.max_queries,
            "most_labels": terms.labels,
            "delta": terms.delta,
            "guaranteed": {
                "student": epsilon_json(guaranteed_epsilon(fixed)),
                "coordinator": epsilon_json(guaranteed_coordinator_epsilon(fixed)),
            },
            "claimed_by": fixed.assumptions.sources,
            "coordinator_sees": fixed.coordinator.text(),
            "largest_message_bytes": most,
            "teaching_seconds": seconds,
        }
        print(json.dumps(figures, ensure_ascii=False))
        return 0
    lines = [*_study_lines(study, terms), *guarantee_lines(fixed), _sizes_line(most)]
    print_lines([*lines, _time_line(study, seconds)])
    print("dry run: nothing was started, asked or written")
    return 0


def _study_lines(study: Study, terms: Terms) -> list[str]:
    teachers = f", {counted(terms.num_teachers, 'teacher')}" if terms.num_teachers else ""
    chosen = study.resolve().aggregation
    checked = {"T": chosen.threshold, "σ1": chosen.sigma1} if chosen.has_threshold else {}
    noise = {**checked, "σ2": chosen.sigma2}
    fixed = [f"{name} {value:g}" for name, value in noise.items() if value is not None]
    return [
        f"study: {study.name} ({study.data.dataset}, {terms.num_classes} classes)",
        f"parties: {terms.num_clients}{teachers}",
        f"aggregator: {', '.join([chosen.aggregator, *fixed])}",
        f"asked: {terms.words.asked_of_pool}, of a pool of {terms.pool_size}",
    ]


def _sizes_line(most: dict[str, int]) -> str:
    to, back = (f"{size / 1e6:.1f} MB" for size in most.values())
    return f"largest message: below {to} to a party, below {back} to the coordinator"


def _teaching_seconds(study: Study, terms: Terms) -> float | None:
    if not terms.asks.trains:
        return 0.0  # nothing is trained
    return teaching_seconds(
        study.teacher.name,
        backend=study.engine.backend,
        num_clients=terms.num_clients,
        num_teachers=terms.num_teachers,
        available=cores(),
    )


def _time_line(study: Study, seconds: float | None) -> str:
    if seconds is None:
        return f"time: nobody knows how long {study.teacher.name} teaches"
    if not seconds:
        return "time: no teacher is trained; the student's alone"
    where = "at each hospital" if study.engine.backend == PROCESSES else "here"
    return f"time: roughly {duration_text(seconds)} of teaching {where}, and the student's after it"
