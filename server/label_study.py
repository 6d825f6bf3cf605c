"""A study of private labels from its first release to its report: on the ledger, then learnt from, then told.

`LabelStudy` is the record of a method's releases (`pate_fed.kinds.label_dp.source.Record`): a release is
drawn, its row and its labels are on the disk, and only then does the method get it. A process that was killed
at any moment goes on from the labels that are on the ledger; none is asked for, or paid for, a second time.
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
import time
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.disk import write_arrays, write_private, write_result
from pate_fed.errors import BudgetError, IntegrityError, PateFedError
from pate_fed.format import accuracy_text, delta_text, epsilon_text, share_text
from pate_fed.kinds.label_dp.methods import LabelDpResult
from pate_fed.kinds.label_dp.options import LabelOptions
from pate_fed.kinds.label_dp.release import NO_LABEL
from pate_fed.kinds.label_dp.source import Record, Released
from pate_fed.kinds.labels import lost_text
from pate_fed.learning.students.export import write_torchscript
from pate_fed.privacy import Ledger, LedgerTerms
from pate_fed.privacy.ledger.rows import Entry
from pate_fed.privacy.ledger.terms import guaranteed_epsilon
from pate_fed.report.accuracy import Accuracy
from pate_fed.report.html import write_report
from pate_fed.report.log import Event, RunLog, Waiting, read_log, read_result
from pate_fed.report.metrics import collect_versions, make_metrics, outcome_json, outcome_line
from pate_fed.report.result import LabelStudyRecord, LeftOut, Outcome, PrivacyFigures, ReleasedBatch, Seconds
from pate_fed.report.terminal import Progress, print_summary
from pate_fed.runtime.console import nothing_spent
from pate_fed.runtime.run_dir import LEDGER_NAME, LOG_NAME, claim_run_dir
from pate_fed.structure.faults import Fault
from server.label_hospitals import HospitalLabels
from server.release import Release, charge, open_ledger, releases_told

Ints = NDArray[np.int64]


def _may_have_spent(events: Sequence[Event | None]) -> bool:
    """Whether anything about labels may have left a hospital for an earlier process that had a ledger.

    Its outcome tells; one that was killed told none, and whatever it may have been sent counts.
    """
    ends = [event for event in events if isinstance(event, LabelStudyRecord | Outcome)]
    died = not ends or any(
        isinstance(event, LabelStudyRecord) and not isinstance(after, Outcome)
        for event, after in zip_longest(ends, ends[1:])
    )
    return died or any(isinstance(event, Outcome) and event.privacy.coordinator != 0 for event in ends)


class LabelStudy(Record):
    """One study in its run directory, which is made with the first release.

    `hospitals` are those that have the labels, None where one place has all. `test` are public images, uint8
    (m, H, W, C), and their classes, int64 (m,). `started` is the reading of `time.perf_counter` from which
    the total time counts. What goes on is told to `progress`.
    """

    def __init__(
        self,
        options: LabelOptions,
        *,
        run_dir: Path,
        hospitals: HospitalLabels | None,
        test: tuple[NDArray[np.uint8], Ints] | None,
        started: float,
        progress: Progress,
    ) -> None:
        self.run_dir, self._options, self._hospitals, self._progress = run_dir, options, hospitals, progress
        self._test, self._started = test, started
        self._ledger: Ledger | None = None
        self._log: RunLog | None = None
        self._spent_before = False
        self._how = ""
        self._extra: dict[str, Any] = {}
        self._lines: list[str] = []

    # The record of a method's releases.

    def release(self, terms: LedgerTerms, draw: Callable[[], Released], *, stage: int = 0) -> Released:
        """The release of a stage: as it is on the ledger, else drawn and charged for before it is returned.

        Raises:
            IntegrityError: the ledger is damaged, gone, or was begun under other terms.
        """
        ledger = self._opened(terms)
        done = [event.asked for event in ledger.events()]
        index, _, label = ledger.released()
        if len(done) > stage:
            start = sum(done[:stage])
            part = slice(start, start + done[stage])
            if self._hospitals is not None and (label[part] == NO_LABEL).all():
                spent = f"ε={epsilon_text(ledger.epsilon())} δ={delta_text(terms.delta)}"
                raise BudgetError(f"hospitals were asked before, and there was no sum; {lost_text(spent)}")
            return Released(index=index[part], label=label[part])
        released = draw()
        self._charge(terms, released, stage)
        return released

    def lose(self, terms: LedgerTerms, lost: Released) -> None:
        """Charge for what hospitals were asked for, and will never have given."""
        self._charge(terms, lost)

    def _charge(self, terms: LedgerTerms, released: Released, stage: int = 0) -> None:
        ledger = self._opened(terms)
        own = hashlib.sha256(f"{ledger.terms.study_digest}/{stage}".encode()).hexdigest()
        release = Release.of(ledger.terms, terms.mechanisms[stage], released.index, released.label)
        self._tell(charge(ledger, release, batch_digest=released.question or own))

    def keep(self, name: str, draw: Callable[[], Ints]) -> Ints:
        """What a release is made of, from NAME.npy of the run directory, else drawn and kept there.

        Raises:
            IntegrityError: the file is damaged.
        """
        path = self.run_dir / f"{name.replace(' ', '_')}.npy"
        if path.exists():
            try:
                return np.asarray(np.load(path, allow_pickle=False), dtype=np.int64)
            except (OSError, ValueError, EOFError) as error:
                raise IntegrityError(f"{path}: is damaged") from error
        drawn, content = draw(), io.BytesIO()
        np.save(content, drawn, allow_pickle=False)
        write_private(path, content.getvalue())
        return drawn

    def _earlier_may_have_spent(self) -> bool:
        """Whether anything about labels may have left a hospital for an earlier process of this run."""
        if not (self.run_dir / LEDGER_NAME).exists():
            return False
        log = self.run_dir / LOG_NAME
        return _may_have_spent([event for _, event in read_log(log)] if log.exists() else [])

    def _opened(self, terms: LedgerTerms) -> Ledger:
        if self._ledger is not None:
            return self._ledger
        if not (self.run_dir / "study.toml").exists():
            claim_run_dir(self.run_dir, self._options.to_toml())
        told = releases_told(self.run_dir)
        self._spent_before = self._earlier_may_have_spent()
        ledger = open_ledger(self.run_dir, terms)
        self._ledger, self._log = ledger, RunLog(self.run_dir / "log.jsonl")
        self._write_log(self._facts(terms))
        for entry in ledger.entries()[len(told) :]:  # charged by a process that died before it told
            self._tell(entry)
        return ledger

    def _tell(self, entry: Entry) -> None:
        event = entry.event
        counts = {"asked": event.asked, "answered": event.answered}
        self._write_log(ReleasedBatch(batch=entry.seq - 1, epsilon=entry.epsilon, **counts))
        most = None if self._ledger is None else self._ledger.guaranteed()
        self._progress.status(f"ε {epsilon_text(entry.epsilon)} of {epsilon_text(most)}")

    def note_waiting(self, event: Waiting) -> None:
        """Write in the log which hospitals are waited for."""
        self._write_log(event)

    def note_fault(self, event: Fault) -> Path | None:
        """Write in the log what went wrong at simulated hospitals, and say where that is."""
        self._write_log(event)
        return None if self._log is None else self.run_dir / LOG_NAME

    def _write_log(self, event: Any) -> None:
        if self._log is not None:
            self._log.write(event)

    def _facts(self, terms: LedgerTerms) -> LabelStudyRecord:
        options, hospitals = self._options, self._hospitals
        agreed = None if hospitals is None else hospitals.terms
        return LabelStudyRecord(
            study=options.name,
            mechanism=options.method,
            dataset=options.dataset,
            num_clients=options.hospitals or 1,
            least_clients=1 if agreed is None else agreed.least_clients,
            teachers_per_client=terms.mechanisms[0].num_teachers,
            num_classes=options.num_classes,
            pool_size=options.records,
            pool_digest=options.pool_digest,
            max_queries=terms.most_asked or 0,
            labels=terms.most_answered or 0,
            epsilon=options.epsilon,
            delta=terms.delta,
            unit=terms.protection.unit,
            adjacency=terms.protection.adjacency,
            seed=options.seed,
            backend="" if hospitals is None else hospitals.place.backend,
            test_size=0 if self._test is None else len(self._test[1]),
            guaranteed=guaranteed_epsilon(terms),
            protects=terms.protection.text(),
            noise=terms.noise,
            noise_private=terms.private,
            coordinator=terms.coordinator.kind,
            coordinator_sees=terms.coordinator.text(),
            versions=collect_versions(),
        )

    # The study's course.

    def run(self, learn: Callable[[], LabelDpResult], *, as_json: bool) -> None:
        """Let a method learn, write what came of it, and print it, its outcome as the last line.

        Raises:
            PateFedError: it failed; `abort` tells what it cost.
        """
        outcome = learn()
        self._tell_left_out()
        self._write(outcome)
        # ε is spent: nothing that comes after may lose what it bought.
        self._conclude("success")
        tested = Accuracy()
        if self._test is not None:
            images, labels = self._test
            tested = Accuracy.of_probabilities(outcome.predict_proba(images), labels)
        self._conclude("success", tested=tested)
        self._print(as_json=as_json)

    def abort(self, error: BaseException, *, as_json: bool) -> None:
        """Write and print how a study ended that did not succeed, and what it may have spent."""
        failed = isinstance(error, PateFedError)
        status, reason = ("failed", str(error)) if failed else ("aborted", "interrupted")
        self._tell_left_out()
        print(f"error: {reason}" if failed else reason, file=sys.stderr)
        if self._ledger is None:
            begun = (self.run_dir / LEDGER_NAME).exists()
            print(nothing_spent(status, reason, as_json=as_json, begun=begun), flush=True)
            return
        self._extra["error"] = reason
        self._conclude(status, reason=reason)
        self._print(as_json=as_json)

    def close(self) -> None:
        """Give the ledger and the log back."""
        for each in (self._ledger, self._log):
            if each is not None:
                each.close()

    def _tell_left_out(self) -> None:
        for who, why in () if self._hospitals is None else self._hospitals.left_out:
            self._write_log(LeftOut(party=who, phase="labels", reason=why))
            print(f"left out: {who} ({why})", file=sys.stderr)

    def _write(self, outcome: LabelDpResult) -> None:
        """`labels.npz` and `student.ts`, and what the report has beside every run's figures."""
        labels, released = outcome.labels, outcome.released
        columns = {"index": np.arange(len(released)), "answered": released >= 0, "label": labels.label}
        if released is not labels.label:
            columns["released"] = released
        write_arrays(self.run_dir / "labels.npz", **columns)
        write_torchscript(outcome.networks, outcome.shape, self.run_dir / "student.ts")
        measured = {name: value for name, value in outcome.facts.items() if name.endswith("_measured")}
        public = {name: value for name, value in outcome.facts.items() if name not in measured}
        self._how = labels.how
        self._extra = {"figures": public, "from_true_labels_do_not_publish": measured}
        self._lines = [f"{self._options.method}: {labels.text()}"]
        self._lines += [] if self._hospitals is None else self._hospitals.lines()
        self._lines += ["; ".join(_shown(public, {}))] if public else []
        if measured:
            tried = dict.fromkeys(measured, self._options.records)  # of these many records an accuracy is
            for name in public.keys() & {"answers", "kept"}:
                tried[f"{name}_right_measured"] = int(public[name] or 0)
            shown = "; ".join(_shown(measured, tried))
            self._lines.append(f"from the true labels, not to be published: {shown}")

    def _conclude(self, status: str, *, tested: Accuracy | None = None, reason: str | None = None) -> None:
        """Metrics and report of a run that ended so, its student `tested` on images kept for that."""
        ledger, hospitals = self._ledger, self._hospitals
        if ledger is None:
            raise RuntimeError("a study came to its end without a release")
        coordinator = ledger.guaranteed_coordinator()
        if hospitals is not None:
            hospitals.spent = hospitals.spent or self._spent_before
            coordinator = coordinator if hospitals.spent else 0.0
        privacy = PrivacyFigures(student=ledger.guaranteed(), spent=ledger.epsilon(), coordinator=coordinator)
        self._write_log(
            Outcome(
                status=status,
                reason=reason,
                accuracy=tested or Accuracy(),
                privacy=privacy,
                seconds=Seconds(total=time.perf_counter() - self._started),
            )
        )
        result = read_result(self.run_dir)
        metrics = make_metrics(result)
        terms = ledger.terms
        metrics["accuracy"]["test"] = metrics["accuracy"]["student"]
        metrics["privacy"] |= {
            "epsilon": max(ledger.guaranteed() or 0.0, coordinator or 0.0),
            "mechanism": self._how or terms.mechanisms[0].name,
            "noise": terms.noise,
            "private": terms.private,
        }
        metrics |= {"method": self._options.method, "dataset": self._options.dataset}
        metrics |= {"records": self._options.records, **self._extra}
        if hospitals is not None:
            metrics["hospitals"] = hospitals.to_dict()
        write_result(self.run_dir / "metrics.json", (json.dumps(metrics, indent=1) + "\n").encode())
        write_report(result, self.run_dir / "report.html")

    def _print(self, *, as_json: bool) -> None:
        result, report = read_result(self.run_dir), self.run_dir / "report.html"
        if not as_json:
            print("\n".join(self._lines) + "\n" * bool(self._lines), end="", flush=True)
            if result.outcome.status == "success":
                print_summary(result)
        print(outcome_json(result, report) if as_json else outcome_line(result, report), flush=True)


def _shown(facts: dict[str, float | int | None], tried: dict[str, int]) -> list[str]:
    """Figures by their names as people read them; accuracies as such, of so many that were `tried`."""
    found = []
    for name, value in facts.items():
        if name == "majority_measured":
            found.append(f"majority {share_text(value, tried[name])}")
            continue
        if name.endswith("_right_measured"):
            found.append(f"{name.split('_')[0]}: {accuracy_text(value, tried[name])}")
            continue
        text = name.removesuffix("_measured").replace("_", " ").replace("equation8", "(Equation 8)")
        shown = "none" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
        found.append(f"{text} {shown}")
    return found
