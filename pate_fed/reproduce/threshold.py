"""What a threshold keeps, at one data-independent ε: labels that are right more often, of easy images.

250 light teachers on Fashion-MNIST, ε 4.05 at δ 1e-5. Each row spends the same ε; σ2 follows from how many
queries were looked at and answered. Beside the labels stands what they taught: a student's accuracy on the
inputs 7,000 to 8,999, with questions among the first 7,000. The last 1,000 images are not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pate_fed.data import Dataset, load_dataset
from pate_fed.errors import InputError
from pate_fed.reproduce.measures import accuracy_of, least_noise, shown_sd, train_and_test
from pate_fed.reproduce.plan import Reproduction
from pate_fed.reproduce.rows import append_row, bind_rows, read_rows
from pate_fed.reproduce.votes import TRAINED, inputs_of, teachers_totals

__all__ = ["SETTINGS", "ThresholdRun", "reproduce_threshold"]

EPSILON, DELTA = 4.05, 1e-5
ASKED_OF = 7000
STUDENT, TEACHER = "encoder-head", "encoder-head"
# Threshold and σ1 in votes (None: every query is answered), and the labels wanted.
SETTINGS: tuple[tuple[float | None, float | None, int], ...] = (
    (None, None, 500),
    (None, None, 1000),
    (None, None, 1500),
    (200.0, 60.0, 500),
    (200.0, 80.0, 1000),
    (240.0, 100.0, 500),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdRun:
    """One release and the student that learnt from it; shares in [0, 1].

    `agreement` is the mean share of teachers behind the plurality, among what was answered and in the pool;
    `rarest` the labels of the class with fewest, as a share of an even part.
    """

    threshold: float | None
    sigma1: float | None
    labels: int
    seed: int
    asked: int
    sigma2: float
    labels_wrong: float
    agreement: float
    agreement_pool: float
    rarest: float
    accuracy: float


def reproduce_threshold(plan: Reproduction, say: Callable[[str], None]) -> list[str]:
    """Train what is missing, write threshold.txt, and give its lines.

    Raises:
        InputError: the data is not there, or the rows there were made from other data or totals.
    """
    dataset = load_dataset("fashion-mnist", data_dir=plan.data_dir)
    kept = plan.totals or plan.out_dir / f"totals-{TEACHER}.npz"
    totals = teachers_totals(dataset, path=kept, teacher=TEACHER, device=plan.device, say=say)
    path = plan.out_dir / "threshold-runs.csv"
    bind_rows(path, inputs_of(plan, dataset, {"totals": totals}))
    runs = read_rows(path, ThresholdRun)
    done = {((run.threshold, run.sigma1, run.labels), run.seed) for run in runs}
    for seed in range(plan.seeds):
        for setting in SETTINGS:
            if (setting, seed) not in done:
                runs.append(_run(plan, dataset, totals, setting, seed))
                append_row(path, runs[-1])
                say(f"threshold {setting[0]}, {setting[2]} labels, seed {seed}: {runs[-1].accuracy:.3f}")
    lines = list(_lines([run for run in runs if run.seed < plan.seeds]))
    (plan.out_dir / "threshold.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return lines


def affordable_sigma2(*, asked: int, answered: int, sigma1: float | None, teachers: int) -> float:
    """The least σ2 (to 0.1 votes) at which looking at `asked` and answering `answered` costs at most EPSILON.

    Raises:
        InputError: the looks alone cost more.
    """
    from pate_fed.privacy import RECORD, ConfidentGNMax, GNMax, epsilon_of

    def cost(sigma2: float) -> float:
        if sigma1 is None:
            mechanism = GNMax(num_teachers=teachers, num_classes=10, sigma=sigma2)
            return epsilon_of(mechanism.cost_asked(RECORD) * answered, DELTA)
        confident = ConfidentGNMax(
            num_teachers=teachers, num_classes=10, threshold=0, sigma1=sigma1, sigma2=sigma2
        )
        looks = confident.cost_asked(RECORD) * asked
        return epsilon_of(looks + confident.cost_answered(RECORD) * answered, DELTA)

    try:
        return least_noise(cost, epsilon=EPSILON)
    except InputError as error:
        raise InputError(
            f"{asked} looks at σ1 {sigma1} cost more than ε {EPSILON:g} before any label"
        ) from error


def _run(
    plan: Reproduction,
    dataset: Dataset,
    totals: NDArray[np.int64],
    setting: tuple[float | None, float | None, int],
    seed: int,
) -> ThresholdRun:
    from pate_fed.learning import StudentSettings
    from pate_fed.privacy import GNMax, SeededNoise

    threshold, sigma1, labels = setting
    order = np.random.default_rng(seed).permutation(min(ASKED_OF, len(totals))).astype(np.int64)
    noise, teachers = SeededNoise(seed), int(totals[0].sum())
    top = totals[order].max(axis=1)
    passed = np.ones(len(order), dtype=np.bool_)
    if threshold is not None and sigma1 is not None:
        passed = top + noise.discrete_gaussian(top.shape, sigma=sigma1) >= threshold
    asked = int(np.flatnonzero(passed)[:labels][-1]) + 1
    index = order[:asked][passed[:asked]]
    sigma2 = affordable_sigma2(asked=asked, answered=len(index), sigma1=sigma1, teachers=teachers)
    mechanism = GNMax(num_teachers=teachers, num_classes=totals.shape[1], sigma=sigma2)
    label = mechanism.release(totals[index], noise).label
    _, accuracy = train_and_test(
        dataset,
        index,
        label,
        classes=totals.shape[1],
        settings=StudentSettings(name=STUDENT),
        seed=seed,
        device=plan.device,
        tested=slice(ASKED_OF, TRAINED),
    )
    return ThresholdRun(
        threshold=threshold,
        sigma1=sigma1,
        labels=labels,
        seed=seed,
        asked=asked,
        sigma2=sigma2,
        labels_wrong=float(np.mean(label != dataset.public_labels[index])),
        agreement=float(totals[index].max(axis=1).mean() / teachers),
        agreement_pool=float(top.mean() / teachers),
        rarest=float(np.bincount(label, minlength=totals.shape[1]).min() * totals.shape[1] / len(label)),
        accuracy=accuracy,
    )


def _lines(runs: list[ThresholdRun]) -> Iterator[str]:
    yield (
        f"{'T':>5} {'σ1':>5} {'labels':>6} {'asked':>6} {'σ2':>6} {'wrong, %':>9} {'agreed, %':>10} "
        f"{'rarest, %':>10} {'student, %':>11} {'± sd':>5} {'seeds':>6}"
    )
    for threshold, sigma1, labels in SETTINGS:
        some = [run for run in runs if (run.threshold, run.sigma1, run.labels) == (threshold, sigma1, labels)]
        if not some:
            continue
        accuracy, sd = accuracy_of(some)

        def mean(name: str, some: list[ThresholdRun] = some) -> float:
            return float(np.mean([getattr(run, name) for run in some]))

        yield (
            f"{'-' if threshold is None else format(threshold, 'g'):>5} "
            f"{'-' if sigma1 is None else format(sigma1, 'g'):>5} {labels:>6} {mean('asked'):>6.0f} "
            f"{mean('sigma2'):>6.1f} {100 * mean('labels_wrong'):>9.1f} {100 * mean('agreement'):>10.1f} "
            f"{100 * mean('rarest'):>10.0f} {accuracy:>11.1f} {shown_sd(sd):>5} {len(some):>6}"
        )
    if runs:
        pool = 100 * np.mean([run.agreement_pool for run in runs])
        yield f"agreed: teachers behind the plurality, of what was answered; in the whole pool {pool:.1f} %"
    yield "rarest: labels of the class with fewest, of an even part"
    yield f"each row at data-independent ε {EPSILON:g}, δ {DELTA:g}; not private: seeded noise, public data"
