"""The table of truth of `pate-fed plan`: what studies gave, beside what a pilot on the pool's labels says.

Forty-five settings. Fifteen of Fashion-MNIST, Adult, breast cancer and four clinics (tests/support) are named
below, and the estimate's constants may be fitted to them. Fifteen are drawn by a seed from MNIST, digits,
wine, diabetes130 and Glyph, to which none is fitted: sets and classes, hospitals, records, ε, unit, way, and
whether a class is thinned to a tenth. Their misses were seen before the estimate of today. So fifteen more
are drawn by another seed, of other sizes and numbers of classes.

A setting is run on learning code alone, by what a study has by default: map, rounds, noise of all hospitals
with their usual shares, teachers, thresholds. The pool is at most 2,000 inputs, also of the pilot, whose
labels no run sees; the test is on other rows, but of breast cancer and wine, whose pool is too small to part.
A patient's records are three of one class. "alone" is what a hospital's
own model is right in, on the same test, which a user of `plan` states.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from dataclasses import KW_ONLY, asdict, dataclass, replace
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from class_sums_labels import _diabetes
from class_sums_tables import Bench, _adult
from numpy.typing import NDArray

from pate_fed.bench.tasks import CODES, four_hospitals
from pate_fed.config.backend import AUTO
from pate_fed.config.defaults import Ensemble, affordable_offer, keeps_in_proportion, with_defaults
from pate_fed.config.registry import find_part
from pate_fed.config.sections import Aggregation, Privacy, Queries
from pate_fed.data import load_dataset
from pate_fed.data.source import GlyphSettings
from pate_fed.kinds.pilot import Records, SumsPlan, pilot_sums, pilot_votes, sums_student
from pate_fed.learning import StudentSettings, TeacherSettings
from pate_fed.learning.features.build import build_feature_map
from pate_fed.learning.features.feature_map import DIRECTIONS, KERNEL, LINEAR, FeatureMap, FeatureSettings
from pate_fed.learning.teachers.forests import train_forest, train_table_teacher
from pate_fed.privacy import Pool, Protection, SeededNoise, plan
from pate_fed.privacy.planning.choice import SUMS, VOTES, Sites, votes_way
from pate_fed.reproduce.columns import ACCURACY, Cell, Column, cells_of, task_of, text_table
from pate_fed.reproduce.driver import Log, Table, run_tables

Ints = NDArray[np.int64]

DATA_DIR = Path(os.environ.get("PATE_FED_SHARED", Path(__file__).parents[3] / "shared")) / "data"
CLINICS = "four clinics"
IMAGES = ("fashion-mnist", "mnist", "glyph")
PRIVATE = {"breast cancer": 400, "wine": 100, "digits": 1150, "adult": 30_000, "diabetes130": 60_000}
POOL, DELTA, GROUP, RARE = 2000, 1e-5, 3, 0.1
FITTED_SETS = ("fashion-mnist", "adult", "breast cancer", "four clinics")
DRAWN_SETS = ("mnist", "digits", "wine", "diabetes130", "glyph")
MOST = {"mnist": 60_000, "digits": 1000, "wine": 100, "diabetes130": 30_000, "glyph": 30_000}
CLASSES = {"mnist": 10, "digits": 10, "wine": 3, "diabetes130": 2}
GLYPH_CLASSES, FRESH_CLASSES = (5, 20, 100), (10, 40, 150)


@dataclass(frozen=True, slots=True, kw_only=True)
class TruthBench(Bench):
    """A reproduction whose figures tests/benchmarks/test_plan_truth_benchmark.py makes."""

    @property
    def command(self) -> str:
        return "pytest -m benchmark -s tests/benchmarks/test_plan_truth_benchmark.py"


@dataclass(frozen=True, slots=True)
class Setting:
    """One study; `records` are one hospital's."""

    data: str
    classes: int
    hospitals: int
    records: int
    epsilon: float
    unit: str = "record"
    way: str = SUMS
    thinned: bool = False

    def sites(self, alone: float | None = None) -> Sites:
        """As `plan` gets it."""
        return Sites(
            hospitals=self.hospitals,
            teachers=self.hospitals,
            records=self.records,
            classes=self.classes,
            epsilon=self.epsilon,
            delta=DELTA,
            alone=alone,
            protection=Protection(unit=self.unit, votes_moved=1),
        )


