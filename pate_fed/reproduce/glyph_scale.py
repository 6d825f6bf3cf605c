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

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.data import Dataset, load_dataset
from pate_fed.data.settings import GlyphSettings
from pate_fed.privacy import (
    RECORD,
    ConfidentGNMax,
    GNMax,
    LNMax,
    SeededNoise,
    data_dependent_epsilon_do_not_publish,
    epsilon_of,
)
from pate_fed.privacy.bounds.gnmax import gnmax_rdp
from pate_fed.reproduce.measures import least_noise
from pate_fed.reproduce.pictures import COLOURS, draw_panels
from pate_fed.reproduce.plan import Reproduction
from pate_fed.reproduce.rows import write_rows
from pate_fed.reproduce.votes import ensemble_totals

__all__ = ["noise_for", "reproduce_glyph", "simulated_totals"]

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

Ints = NDArray[np.int64]
Ensembles = dict[str, tuple[Ints, Ints]]


def reproduce_glyph(plan: Reproduction, say: Callable[[str], None]) -> list[str]:
    """Train the real teachers, write scalable-glyph.txt, .csv and .png, and give the text's lines.

    Raises:
        InputError: the data set cannot be drawn or kept.
    """
    settings = GlyphSettings(classes=CLASSES, private=PRIVATE)
    say(f"drawing {settings.private + settings.public:,} images, once")
    dataset = load_dataset("glyph", glyph=settings)
    truth = np.asarray(dataset.public_labels)[:9000]
    real = {count: _real(plan, dataset, count, say) for count in REAL}
    chosen = truth[:ASKED]
    ensembles: Ensembles = {f"{count} real": (totals[:ASKED], chosen) for count, totals in real.items()}
    for count in SIMULATED:
        made = simulated_totals(real[BASIS][:ASKED], teachers=count, seed=count)
        ensembles[f"{count} simulated"] = made, chosen
    lines = [*_ensembles(ensembles), *_equal_epsilon(plan, ensembles, say)]
    curves = dict(_curves(plan, ensembles, say))
    many, answered = _figure_5(real[BASIS])
    lines += [*_figure_4(curves), *_figure_5_lines(answered)]
    lines.append("not private: seeded noise, on a public data set")
    (plan.out_dir / f"{NAME}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    _draw(plan, curves, many, answered)
    return lines


def _real(plan: Reproduction, dataset: Dataset, count: int, say: Callable[[str], None]) -> Ints:
    path = plan.out_dir / f"totals-glyph-{count}.npz"
    return ensemble_totals(dataset, path=path, count=count, device=plan.device, say=say)


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


@cache
def noise_for(kind: str, *, queries: int, epsilon: float) -> float:
    """The least σ of GNMax or scale of LNMax, to a tenth of a vote, at which queries cost at most ε."""

    def cost(noise: float) -> float:
        return epsilon_of(_mechanism(kind, 1, CLASSES, noise).cost_asked(RECORD) * queries, DELTA)

    return least_noise(cost, epsilon=epsilon, above=0.1, most=1e6)


def _mechanism(kind: str, teachers: int, classes: int, noise: float) -> GNMax | LNMax:
    if kind == "GNMax":
        return GNMax(num_teachers=teachers, num_classes=classes, sigma=noise)
    return LNMax(num_teachers=teachers, num_classes=classes, scale=noise)


def _accuracy(kind: str, totals: Ints, truth: Ints, noise: float) -> float:
    """The share of noisy labels that are right."""
    mechanism = _mechanism(kind, int(totals[0].sum()), totals.shape[1], noise)
    return float(np.mean(mechanism.release(totals, SeededNoise(0)).label == truth))


def _ensembles(ensembles: Ensembles) -> Iterator[str]:
    yield f"{'teachers':<16} {'one right, %':>12} {'plurality, %':>12} {'mean gap, %':>12}"
    for name, (totals, truth) in ensembles.items():
        ranked = np.sort(totals, axis=1)
        gap = 100 * np.mean((ranked[:, -1] - ranked[:, -2]) / totals.sum(axis=1))
        alone = 100 * totals[np.arange(len(truth)), truth].sum() / totals.sum()
        together = 100 * np.mean(totals.argmax(axis=1) == truth)
        yield f"{name:<16} {alone:>12.1f} {together:>12.1f} {gap:>12.1f}"


def _equal_epsilon(plan: Reproduction, ensembles: Ensembles, say: Callable[[str], None]) -> Iterator[str]:
    """Labels that are right at equal data-independent ε."""
    yield f"{ASKED:,} queries, δ {DELTA:g}: labels that are right, %, at a data-independent ε (LNMax / GNMax)"
    yield f"{'teachers':<16} " + " ".join(f"{'ε ' + format(e, 'g'):>13}" for e in EPSILONS)
    rows: list[tuple[object, ...]] = []
    for name, (totals, truth) in ensembles.items():
        cells = []
        for epsilon in EPSILONS:
            pair = []
            for kind in ("LNMax", "GNMax"):
                noise = noise_for(kind, queries=len(truth), epsilon=epsilon)
                pair.append(100 * _accuracy(kind, totals, truth, noise))
                rows.append((name, kind, epsilon, noise, f"{pair[-1]:.2f}"))
            cells.append(f"{pair[0]:>5.1f} / {pair[1]:>5.1f}")
        say(f"{name}: compared at equal ε")
        yield f"{name:<16} " + " ".join(cells)
    head = ("teachers", "mechanism", "data-independent epsilon", "noise", "accuracy %")
    write_rows(plan.out_dir / f"{NAME}-equal-epsilon.csv", head, rows)


Curve = list[tuple[float, float]]


def _curves(
    plan: Reproduction, ensembles: Ensembles, say: Callable[[str], None]
) -> Iterator[tuple[tuple[str, str], Curve]]:
    """Data-dependent ε and accuracy by the noise, as P18 has them in Figure 4."""
    rows: list[tuple[object, ...]] = []
    for name, (totals, truth) in ensembles.items():
        everything, teachers = np.ones(len(truth), dtype=np.bool_), int(totals[0].sum())
        for kind in ("LNMax", "GNMax"):
            found: Curve = []
            for share in SHARES:
                noise = share * teachers / (2**0.5 if kind == "LNMax" else 1)  # equal deviations
                mechanism = _mechanism(kind, teachers, totals.shape[1], noise)
                spent = data_dependent_epsilon_do_not_publish(mechanism, totals, everything, delta=DELTA)
                found.append((spent.epsilon, 100 * _accuracy(kind, totals, truth, noise)))
                rows.append((name, kind, noise, spent.epsilon, f"{found[-1][1]:.2f}"))
            say(f"{name}, {kind}: ε from the votes")
            yield (name, kind), found
    head = ("teachers", "mechanism", "noise", "epsilon from the votes, do not publish", "accuracy %")
    write_rows(plan.out_dir / f"{NAME}-figure-4.csv", head, rows)


def _figure_4(curves: dict[tuple[str, str], Curve]) -> Iterator[str]:
    yield "Figure 4: right labels, % (data-dependent ε, DO NOT PUBLISH), by the noise per teacher, σ/n"
    yield f"{'teachers':<16} {'':<6} " + " ".join(f"{share:>13g}" for share in SHARES)
    for (name, kind), points in curves.items():
        shown = (f"{accuracy:>5.1f} ({min(seen, 9999):.4g})" for seen, accuracy in points)
        yield f"{name:<16} {kind:<6} " + " ".join(f"{each:>13}" for each in shown)


def _figure_5(totals: Ints) -> tuple[Ints, dict[str, NDArray[np.bool_]]]:
    """Votes of 5,000 simulated teachers on 25,000 queries, and what each check answers."""
    many = simulated_totals(totals, teachers=TEACHERS, seed=5, queries=QUERIES)
    answered = {"no check (LNMax)": np.ones(len(many), dtype=np.bool_)}
    for name, (threshold, sigma1) in CHECKS.items():
        mechanism = ConfidentGNMax(
            num_teachers=TEACHERS,
            num_classes=many.shape[1],
            threshold=threshold,
            sigma1=sigma1,
            sigma2=ANSWER_SIGMA,
        )
        answered[name] = mechanism.release(many, SeededNoise(5)).answered
    return many, answered


def _figure_5_lines(answered: dict[str, NDArray[np.bool_]]) -> Iterator[str]:
    yield f"Figure 5: of {QUERIES:,} queries to {TEACHERS:,} simulated teachers are answered"
    for name, mask in answered.items():
        terms = CHECKS.get(name)
        noise = "" if terms is None else f" (T {terms[0]:g}, σ1 {terms[1]:g})"
        yield f"{name + noise:<40} {int(mask.sum()):>7,} ({100 * mask.mean():.1f} %)"


def _draw(
    plan: Reproduction,
    curves: dict[tuple[str, str], Curve],
    many: Ints,
    answered: dict[str, NDArray[np.bool_]],
) -> None:
    x = "ε from the votes (do not publish), δ 1e-8"
    y = "labels that are right, %"
    draw_panels(
        plan.out_dir / f"{NAME}.png",
        [
            (f"Figure 4, left: {ASKED:,} labels, 1,000 real teachers", x, y),
            ("Figure 4, right: GNMax, simulated teachers", x, y),
            (f"Figure 5: {QUERIES:,} queries, {TEACHERS:,} teachers", "votes for the first class", "queries"),
        ],
        lambda axes: _draw_panels(axes, curves, many, answered),
    )


def _draw_panels(
    axes: Any, curves: dict[tuple[str, str], Curve], many: Ints, answered: dict[str, NDArray[np.bool_]]
) -> None:
    for kind, colour in zip(("LNMax", "GNMax"), COLOURS, strict=False):
        for name, line in (("1000 real", "-"), ("5000 simulated", "--")):
            points = sorted(curves[name, kind])
            axes[0].plot(
                *zip(*points, strict=True),
                line,
                marker="o",
                markersize=3,
                color=colour,
                label=f"{kind}, {name}",
            )
    for count, colour in zip(SIMULATED, COLOURS, strict=False):
        points = sorted(curves[f"{count} simulated", "GNMax"])
        axes[1].plot(*zip(*points, strict=True), marker="o", markersize=3, color=colour, label=f"{count:,}")
    for each in axes[:2]:
        each.set_xscale("log")
        each.legend(fontsize=8)
    _draw_figure_5(axes[2], many, answered)


def _draw_figure_5(axes: Any, many: Ints, answered: dict[str, NDArray[np.bool_]]) -> None:
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
