"""Glyph at the size of P18 (Papernot et al., arXiv 1802.08908): 150 classes, up to 5,000 teachers.

The embedded Glyph data set with 150 symbols, twice as many images of the most frequent as of the rarest, and
a tenth of the private labels wrong. Real teachers are heads on a public encoder: 100 of 3,000 images each,
250 of 1,200 and 1,000 of 300. Larger ensembles are simulated at the level of votes: for each query as many
teachers as are wanted vote by the shares that the 250 real ones gave to the classes (with half a vote spread
over all of them), each for itself. So their teachers are as good as those of 1,200 images, as if every
hospital brought its own records; in P18 they share one set and get worse.

Figure 4 compares LNMax with GNMax at equal ε for 4,000 queries, Figure 5 shows by how many teachers agree
what Confident-GNMax answers of 25,000 queries, and what an answer costs. Where ε comes from the votes it is
marked. It takes about half an hour on two cores, most of it for the 1,350 teachers and for ε from the votes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.data import GlyphSettings, load_dataset
from pate_fed.format import delta_text
from pate_fed.privacy import ConfidentGNMax, GNMax, LNMax, SeededNoise, data_dependent_epsilon_do_not_publish
from pate_fed.privacy.bounds.gnmax import gnmax_rdp
from pate_fed.reproduce.driver import Log, Reproduction, Table, run_tables
from pate_fed.reproduce.measures import COLOURS, draw_panels, least_noise
from pate_fed.reproduce.mnist2017 import gaps
from pate_fed.reproduce.votes import ensemble_size, ensemble_totals, inputs_of

NAME = "scalable-glyph"
CLASSES, PRIVATE, ASKED = 150, 300_000, 4000
REAL = (100, 250, 1000)
SIMULATED = (100, 500, 1000, 5000)
BASIS = 250  # the real ensemble that votes are simulated by
DELTA = 1e-8
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
SHARES = (0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.35)  # deviation of the noise per teacher
TEACHERS, QUERIES = 5000, 25_000  # of Figure 5
CHECKS = {"moderate check": (3500.0, 1500.0), "aggressive check": (5000.0, 1500.0)}
ANSWER_SIGMA, ORDER = 100.0, 20.0

MECHANISMS = ("LNMax", "GNMax")

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class BudgetRun:
    """Noisy labels that are right, as a share, at a data-independent ε."""

    teachers: str
    mechanism: str
    epsilon: float
    _: KW_ONLY
    noise: float
    accuracy: float


@dataclass(frozen=True, slots=True)
class NoiseRun:
    """Noisy labels that are right, as a share, at a deviation of the noise per teacher."""

    teachers: str
    mechanism: str
    share: float
    _: KW_ONLY
    noise: float
    epsilon_do_not_publish: float
    accuracy: float


def reproduce_glyph(plan: Reproduction, log: Log) -> list[str]:
    """Train the real teachers and write scalable-glyph.txt, -*.csv and .png."""
    settings = GlyphSettings(classes=CLASSES, private=PRIVATE)
    log(f"drawing {settings.private + settings.public:,} images, once")
    dataset = load_dataset("glyph", glyph=settings)
    truth = np.asarray(dataset.public_labels)[:ASKED]
    real = {count: ensemble_totals(plan, dataset, count, log) for count in REAL}
    ensembles = {f"{count} real": totals[:ASKED] for count, totals in real.items()}
    for count in SIMULATED:
        drawn = simulated_totals(real[BASIS][:ASKED], teachers=count, seed=count)
        ensembles[f"{count} simulated"] = drawn
    many, answered = _figure_5(real[BASIS])
    inputs = inputs_of(plan, [dataset], {f"totals of {name}": totals for name, totals in ensembles.items()})
    at_epsilon = Table(
        path=plan.out_dir / f"{NAME}-equal-epsilon.csv",
        row=BudgetRun,
        tasks=list(product(ensembles, MECHANISMS, EPSILONS)),
        make=partial(_at_epsilon, ensembles, truth),
        inputs=inputs,
        lines=lambda rows: [*_ensembles(ensembles, truth), *_epsilon_lines(rows)],
    )
    at_noise = Table(
        path=plan.out_dir / f"{NAME}-figure-4.csv",
        row=NoiseRun,
        tasks=list(product(ensembles, MECHANISMS, SHARES)),
        make=partial(_at_noise, ensembles, truth),
        inputs=inputs,
        lines=lambda rows: [*_noise_lines(rows), *_figure_5_lines(answered)],
    )
    return run_tables(
        plan,
        [at_epsilon, at_noise],
        text=plan.out_dir / f"{NAME}.txt",
        log=log,
        show=lambda _, rows: _show(plan, rows, many, answered),
    )


def simulated_totals(totals: Ints, *, teachers: int, seed: int, queries: int | None = None) -> Ints:
    """Votes of so many teachers that vote by the shares of others' totals, each teacher for itself.

    Half a vote is spread over the classes, so that what few voted for none would is not ruled out. Shapes:
    (n, classes) to (queries or n, classes), the queries taken in turn.
    """
    rng = np.random.default_rng(seed)
    chances = (totals + 0.5 / totals.shape[1]) / (totals.sum(axis=1, keepdims=True) + 0.5)
    rows = np.arange(len(totals) if queries is None else queries) % len(totals)
    drawn: Ints = rng.multinomial(teachers, chances[rows]).astype(np.int64)
    return drawn


def noise_for(kind: str, *, queries: int, epsilon: float) -> float:
    """The least σ of GNMax or scale of LNMax, to a tenth of a vote, at which queries cost at most ε."""
    return least_noise(
        lambda noise: _mechanism(kind, {"num_teachers": 1, "num_classes": CLASSES}, noise),
        queries=queries,
        epsilon=epsilon,
        delta=DELTA,
        above=0.1,
        most=1e6,
    )


def _mechanism(kind: str, size: Mapping[str, int], noise: float) -> GNMax | LNMax:
    return GNMax(**size, sigma=noise) if kind == "GNMax" else LNMax(**size, scale=noise)


def _right(mechanism: GNMax | LNMax, totals: Ints, truth: Ints) -> float:
    """The share of noisy labels that are right."""
    return float(np.mean(mechanism.release(totals, SeededNoise(0)).label == truth))


def _at_epsilon(ensembles: Mapping[str, Ints], truth: Ints, task: tuple[str, str, float]) -> BudgetRun:
    name, kind, epsilon = task
    noise = noise_for(kind, queries=len(truth), epsilon=epsilon)
    mechanism = _mechanism(kind, ensemble_size(ensembles[name]), noise)
    return BudgetRun(*task, noise=noise, accuracy=_right(mechanism, ensembles[name], truth))


def _at_noise(ensembles: Mapping[str, Ints], truth: Ints, task: tuple[str, str, float]) -> NoiseRun:
    """Data-dependent ε and accuracy, as P18 has them in Figure 4."""
    name, kind, share = task
    totals = ensembles[name]
    size = ensemble_size(totals)
    noise = share * size["num_teachers"] / (2**0.5 if kind == "LNMax" else 1)  # equal deviations
    mechanism, every = _mechanism(kind, size, noise), np.ones(len(truth), dtype=np.bool_)
    seen = data_dependent_epsilon_do_not_publish(mechanism, totals, every, delta=DELTA).epsilon
    accuracy = _right(mechanism, totals, truth)
    return NoiseRun(*task, noise=noise, epsilon_do_not_publish=seen, accuracy=accuracy)


def _ensembles(ensembles: Mapping[str, Ints], truth: Ints) -> Iterator[str]:
    yield f"{'teachers':<16} {'one right, %':>12} {'plurality, %':>12} {'mean gap, %':>12}"
    for name, totals in ensembles.items():
        alone = 100 * totals[np.arange(len(truth)), truth].sum() / totals.sum()
        together = 100 * np.mean(totals.argmax(axis=1) == truth)
        yield f"{name:<16} {alone:>12.1f} {together:>12.1f} {100 * gaps(totals).mean():>12.1f}"


def _epsilon_lines(rows: list[BudgetRun]) -> Iterator[str]:
    asked = f"{ASKED:,} queries, δ {delta_text(DELTA)}"
    yield f"{asked}: labels that are right, %, at a data-independent ε (LNMax / GNMax)"
    yield f"{'teachers':<16} " + " ".join(f"{'ε ' + format(e, 'g'):>13}" for e in EPSILONS)
    found = {(row.teachers, row.mechanism, row.epsilon): 100 * row.accuracy for row in rows}
    for name in dict.fromkeys(row.teachers for row in rows):
        pairs = [[found.get((name, kind, epsilon), np.nan) for kind in MECHANISMS] for epsilon in EPSILONS]
        yield f"{name:<16} " + " ".join(f"{laplace:>5.1f} / {gauss:>5.1f}" for laplace, gauss in pairs)


def _noise_lines(rows: list[NoiseRun]) -> Iterator[str]:
    yield "Figure 4: right labels, % (data-dependent ε, DO NOT PUBLISH), by the noise per teacher, σ/n"
    yield f"{'teachers':<16} {'':<6} " + " ".join(f"{share:>13g}" for share in SHARES)
    for name, kind in dict.fromkeys((row.teachers, row.mechanism) for row in rows):
        some = [row for row in rows if (row.teachers, row.mechanism) == (name, kind)]
        shown = (f"{100 * row.accuracy:>5.1f} ({min(row.epsilon_do_not_publish, 9999):.4g})" for row in some)
        yield f"{name:<16} {kind:<6} " + " ".join(f"{each:>13}" for each in shown)


def _figure_5(totals: Ints) -> tuple[Ints, dict[str, Bools]]:
    """Votes of 5,000 simulated teachers on 25,000 queries, and what each check answers."""
    many = simulated_totals(totals, teachers=TEACHERS, seed=5, queries=QUERIES)
    answered = {"no check (LNMax)": np.ones(len(many), dtype=np.bool_)}
    for name, (threshold, sigma1) in CHECKS.items():
        mechanism = ConfidentGNMax(
            **ensemble_size(many), threshold=threshold, sigma1=sigma1, sigma2=ANSWER_SIGMA
        )
        answered[name] = mechanism.release(many, SeededNoise(5)).answered
    return many, answered


def _figure_5_lines(answered: dict[str, Bools]) -> Iterator[str]:
    yield f"Figure 5: of {QUERIES:,} queries to {TEACHERS:,} simulated teachers are answered"
    for name, mask in answered.items():
        terms = CHECKS.get(name)
        noise = "" if terms is None else f" (T {terms[0]:g}, σ1 {terms[1]:g})"
        yield f"{name + noise:<40} {int(mask.sum()):>7,} ({100 * mask.mean():.1f} %)"
    yield "not private: seeded noise, on a public data set"


def _show(plan: Reproduction, rows: list[NoiseRun], many: Ints, answered: Mapping[str, Bools]) -> None:
    x = "ε from the votes (do not publish), δ 1e-8"
    y = "labels that are right, %"

    def draw(axes: list[Any]) -> None:
        for kind, colour in zip(MECHANISMS, COLOURS, strict=False):
            for name, line in (("1000 real", "-"), ("5000 simulated", "--")):
                _curve(axes[0], rows, name, kind, linestyle=line, color=colour, label=f"{kind}, {name}")
        for count, colour in zip(SIMULATED, COLOURS, strict=False):
            _curve(axes[1], rows, f"{count} simulated", "GNMax", color=colour, label=f"{count:,}")
        for each in axes[:2]:
            each.set_xscale("log")
        _draw_figure_5(axes[2], many, answered)

    titles = [
        (f"Figure 4, left: {ASKED:,} labels, 1,000 real teachers", x, y),
        ("Figure 4, right: GNMax, simulated teachers", x, y),
        (f"Figure 5: {QUERIES:,} queries, {TEACHERS:,} teachers", "votes for the first class", "queries"),
    ]
    draw_panels(plan.out_dir / f"{NAME}.png", titles, draw)


def _curve(axes: Any, rows: list[NoiseRun], teachers: str, mechanism: str, **style: Any) -> None:
    points = sorted(
        (row.epsilon_do_not_publish, 100 * row.accuracy)
        for row in rows
        if (row.teachers, row.mechanism) == (teachers, mechanism)
    )
    axes.plot([x for x, _ in points], [y for _, y in points], marker="o", markersize=3, **style)


def _draw_figure_5(axes: Any, many: Ints, answered: Mapping[str, Bools]) -> None:
    top, edges = many.max(axis=1), np.linspace(0, TEACHERS, 26)
    for (name, mask), colour in zip(answered.items(), ("#cfd8dc", *COLOURS[:2]), strict=True):
        axes.hist(top[mask], bins=edges, color=colour, label=name)
    axes.legend(fontsize=8, loc="upper left")
    cost = gnmax_rdp(many, ANSWER_SIGMA, [ORDER])[:, 0]
    place = np.digitize(top, edges) - 1
    bins = [each for each in range(len(edges) - 1) if (place == each).any()]
    right = axes.twinx()
    means = [max(float(cost[place == each].mean()), 1e-300) for each in bins]
    right.plot([(edges[each] + edges[each + 1]) / 2 for each in bins], means, "ko", markersize=3)
    right.set_yscale("log")
    right.set_ylim(1e-12, 10)
    right.set_ylabel(f"cost of an answer (dots): RDP at order {ORDER:g}, σ2 {ANSWER_SIGMA:g}", fontsize=8)