FITTED = (
    Setting("fashion-mnist", 10, 4, 15_000, 1.0),
    Setting("fashion-mnist", 10, 50, 1000, 0.1),
    Setting("fashion-mnist", 10, 1000, 20, 3.0, "patient"),
    Setting("fashion-mnist", 10, 250, 240, 3.0, "hospital"),
    Setting("fashion-mnist", 10, 250, 240, 4.0, "hospital", VOTES),
    Setting("fashion-mnist", 10, 12, 100, 1.0, thinned=True),
    Setting("adult", 2, 4, 7000, 0.3),
    Setting("adult", 2, 20, 50, 1.0),
    Setting("adult", 2, 100, 200, 1.0, "hospital"),
    Setting("adult", 2, 300, 90, 2.0, "hospital", VOTES),
    Setting("adult", 2, 8, 400, 0.5, "patient", thinned=True),
    Setting("breast cancer", 2, 4, 100, 1.0),
    Setting("breast cancer", 2, 4, 25, 0.3),
    Setting("four clinics", 2, 4, 170, 1.0),
    Setting("four clinics", 2, 4, 170, 10.0, "patient"),
)


def fresh() -> tuple[Setting, ...]:
    """Drawn anew, before any was run, after the misses of `drawn` had been seen."""
    return drawn(380, FRESH_CLASSES)


def drawn(seed: int = 38, glyph: tuple[int, ...] = GLYPH_CLASSES) -> tuple[Setting, ...]:
    """Three settings, small, middling and large, of each set that no constant was fitted to."""
    rng, found = np.random.default_rng(seed), []
    units = iter(rng.permutation(["record"] * 8 + ["patient"] * 3 + ["hospital"] * 3))
    for turn, ends in enumerate(((100, 1000), (1000, 10_000), (10_000, 60_000))):
        for data in DRAWN_SETS:
            low, high = (min(each, MOST[data]) for each in ends)
            total = math.exp(rng.uniform(math.log(low), math.log(high)))
            many = (turn, data) == (2, "mnist")  # one of whole hospitals, enough of them to vote
            least, most = (200 if many else 4), min(1000.0, total / 10)
            hospitals = int(math.exp(rng.uniform(math.log(least), math.log(most))))
            unit = "hospital" if many else str(next(units))
            epsilons = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0]
            used = [each.epsilon for each in found if each.data == data]
            found.append(
                Setting(
                    data,
                    CLASSES.get(data, glyph[turn]),
                    hospitals,
                    int(total) // hospitals,
                    float(rng.choice([each for each in epsilons if each not in used])),
                    unit,
                    VOTES if hospitals >= 250 or many else SUMS,
                    bool(rng.random() < 0.3) and data != "wine",
                )
            )
    return tuple(found)


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """All rows of a set with labels, places for each part, columns, and hospitals where they are known."""

    rows: NDArray[Any]
    labels: Ints
    parts: tuple[Ints, Ints, Ints]
    columns: tuple[int, ...] = ()
    owners: Ints | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """What is private, the pool, and what is tested; `columns` of a table."""

    private: Records
    pool: Records
    test: Records
    columns: tuple[int, ...] = ()


