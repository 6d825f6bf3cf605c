"""Learning with private labels on Fashion-MNIST and MNIST, with the structure of LDP's Tables 2, 3 and 6.

Tang et al., PoPETs 2022, has CIFAR-10, CIFAR-100 and CINIC-10; its CIFAR-10 figures stand beside ours for
their order, not for their size. `--quick` takes the first 20,000 records and a small network on public
features, `--paper` all of them and
ResNet-18 on images, SCAN and 800 teachers, on a GPU. Every method has the same
network, epochs and learning rate, and the number of clusters follows from public numbers. The quick size was
settled after one look at test accuracies (ε 1, one seed), so it is not free of the test part.
Each run is a row of the CSV as soon as it is done; a call that was stopped goes on from there. Totals of
PATE-FM's teachers are kept too; seeds differ in noise and in what is learnt from the labels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pate_fed.data import Dataset, load_dataset
from pate_fed.errors import InputError
from pate_fed.label_dp import RandRes
from pate_fed.reproduce.plan import Reproduction
from pate_fed.reproduce.rows import append_row, bind_rows, read_rows
from pate_fed.reproduce.votes import inputs_of

if TYPE_CHECKING:
    from pate_fed.label_dp.methods import MethodSettings
    from pate_fed.label_dp.public import PublicInputs

__all__ = ["EPSILONS", "LabelRun", "reproduce_label_dp"]

Ints = NDArray[np.int64]
Say = Callable[[str], None]

DATASETS = ("fashion-mnist", "mnist")
EPSILONS = (0.05, 0.5, 1.0, 2.0, 4.0)
IN_TURN = (1.0, 0.05, 0.5, 2.0, 4.0)  # what is asked about most comes first
NON_PRIVATE = "non-private"
OURS = (
    "noise-cluster",
    "randres+denoise-ssl",
    "randres+ssl",
    "randres+aug-descent",
    "pate-fm",
    "pate-fm+denoise-ssl",
    "pate-fm+ssl",
    "pate-fm+aug-descent",
)
OTHERS = ("randres+normal", "lp-1st", "lp-2st", "alibi")  # LP-1ST without and with mixup
QUERIES = 500
RECORDS, EPOCHS, PAPER_EPOCHS = 20_000, 15, 200  # the first 20,000 records where it is quick

# Published on CIFAR-10, in %: Table 2's labels, Table 3's and 6's test accuracy at ε 0.5, 1, 2 and 4.
PAPER_LABELS = {"RandRes": (15.5, 23.2, 45.2, 85.9), "PATE-FM": (93.2, 93.7, 94.9, 94.9)}
PAPER: dict[str, tuple[float, ...]] = {
    "noise-cluster": (88.3, 88.3, 88.3, 88.3),
    "randres+denoise-ssl": (90.7, 90.8, 91.2, 93.6),
    "randres+ssl": (36.2, 61.9, 84.6, 92.7),
    "randres+aug-descent": (37.7, 94.1, 95.2, 96.5),
    "pate-fm": (94.1, 94.5, 95.1, 95.1),
    "pate-fm+denoise-ssl": (93.3, 93.6, 93.7, 93.7),
    "pate-fm+ssl": (93.4, 94.2, 94.5, 94.5),
    "pate-fm+aug-descent": (94.6, 95.0, 95.1, 95.1),
    "alibi": (33.8, 70.0, 81.9, 89.6),
    "lp-1st": (38.4, 61.4, 83.2, 92.0),
}
PAPER_NON_PRIVATE = 97.2
# In what a method is not the one whose figure is printed beside it; the paper's sizes need fewer changes.
OURS_DIFFERS = (
    "randres+ssl and +aug-descent know with what probability a response is the true label (ssl learns "
    "through that law), the paper's do not",
)
OURS_QUICK_DIFFERS = (
    "aug-descent learns from a weak and a strong view, not from two strong ones",
    "denoise-ssl's clusters are many, and their counts spread over a graph, where the paper has one a class",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelRun:
    """One method at one ε; shares in [0, 1]. `equation8` is computed from released labels alone."""

    dataset: str
    method: str
    epsilon: float
    seed: int
    labels_right: float | None
    accuracy: float
    kept: int | None
    kept_right: float | None
    equation8: float | None
    seconds: float


Task = tuple[str, str, float, int]


def reproduce_label_dp(plan: Reproduction, say: Say) -> list[str]:
    """Run what is missing, write label-dp-quick.txt and .png or -paper's, and give the text's lines.

    Raises:
        InputError: the data is not there, or a file in the folder is not this command's or of other data.
    """
    path = plan.file("label-dp-runs", "csv")
    inputs: dict[str, str] = {}
    for name in DATASETS:
        inputs |= inputs_of(plan, load_dataset(name, data_dir=plan.data_dir), {}, name=name)
    bind_rows(path, inputs)
    runs = read_rows(path, LabelRun)
    done = {(run.dataset, run.method, run.epsilon, run.seed) for run in runs}
    wanted = list(_tasks(plan.seeds))
    todo = [task for task in wanted if task not in done]
    bench: _Bench | None = None
    for number, task in enumerate(todo, start=1):
        if bench is None or bench.name != task[0]:
            bench = _Bench(task[0], plan, say)
        runs.append(bench.run(task))
        append_row(path, runs[-1])
        _write(plan, runs, wanted)
        say(
            f"run {number} of {len(todo)}: {task[0]}, {task[1]}, ε {task[2]:g}, seed {task[3]}: "
            f"{100 * runs[-1].accuracy:.1f} %"
        )
    lines = _write(plan, runs, wanted)
    _draw(plan.file("label-dp", "png"), runs)
    return lines


def _write(plan: Reproduction, runs: list[LabelRun], wanted: list[Task]) -> list[str]:
    """The tables so far."""
    asked = set(wanted)
    chosen = [run for run in runs if (run.dataset, run.method, run.epsilon, run.seed) in asked]
    lines = list(_lines(chosen, paper=plan.paper))
    plan.file("label-dp", "txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return lines


def _tasks(seeds: int) -> Iterator[Task]:
    """Fashion-MNIST at all seeds, then MNIST at one; the budget is 0 where labels are not private."""
    for dataset, last in zip(DATASETS, (seeds, 1), strict=True):
        for seed in range(last):
            yield dataset, NON_PRIVATE, 0.0, seed
        for epsilon in IN_TURN:
            for seed in range(last):
                for method in (*OURS, *OTHERS):
                    yield dataset, method, epsilon, seed


class _Bench:
    """One data set with its public inputs, and the totals of its teachers."""

    def __init__(self, name: str, plan: Reproduction, say: Say) -> None:
        from pate_fed.label_dp.methods import PateFmCache
        from pate_fed.label_dp.public import PublicInputs

        self.name, self.plan, self.say = name, plan, say
        self.data: Dataset = load_dataset(name, data_dir=plan.data_dir)
        count = len(self.data.private_labels) if plan.paper else RECORDS
        self.truth = np.asarray(self.data.private_labels)[:count]
        self.test = np.asarray(self.data.public_images)
        self.public: PublicInputs = PublicInputs(
            np.asarray(self.data.private_images)[:count],
            num_classes=self.data.num_classes,
            network="resnet-18" if plan.paper else "light",
            device=plan.device,
            say=say,
        )
        self.settings: MethodSettings = _settings(plan)
        self._cache = PateFmCache()

    def run(self, task: Task) -> LabelRun:
        """One row."""
        from pate_fed.label_dp.learners import LABELS_ALONE, train
        from pate_fed.label_dp.methods import run_method
        from pate_fed.label_dp.source import LabelsInOnePlace
        from pate_fed.privacy import SeededNoise

        _, method, epsilon, seed = task
        started = time.monotonic()
        if method.startswith("pate-fm"):
            self._cache.totals = self.totals()
        facts: dict[str, float | int | None] = {}
        if method == NON_PRIVATE:
            every = np.arange(len(self.truth))
            network = train(
                self.public, every, self.truth, self.settings.learn, seed=seed, supervision=LABELS_ALONE
            )
            found = self.public.probabilities([network], self.test).argmax(axis=1)
        else:
            outcome = run_method(
                method,
                self.public,
                LabelsInOnePlace(
                    truth=self.truth, num_classes=self.data.num_classes, noise=SeededNoise(seed)
                ),
                epsilon=epsilon,
                settings=self.settings,
                seed=seed,
                cache=self._cache,
            )
            found, facts = outcome.classify(self.test), outcome.facts
        kept = facts.get("kept")
        return LabelRun(
            dataset=self.name,
            method=method,
            epsilon=epsilon,
            seed=seed,
            labels_right=facts.get("labels_right_measured"),
            accuracy=float((found == self.data.public_labels).mean()),
            kept=None if kept is None else int(kept),
            kept_right=facts.get("kept_right_measured"),
            equation8=facts.get("kept_right_equation8"),
            seconds=round(time.monotonic() - started, 1),
        )

    def totals(self) -> Ints:
        """Totals of the teachers on the first 500 queries, from a file where an earlier call left them."""
        from pate_fed.label_dp.teachers import queries_of, teach

        if self._cache.totals is None:
            path = self.plan.file(f"label-dp-totals-{self.name}", "npy")
            if path.exists():
                return _read_totals(path, self.data.num_classes)
            queries = queries_of(len(self.truth), QUERIES, seed=self.public.seed)
            teach_settings = self.settings.teach
            found = teach(
                self.public, self.truth, queries, teach_settings, seed=self.public.seed, say=self.say
            )
            np.save(path, found)
            return found
        return self._cache.totals


def _read_totals(path: Path, classes: int) -> Ints:
    try:
        found: Ints = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not totals of teachers; remove it to start again") from error
    if found.dtype != np.int64 or found.ndim != 2 or found.shape[1] != classes:
        raise InputError(f"{path}: not totals of teachers; remove it to start again")
    return found


def _settings(plan: Reproduction) -> MethodSettings:
    from pate_fed.label_dp.learners import LearnSettings
    from pate_fed.label_dp.methods import MethodSettings, find_clusterer
    from pate_fed.label_dp.teachers import TeachSettings

    if not plan.paper:
        return MethodSettings(learn=LearnSettings(epochs=EPOCHS))
    slow = LearnSettings(epochs=PAPER_EPOCHS, batch_size=64, learning_rate=0.03, sgd=True, ema_decay=0.999)
    teacher = LearnSettings(epochs=40, batch_size=64, learning_rate=0.03, sgd=True, ema_decay=0.999)
    return MethodSettings(
        learn=slow,
        clusterer=find_clusterer("scan"),
        num_clusters=10,
        teach=TeachSettings(num_teachers=800, learn=teacher, unlabelled=0),
    )


def _spread(values: list[float]) -> tuple[float, float]:
    """Mean and standard deviation, in %."""
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")
    return 100 * float(np.mean(values)), 100 * deviation


def _cell(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    mean, deviation = _spread(known)
    return f"{mean:.1f}" if len(known) == 1 else f"{mean:.1f} ± {deviation:.1f}"


def _row(title: str, cells: list[str]) -> str:
    return f"{title:28}" + "".join(f"{cell:>20}" for cell in cells)


def _lines(runs: list[LabelRun], *, paper: bool) -> Iterator[str]:
    for dataset in DATASETS:
        mine = [run for run in runs if run.dataset == dataset]
        if mine:
            yield from _tables(dataset, mine)
    yield "δ 1e-5 for noise-cluster and pate-fm, 0 for all others; one record's label replaced"
    yield "not private: seeded noise, on a public data set; published figures are of CIFAR-10 with ResNet-18"
    yield "ours differs: " + "; ".join(OURS_DIFFERS if paper else (*OURS_DIFFERS, *OURS_QUICK_DIFFERS))


def _tables(dataset: str, runs: list[LabelRun]) -> Iterator[str]:
    def at(method: str, epsilon: float) -> list[LabelRun]:
        return [run for run in runs if (run.method, run.epsilon) == (method, epsilon)]

    heads = [f"ε {epsilon:g}" for epsilon in EPSILONS]
    seeds = len({run.seed for run in runs})
    yield f"{dataset}: mean ± standard deviation of {seeds} seeds, %"
    yield _row("labels that are right (Table 2)", heads)
    formula = [f"{100 * RandRes(num_classes=10, epsilon=e).probability:.1f}" for e in EPSILONS]
    yield _row("  RandRes, formula", formula)
    for title, method in (("RandRes", "randres+ssl"), ("PATE-FM", "pate-fm")):
        yield _row(f"  {title}", [_cell([run.labels_right for run in at(method, e)]) for e in EPSILONS])
        yield _row("    published", ["-", *map(str, PAPER_LABELS[title])])
    yield _row("test accuracy (Tables 3, 6)", heads)
    for method in (*OURS, *OTHERS):
        yield _row(f"  {method}", [_cell([run.accuracy for run in at(method, e)]) for e in EPSILONS])
        if method in PAPER:
            yield _row("    published", ["-", *map(str, PAPER[method])])
    best = [f"ε {e:g} {_best({m: _mean(at(m, e)) for m in OURS})}" for e in EPSILONS]
    yield "  best of ours: " + ", ".join(best)
    plain = _cell([run.accuracy for run in at(NON_PRIVATE, 0.0)])
    yield f"  true labels, not private: {plain} (published {PAPER_NON_PRIVATE})"
    yield _row("kept by DenoiseSSL, RandRes", heads)
    kept = "randres+denoise-ssl"
    yield _row("  labels", [str(round(_mean_of([r.kept for r in at(kept, e)]))) for e in EPSILONS])
    yield _row("  right, measured", [_cell([run.kept_right for run in at(kept, e)]) for e in EPSILONS])
    yield _row("  right, Equation 8", [_cell([run.equation8 for run in at(kept, e)]) for e in EPSILONS])


def _best(means: dict[str, float]) -> str:
    return max(means, key=lambda method: means[method]) if any(means.values()) else "-"


def _mean(runs: list[LabelRun]) -> float:
    return float(np.mean([run.accuracy for run in runs])) if runs else 0.0


def _mean_of(values: list[int | None]) -> float:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else 0.0


def _draw(path: Path, runs: list[LabelRun]) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), layout="constrained")
    FigureCanvasAgg(figure)
    for place, dataset in enumerate(DATASETS, start=1):
        axes = figure.add_subplot(1, 2, place)
        for number, method in enumerate((*OURS, *OTHERS)):
            mine = [run for run in runs if (run.dataset, run.method) == (dataset, method)]
            points = sorted({run.epsilon for run in mine})
            if not points:
                continue
            spreads = [_spread([run.accuracy for run in mine if run.epsilon == e]) for e in points]
            axes.errorbar(
                points,
                [mean for mean, _ in spreads],
                yerr=np.nan_to_num([deviation for _, deviation in spreads]),
                marker="osD^vPX*<>hd"[number],
                linestyle="--" if method in OTHERS else "-",
                linewidth=1,
                capsize=2,
                label=method,
            )
        axes.set_xscale("log")
        axes.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
        axes.set_title(dataset)
        axes.set_xlabel("ε of one record's label")
        axes.set_ylabel("test accuracy, %")
        axes.grid(alpha=0.3)
        if place == 1:
            axes.legend(fontsize=8, loc="lower right")
    figure.savefig(path, dpi=120)
