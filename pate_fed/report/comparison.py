"""Runs side by side, as figures and as a page: how settings differ, and what keeps two from comparing."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, groupby
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from pate_fed.disk import read_toml
from pate_fed.errors import InputError, IntegrityError
from pate_fed.format import (
    delta_text,
    duration_text,
    epsilon_text,
    interval_text,
    right_text,
    share_text,
    wilson_interval,
)
from pate_fed.report.figures import compare_curves
from pate_fed.report.html import in_columns, render_page
from pate_fed.report.log import read_result
from pate_fed.report.metrics import flatten, make_metrics, without_private
from pate_fed.report.plots import Chart, Figure, nice_ticks
from pate_fed.report.result import RunResult
from pate_fed.report.text import describe_terms

# Of study.toml: names and files of this machine, and what people read, tell nothing of how runs differ.
_LEFT_ASIDE = re.compile(r"study\.(name|reason)|about\..*|engine\..*|data\.(pool|private|data_dir|download)")
CHECKED, NO_LEDGER = "checked", "missing"
CLAIM_OPEN = "intact, claim not checked"
BROKEN = "FAILS ITS CHECK"
_UNKNOWN = "-"
_MOST_COLUMNS = 4  # of settings that differ, and of runs, side by side


@dataclass(frozen=True, kw_only=True)
class RunToCompare:
    """A run with its short name; `group` is that of repeats with other seeds.

    `settings` is its study.toml by dotted key, empty where there is none; `ledger` says how its check went.
    """

    name: str
    result: RunResult
    settings: Mapping[str, str]
    ledger: str
    group: str = ""

    @cached_property
    def kind(self) -> str:
        """What was released."""
        return self.result.study.words.kind

    @property
    def epsilon(self) -> str:
        """ε against the public in words."""
        study, outcome = self.result.study, self.result.outcome
        epsilon = outcome.privacy.student
        text = epsilon_text(epsilon, unbounded="unbounded" if outcome.status == "success" else "unknown")
        text += " (claimed, not proven)" if study.assumptions and epsilon is not None else ""
        return text if study.noise_private or epsilon is None else f"{text} (seeded: not private)"


def load_run(path: Path, *, name: str, group: str = "") -> RunToCompare:
    """Read a run's directory; a bad ledger is told of and stops nothing, no run or a damaged log raises."""
    return RunToCompare(
        name=name,
        result=read_result(path),
        settings=_settings(path / "study.toml"),
        ledger=ledger_state(path),
        group=group or name,
    )