def parts_of(setting: Setting, seed: int) -> Parts:
    """The rows of a setting, dealt out by a seed."""
    rng, source = np.random.default_rng([seed, 1]), _source(setting, seed)
    labels, need = source.labels, setting.hospitals * setting.records
    private, pool, test = (_thinned(part, labels, setting, rng) for part in source.parts)
    private, pool, test = private[:need], pool[:POOL], test[:POOL]
    if len(private) < need:
        raise ValueError(f"{setting}: {len(private)} records")
    owners = np.arange(need) % setting.hospitals if source.owners is None else source.owners[private]
    elsewhere = np.arange(len(pool)) // setting.records  # of patients like those of a hospital
    found = []
    for part, own, visited in (
        (private, owners, owners),
        (pool, 0 * pool, elsewhere),
        (test, 0 * test, 0 * test),
    ):
        patients = _grouped(labels[part], visited) if setting.unit == "patient" else None
        found.append(Records(source.rows[part], labels[part], own, patients))
    return Parts(*found, source.columns)


def _grouped(labels: Ints, owners: Ints) -> Ints:
    """Patients of `GROUP` records of one class, at one hospital."""
    kinds, found, start = owners * 1000 + labels, np.empty(len(labels), dtype=np.int64), 0
    for kind in np.unique(kinds):
        own = np.flatnonzero(kinds == kind)
        found[own] = start + np.arange(len(own)) // GROUP
        start += len(own)
    return found


def _thinned(places: Ints, labels: Ints, setting: Setting, rng: np.random.Generator) -> Ints:
    """A tenth of the rarer class of two, or of the first of many."""
    if not setting.thinned:
        return places
    rare = int(np.bincount(labels).argmin()) if setting.classes == 2 else 0
    return places[(labels[places] != rare) | (rng.random(len(places)) < RARE)]


def _source(setting: Setting, seed: int) -> Source:
    rng = np.random.default_rng(seed)
    if setting.data in IMAGES:
        rows, labels, n = _images(setting.data, setting.classes)
        # The pool is the same for all seeds: its features take long.
        parts = rng.permutation(n), np.arange(n, n + 5000), np.arange(n + 5000, len(labels))
        return Source(rows, labels, parts)
    if setting.data == CLINICS:
        table = four_hospitals(seed)
        codes = [table.rows[:, at, None] == np.arange(count) for at, count in enumerate(CODES, 8)]
        rows, order = np.hstack([table.rows[:, :8], *codes]), rng.permutation(len(table.labels))
        parts = order[:680], order[680:], order[680:]
        return Source(rows, table.labels, parts, (*(1,) * 8, *CODES), table.owners)
    rows, labels, columns = _table(setting.data)
    order, count = rng.permutation(len(labels)), PRIVATE[setting.data]
    private, rest = order[:count], order[count:]
    if len(rest) < 500:  # too few to part
        return Source(rows, labels, (private, rest, rest), columns)
    middle = len(rest) // 2
    return Source(rows, labels, (private, rest[:middle], rest[middle:]), columns)


@lru_cache(maxsize=1)
def _images(data: str, classes: int) -> tuple[NDArray[np.uint8], Ints, int]:
    glyph = GlyphSettings(classes=classes, private=MOST["glyph"], public=10_000)
    found = load_dataset(data, glyph=glyph, data_dir=DATA_DIR)
    rows = np.concatenate([found.private_images, found.public_images])
    labels = np.concatenate([found.private_labels, found.public_labels])
    return rows, labels, len(found.private_labels)


@lru_cache(maxsize=1)
def _table(data: str) -> tuple[NDArray[np.float64], Ints, tuple[int, ...]]:
    """Rows, labels and columns."""
    if data == "adult":
        found = _adult(Bench(name="", data_dir=DATA_DIR, out_dir=Path()))
        rows = np.concatenate([found.private_images, found.public_images])
        labels = np.concatenate([found.private_labels, found.public_labels])
        return rows, labels, tuple(map(int, found.details.split()))
    if data == "diabetes130":
        table, schema = _diabetes(DATA_DIR)
        columns = tuple(max(1, len(values)) for _, values in schema.columns)
        return table.inputs, table.labels.astype(np.int64) & 1, columns
    from sklearn import datasets

    rows, labels = getattr(datasets, f"load_{data.replace(' ', '_')}")(return_X_y=True)
    return rows.astype(np.float64), labels.astype(np.int64), (1,) * rows.shape[1]


def map_of(setting: Setting, parts: Parts) -> FeatureSettings:
    """The map that a study of class sums has by default."""
    name = DIRECTIONS if setting.unit == "hospital" else LINEAR if parts.columns else KERNEL
    return FeatureSettings(name=name, columns=parts.columns)


@lru_cache(maxsize=2)
def mapped(setting: Setting, seed: int) -> tuple[Parts, FeatureMap, NDArray[Any], NDArray[np.float32]]:
    """The rows, the study's map of the pool, and features of private rows and, scaled, of tested ones."""
    parts = parts_of(setting, seed)
    features = build_feature_map(map_of(setting, parts), parts.pool.inputs)
    small = np.int16 if features.largest < 2**15 else np.int32
    kept = features.features(parts.private.inputs).astype(small)
    return parts, features, kept, features.scaled(parts.test.inputs)


def dealing(setting: Setting, seed: int) -> int:
    """Many records are dealt out once: their features take longer than all else, and chance is small."""
    return 0 if setting.hospitals * setting.records > 5000 else seed


def right_in(said: Ints, truth: Ints) -> tuple[float, float]:
    """The share that is right, of all and as the mean over classes."""
    right = said == truth
    return float(right.mean()), float(np.mean([right[truth == each].mean() for each in np.unique(truth)]))


def run_sums(setting: Setting, seed: int) -> tuple[float, float]:
    """What the student of a study's class sums is right in."""
    parts, features, kept, tested = mapped(setting, dealing(setting, seed))
    plan = SumsPlan.of(setting.sites(), features, parts.pool.inputs)
    fit = plan.fit(features, parts.pool.inputs)
    student = sums_student(features, parts.private, fit, plan, seed=seed, kept=kept)
    return right_in(student.predict_of(tested), parts.test.labels)


@dataclass(frozen=True, slots=True)
class Votes:
    """How a study votes by default: the mechanism, and its caps on labels and queries."""

    mechanism: Any
    labels: int
    queries: int

    @classmethod
    def of(cls, setting: Setting) -> Votes:
        """As fixed before any data are read."""
        privacy = Privacy(epsilon=setting.epsilon, delta=DELTA, unit=setting.unit)
        ensemble = Ensemble(
            num_teachers=setting.hospitals,
            num_classes=setting.classes,
            aggregator=AUTO,
            privacy=privacy,
            protection=privacy.protection(1),
        )
        aggregation, queries = with_defaults(ensemble, Aggregation(), Queries())
        few = None if aggregation != Aggregation() or keeps_in_proportion(ensemble) else ensemble
        if few is not None and (offer := affordable_offer(few)) is not None:  # less than a study takes
            noise = {"threshold": offer.threshold, "sigma1": offer.sigma1, "sigma2": offer.sigma2}
            aggregation = replace(aggregation, aggregator=offer.mechanism, **noise)
            queries = replace(queries, labels=offer.answered, max_queries=offer.asked)
        fixed = aggregation.resolve(setting.hospitals)
        size = {"num_teachers": setting.hospitals, "num_classes": setting.classes}
        made = find_part(fixed.aggregator, "aggregator")(size, fixed)
        labels = queries.resolve(interactive=False).labels or 0
        return cls(made, labels, queries.max_queries or POOL)


def run_votes(setting: Setting, seed: int) -> tuple[float, float]:
    """What the student of a study's votes is right in."""
    parts, votes = parts_of(setting, 0), Votes.of(setting)
    totals = _totals(setting)
    order = np.random.default_rng(seed).permutation(len(totals))[: votes.queries]
    release = votes.mechanism.release(totals[order], SeededNoise(seed), max_answers=votes.labels)
    index, label = (part[: release.asked][release.answered] for part in (order, release.label))
    return right_in(_student(parts, index, label, setting.classes, seed), parts.test.labels)