def name_runs(paths: Sequence[Path]) -> list[str]:
    """A short name for each: the folder's own, with as many of those above it as set it apart."""
    parts = [path.resolve().parts[1:] for path in paths]
    for depth in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(each[-depth:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    raise InputError("the same run is given twice; give each once")


def _settings(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    flat = flatten(read_toml(path, option="RUN"))
    return {key: _plain(value) for key, value in flat if not _LEFT_ASIDE.fullmatch(key)}


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def ledger_state(path: Path) -> str:
    """How the check of a run's ledger went: one of the four states above, in words. No code is loaded."""
    from pate_fed.privacy.ledger.report import verify

    if not (path / "ledger.sqlite").is_file():
        return NO_LEDGER
    try:
        report = verify(path / "ledger.sqlite")
    except (InputError, IntegrityError):
        return BROKEN
    return CLAIM_OPEN if report.unchecked else CHECKED


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Runs in the order given. With `analyst` figures from private votes are among them.

    `more` are notes of who compares, behind those that the runs give rise to.
    """

    runs: tuple[RunToCompare, ...]
    analyst: bool = False
    more: tuple[str, ...] = ()

    @property
    def header(self) -> tuple[str, ...]:
        """Names of what `rows` hold."""
        private = ("◆ data-dependent ε", "◆ ensemble") if self.analyst else ()
        told: tuple[str, ...] = ("labels", "labels right", "student right", "95 %", "n", "balanced")
        if score := _score(self.runs):
            known = (run.result.outcome.accuracy.no_class for run in self.runs)
            beside = next((found.beside[0] for found in known if found is not None), "")
            told = (score, "95 %", beside, "n")
        return ("run", "status", "ε", "δ", *told, "time", "ledger", *private)

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """A row for each run: its figures in words, "-" where unknown."""
        return [self._row(run) for run in self.runs]

    def _row(self, run: RunToCompare) -> tuple[str, ...]:
        result, outcome = run.result, run.result.outcome
        found, privacy = outcome.accuracy, outcome.privacy
        private: tuple[str, ...] = ()
        if self.analyst:
            dependent = privacy.data_dependent_do_not_publish
            ensemble = share_text(found.ensemble, found.votes_n)
            private = ("-" if dependent is None else epsilon_text(dependent), ensemble)
        told: tuple[str, ...] = (
            f"{result.queries_answered:,}",
            right_text(found.labels, found.labels_n),
            right_text(found.student, found.student_n),
            interval_text(found.student_interval, found.student_n),
            f"{found.student_n:,}" if found.student_n else "-",
            found.balanced_text,
        )
        if _score(self.runs):
            told = (_UNKNOWN,) * 4
            if (figures := found.no_class) is not None:
                _, value, (low, high) = figures.rows[0]
                ends = f"{low:.3f} to {high:.3f}"
                told = (f"{value:.3f}", ends, figures.beside[1], f"{figures.count:,}")
        run_is = (run.name, outcome.status, run.epsilon, delta_text(result.study.terms.delta))
        return (*run_is, *told, duration_text(outcome.seconds.total), run.ledger, *private)

    @cached_property
    def differing(self) -> list[tuple[str, tuple[str, ...]]]:
        """Settings that are not the same in all runs: the name, and each run's value, "-" where it has none.

        By the keys of study.toml where every run has one, else by the terms in words.
        """
        if len({run.kind for run in self.runs}) == 1 and all(run.settings for run in self.runs):
            told: list[Mapping[str, str]] = [run.settings for run in self.runs]
        else:
            told = [{"Kind": run.kind, **dict(describe_terms(run.result))} for run in self.runs]
        keys = list(dict.fromkeys(chain.from_iterable(told)))
        values = [(key, tuple(each.get(key, _UNKNOWN) for each in told)) for key in keys]
        return [(key, row) for key, row in values if len(set(row)) > 1]

    @property
    def differing_table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]] | None:
        """The same as header and rows: a row a run where few settings differ, else one a setting."""
        found, names = self.differing, [run.name for run in self.runs]
        if not found:
            return None
        if len(found) <= _MOST_COLUMNS < len(names):
            columns = [values for _, values in found]
            return ("run", *(key for key, _ in found)), list(zip(names, *columns, strict=True))
        return ("setting", *names), [(key, *values) for key, values in found]

    @cached_property
    def notes(self) -> list[str]:
        """What a reader must know before comparing, a sentence or two each."""
        return [*self._unlike(), *self._faults(), *self.more]

    def _unlike(self) -> list[str]:
        terms = [run.result.study.terms for run in self.runs]
        found: list[str] = []
        if len({run.kind for run in self.runs}) > 1:
            kinds = [run.kind for run in self.runs]
            told = "; ".join(f"{kind} ({self._with(kinds, kind)})" for kind in dict.fromkeys(kinds))
            found.append(f"The runs are of different kinds: {told}.")
        if len({(each.delta, each.privacy.unit, each.privacy.adjacency) for each in terms}) > 1:
            protected = [
                f"δ = {delta_text(each.delta)}, {each.privacy.unit}, {each.privacy.adjacency}"
                for each in terms
            ]
            told = "; ".join(f"{text} ({self._with(protected, text)})" for text in dict.fromkeys(protected))
            found.append(
                "δ, the protected unit or the adjacency differ, so a smaller ε need not protect more: "
                f"{told}."
            )
        if len({each.pool_digest for each in terms}) > 1:
            found.append(
                "The public inputs differ, so the accuracies were not measured on the same test inputs."
            )
        seeded = [run.name for run in self.runs if not run.result.study.noise_private]
        if seeded:
            found.append(
                f"Seeded noise protects nobody: {_some(seeded)}. ε is what the same run would cost with "
                "noise from the system's random source."
            )
        if len(self.runs) - len(seeded) > 1:
            found.append(
                "Runs on the same private records add up: together they cost at most the sum of their ε, at "
                "the sum of their δ."
            )
        return found

    def _with(self, values: Sequence[str], value: str) -> str:
        """The names of the runs that have a value."""
        return _some([run.name for run, own in zip(self.runs, values, strict=True) if own == value])

    def _faults(self) -> list[str]:
        found = [
            f"{run.name}: {(run.result.outcome.reason or run.result.outcome.status).rstrip('.')}."
            for run in self.runs
            if run.result.outcome.status != "success"
        ]
        missing, broken, claimed = (
            [run.name for run in self.runs if run.ledger == state]
            for state in (NO_LEDGER, BROKEN, CLAIM_OPEN)
        )
        if missing:
            found.append(f"No ledger lies beside {_some(missing)}, so nothing proves the ε there.")
        if broken:
            found.append(
                f"The ledger does not pass its check: {_some(broken)}. Do not rely on the ε there; "
                "pate-fed ledger verify says what is wrong."
            )
        if claimed:
            found.append(
                "The ledger is intact, but the curve that its mechanism claims was not computed again: "
                f"{_some(claimed)}. pate-fed ledger verify RUN_DIR --aggregator NAME does that."
            )
        return found

    def to_dict(self) -> dict[str, Any]:
        """The same for programs: metrics by run, settings that differ, notes."""
        return {
            "runs": [self._metrics(run) for run in self.runs],
            "differing": {
                key: dict(zip([run.name for run in self.runs], row, strict=True))
                for key, row in self.differing
            },
            "notes": self.notes,
        }

    def _metrics(self, run: RunToCompare) -> dict[str, Any]:
        metrics = make_metrics(run.result)
        return {
            "run": run.name,
            "kind": run.kind,
            "ledger": run.ledger,
            "noise_private": run.result.study.noise_private,
            **(metrics if self.analyst else without_private(metrics)),
        }


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


_MOST_NAMES = 8  # with more points, names stand in the table alone
_SHIFT = 13.0  # between points of the same ε, which would lie on each other


def render_comparison(comparison: Comparison, *, title: str) -> str:
    """The page's text; equal comparisons give equal text."""
    runs = comparison.runs
    named = [(run.name, run.result) for run in runs]
    figures = [accuracy_against_epsilon(runs), compare_curves(named)]
    return render_page(
        "comparison.html.jinja",
        {
            "title": title,
            "analyst": comparison.analyst,
            "count": len(runs),
            "notes": comparison.notes,
            "header": comparison.header,
            "rows": comparison.rows,
            "differing": comparison.differing_table,
            "columns": in_columns(figures),
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Point:
    name: str
    epsilon: float
    accuracy: float
    low: float
    high: float
    repeats: int
    each: tuple[float, ...]


def accuracy_against_epsilon(runs: Sequence[RunToCompare]) -> Figure | None:
    """The students' accuracy against ε, with 95 % intervals; None where fewer than two runs have both.

    Repeats with other seeds are one point, their mean, with the wider of Student's interval over the repeats
    and Wilson's of the inputs that tested them.
    """
    points = [point for point in map(_point, _groups(runs)) if point]
    if sum(point.repeats for point in points) < 2:
        return None
    numbers, deltas = _score(runs), {delta_text(run.result.study.terms.delta) for run in runs}
    what = numbers or "accuracy"
    top = max(point.epsilon for point in points)
    low = max(0.0, min(point.low for point in points) - 0.02)
    chart = Chart(
        nice_ticks(0, top * 1.05),
        [tick for tick in nice_ticks(low, max(point.high for point in points)) if tick <= 1.0],
        x_label=f"ε at δ = {deltas.pop()}" if len(deltas) == 1 else "ε (δ differs)",
        y_label=f"the student's {what}",
        y_text=lambda value: f"{value:.2g}" if numbers else f"{100 * value:.3g}%",
    )
    named = len(points) <= _MOST_NAMES
    for number, point in enumerate(points, 1):
        shift = _SHIFT * sum(point.epsilon == other.epsilon for other in points[: number - 1])
        _draw(chart, point, shift=shift, number=f"{number}" if named else "")
    left_out = len(runs) - sum(point.repeats for point in points)
    caption = "ε against the public, whatever the data are. Lines are 95 % intervals: " + (
        "the wider of Student's t over repeats and that of the test inputs; pale dots are the repeats."
        if any(point.repeats > 1 for point in points)
        else ("" if numbers else "Wilson's, ") + "of the inputs that tested the student."
    )
    if left_out:
        caption += f" Without {left_out} of {len(runs)} runs: ε or {what} is not known there."
    words = ", ".join(
        f"{_told(point.accuracy, numbers)} at ε {epsilon_text(point.epsilon)}" for point in points
    )
    return Figure(
        title=f"{what[0].upper()}{what[1:]} against ε",
        picture=chart.svg(f"{what[0].upper()}{what[1:]} against ε: {words}."),
        caption=caption,
        legend=tuple(("c1", f"{at}: {point.name}") for at, point in enumerate(points, 1)) if named else (),
        header=("run", "ε", what, "95 %", "repeats"),
        rows=tuple(_row(point, numbers) for point in points),
    )


def _score(runs: Sequence[RunToCompare]) -> str:
    """By what all students are judged where they tell no class that could be right; else empty."""
    scores = {run.result.study.words.score if run.result.study.words.target else "" for run in runs}
    return scores.pop() if len(scores) == 1 else ""


def _told(value: float, numbers: str) -> str:
    return f"{value:.3f}" if numbers else share_text(value)


def _groups(runs: Sequence[RunToCompare]) -> list[list[RunToCompare]]:
    ordered = sorted(runs, key=lambda run: run.group)
    return [list(group) for _, group in groupby(ordered, key=lambda run: run.group)]


def _point(group: Sequence[RunToCompare]) -> _Point | None:
    known = [
        (epsilon, found)
        for epsilon, found in (
            (run.result.outcome.privacy.student, run.result.outcome.accuracy) for run in group
        )
        if epsilon is not None and (found.no_class or (found.student is not None and found.student_n))
    ]
    if not known:
        return None
    targets = [found.no_class.rows[0] for _, found in known if found.no_class is not None]
    shares = tuple(found.student for _, found in known if found.student is not None)
    if targets:  # one below 0 is drawn there
        shares = tuple(max(0.0, value) for _, value, _ in targets)
        low, high = (max(0.0, fmean(each)) for each in zip(*[ends for *_, ends in targets], strict=True))
    mean = fmean(shares)
    if not targets:
        low, high = wilson_interval(mean, min(found.student_n or 1 for _, found in known))
    if len(shares) > 1:
        from scipy.special import stdtrit  # late: it is slow, and few compare repeats

        half = float(stdtrit(len(shares) - 1, 0.975)) * stdev(shares) / math.sqrt(len(shares))
        # The repeats share their test inputs, so that their spread alone says nothing of how few these are.
        low, high = max(0.0, min(low, mean - half)), min(1.0, max(high, mean + half))
    return _Point(
        name=group[0].group,
        epsilon=max(epsilon for epsilon, _ in known),
        accuracy=mean,
        low=low,
        high=high,
        repeats=len(shares),
        each=shares if len(shares) > 1 else (),
    )


def _draw(chart: Chart, point: _Point, *, shift: float, number: str) -> None:
    x = chart.x(point.epsilon) + shift
    for accuracy in point.each:
        chart.dot(x, chart.y(accuracy), "dot soft")
    chart.line(x, chart.y(point.low), x, chart.y(point.high), "line c1")
    tip = f"{point.name}: {share_text(point.accuracy)} at ε = {epsilon_text(point.epsilon)}"
    chart.dot(x, chart.y(point.accuracy), "dot c1", tip=tip)
    if number:  # the name itself, which is in the legend, would lie on what stands beside
        chart.text(x + 5.5, chart.y(point.accuracy) - 4, number, "t strong halo")


def _row(point: _Point, numbers: str) -> tuple[str, ...]:
    told = (f"{100 * point.accuracy:.1f} %", interval_text((point.low, point.high)))
    if numbers:
        told = (f"{point.accuracy:.3f}", f"{point.low:.3f} to {point.high:.3f}")
    return (point.name, epsilon_text(point.epsilon), *told, f"{point.repeats}")