def _student(parts: Parts, index: Ints, label: Ints, classes: int, seed: int) -> Ints:
    """What a student of labelled public inputs says of tested rows."""
    if parts.columns:
        forest = train_forest(parts.pool.inputs[index], label, num_classes=classes, seed=seed)
        return forest.predict(parts.test.inputs)
    from pate_fed.learning.networks.encoder import fit_encoder
    from pate_fed.learning.students.closed_form import fit_head_student
    from pate_fed.learning.students.trainer import LabelledPool

    pool = LabelledPool(images=parts.pool.inputs, labelled_index=index, labels=label, num_classes=classes)
    settings = StudentSettings(name="encoder-head")
    student = fit_head_student(pool, settings, fit_encoder(parts.pool.inputs), seed=seed, device="cpu")
    return student.predict(parts.test.inputs)


@lru_cache(maxsize=1)
def _totals(setting: Setting) -> Ints:
    """Votes of one teacher a hospital on the pool, int64 (pool, classes)."""
    parts = parts_of(setting, 0)
    said = [_alone(parts, own, setting.classes, parts.pool.inputs) for own in range(setting.hospitals)]
    return np.stack([(np.stack(said) == label).sum(axis=0) for label in range(setting.classes)], axis=1)


def _alone(parts: Parts, own: int, classes: int, asked: NDArray[Any]) -> Ints:
    """What a hospital's own default model says of inputs."""
    rows = parts.private.owners == own
    inputs, labels = parts.private.inputs[rows], parts.private.labels[rows]
    if parts.columns:
        settings = TeacherSettings(name="random-forest")
        made = train_table_teacher(inputs, labels, num_classes=classes, settings=settings, seed=int(own))
        return made.predict(asked)
    from pate_fed.learning.networks.encoder import fit_encoder
    from pate_fed.learning.teachers.network import train_teacher

    encoder, how = fit_encoder(parts.pool.inputs), {"num_classes": classes, "settings": TeacherSettings()}
    return train_teacher(inputs, labels, **how, encoder=encoder, seed=int(own)).predict(asked)


def run_alone(setting: Setting, seed: int) -> tuple[float, float]:
    """What hospitals' own models are right in, on everybody's inputs: the mean of at most three."""
    parts = parts_of(setting, dealing(setting, seed))
    chosen = np.random.default_rng(seed).permutation(setting.hospitals)[:3]
    said = [_alone(parts, own, setting.classes, parts.test.inputs) for own in chosen]
    plain, balanced = np.mean([right_in(each, parts.test.labels) for each in said], axis=0)
    return float(plain), float(balanced)


@dataclass(frozen=True, slots=True)
class TruthRun:
    """One run of a setting, by its fields; `alone` is not known of every seed.

    `balanced` is the mean over classes, where one is thinned.
    """

    part: str
    data: str
    classes: int
    hospitals: int
    records: int
    epsilon: float
    unit: str
    way: str
    thinned: bool
    seed: int
    _: KW_ONLY
    accuracy: float
    balanced: float | None
    alone: float | None
    alone_balanced: float | None
    majority: float
    seconds: float


@dataclass(frozen=True, slots=True)
class PilotRun:
    """A pilot of a setting on the labelled pool of the first seed: a `Trial`, or what votes would give."""

    part: str
    data: str
    classes: int
    hospitals: int
    records: int
    epsilon: float
    unit: str
    way: str
    thinned: bool
    what: str
    seed: int
    _: KW_ONLY
    rows: int | None = None
    right: float | None = None
    fewer: float | None = None
    error: float | None = None
    pool: int | None = None
    alike: bool | None = None
    expected: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def accuracy(self) -> float:
        """What the log shows of a row."""
        return self.right or self.expected or 0.0


def seeds_of(setting: Setting) -> int:
    """The more, the quicker a run is and the more it varies: much where noise hides a class."""
    if setting.way == VOTES:
        return 3
    records = setting.hospitals * setting.records
    faint = records * setting.epsilon * (RARE if setting.thinned else 1) < 100 * setting.classes
    if setting.data in IMAGES:
        return 3 if records > 5000 else 16 if faint else 6
    return 48 if faint else 6 if setting.data in ("adult", "diabetes130") else 16


def measured(task: tuple[Any, ...]) -> TruthRun:
    """The row of a task."""
    started, setting, seed = time.perf_counter(), Setting(*task[1:-1]), int(task[-1])
    parts = parts_of(setting, dealing(setting, seed))
    accuracy, balanced = (run_votes if setting.way == VOTES else run_sums)(setting, seed)
    alone, alike = (None, None) if seed else run_alone(setting, seed)
    return TruthRun(
        *task,
        accuracy=accuracy,
        balanced=balanced if setting.thinned else None,
        alone=alone,
        alone_balanced=alike if setting.thinned else None,
        majority=float(np.bincount(parts.test.labels).max() / len(parts.test.labels)),
        seconds=time.perf_counter() - started,
    )


def piloted(task: tuple[Any, ...]) -> PilotRun:
    """The pilot's row of a task."""
    setting = Setting(*task[1:-2])
    parts, sites = parts_of(setting, 0), setting.sites()
    found = pilot_sums(map_of(setting, parts), parts.pool, partial(SumsPlan.of, sites), own=setting.records)
    if setting.way != VOTES:
        return PilotRun(*task, **asdict(found))
    teacher = TeacherSettings(name="random-forest") if parts.columns else TeacherSettings()
    sites = replace(sites, pilot=found, votes=pilot_votes(teacher, parts.pool, sites))
    size = {"num_teachers": sites.teachers, "num_classes": sites.classes, "protection": sites.protection}
    pool = Pool(votes=sites.votes, max_queries=POOL)
    way = votes_way(sites, plan(**size, epsilon=sites.epsilon, delta=DELTA, pool=pool).best)
    return PilotRun(*task, expected=way.expected, low=way.low, high=way.high)


def reproduce_truth(bench: TruthBench, log: Log) -> list[str]:
    """All settings."""
    parts = {"fitted": FITTED, "drawn": drawn(), "fresh": fresh()}
    settings = [(part, each) for part, found in parts.items() for each in found]
    settings.sort(key=lambda each: each[1].way == VOTES)  # which take longest
    told = [
        ((part, *(getattr(each, name) for name in Setting.__match_args__)), each) for part, each in settings
    ]
    inputs = {"settings": sha256(repr(told).encode()).hexdigest()}
    runs = Table(
        path=bench.out_dir / f"{bench.name}-runs.csv",
        row=TruthRun,
        tasks=[(*task, seed) for task, each in told for seed in range(seeds_of(each))],
        make=measured,
        inputs=inputs,
        lines=_lines,
    )
    pilots = Table(
        path=bench.out_dir / f"{bench.name}-pilots.csv",
        row=PilotRun,
        tasks=[(*task, "pilot", 0) for task, _ in told],
        make=piloted,
        inputs=inputs,
        lines=lambda rows: (),
    )
    return run_tables(bench, [pilots, runs], text=bench.out_dir / f"{bench.name}.txt", log=log)


def _balanced(cell: Cell[TruthRun]) -> float | None:
    known = [row.balanced for row in cell.rows if row.balanced is not None]
    return 100 * float(np.mean(known)) if known else None


def _lines(rows: list[TruthRun]) -> Iterator[str]:
    columns = (
        Column("part", lambda cell: cell.task[0]),
        Column("data", lambda cell: f"{cell.task[1]}{', thinned' * cell.task[8]}"),
        Column("classes", lambda cell: cell.task[2], "d"),
        Column("hospitals x records", lambda cell: f"{cell.task[3]:,} x {cell.task[4]:,}"),
        Column("ε", lambda cell: cell.task[5], "g"),
        Column("unit", lambda cell: cell.task[6]),
        Column("way", lambda cell: cell.task[7]),
        *ACCURACY,
        Column("balanced, %", _balanced, ".1f"),
    )
    yield "plan-truth: what studies gave"
    yield from text_table(columns, cells_of(rows, [task_of(row)[:-1] for row in rows]))
