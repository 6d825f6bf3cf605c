"""How right a student of several labels is, label by label: AUC, accuracy and prevalence, with intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pate_fed.format import FEW_TRIALS, accuracy_text, printable, share_text, wilson_interval

Floats = NDArray[np.float64]
Interval = tuple[float, float]
_FEW = 10  # test inputs with a label, or without: fewer may be ranked well by chance


def own_parts(no: Floats, yes: Floats) -> tuple[Floats, Floats]:
    """The share of the other class whose scores are below each input's, ties by half: of `yes`, then of `no`.

    The mean of the first is the area under the ROC curve.
    """
    below = np.searchsorted(np.sort(no), yes) + np.searchsorted(np.sort(no), yes, side="right")
    above = np.searchsorted(np.sort(yes), no) + np.searchsorted(np.sort(yes), no, side="right")
    return below / (2 * len(no)), above / (2 * len(yes))


def logit_interval(share: float, variance: float) -> Interval:
    """A 95 % interval of a share, by its logit."""
    if not 0 < share < 1:
        return share, share
    middle, far = math.log(share / (1 - share)), 1.96 * math.sqrt(variance) / (share * (1 - share))
    low, high = (1 / (1 + math.exp(-end)) for end in (middle - far, middle + far))
    return low, high


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelFigure:
    """One label, on inputs of which `yes` have it: a yes is said from a probability of a half on.

    `auc` is None where fewer than two inputs have it, or have it not. `majority` is right in so many who
    always says the more frequent of the two.
    """

    label: str
    yes: int
    prevalence: float
    auc: float | None
    auc_interval: Interval | None
    accuracy: float
    accuracy_interval: Interval
    majority: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelFigures:
    """Figures on `count` inputs whose labels are all known; every interval is of 95 %.

    The mean AUC is of the labels that have one; its interval (DeLong et al. 1988, by the logit) knows that
    all are of the same inputs.
    """

    count: int
    mean_auc: float
    mean_auc_interval: Interval
    mean_accuracy: float
    each: tuple[LabelFigure, ...]

    @classmethod
    def of(
        cls, found: NDArray[np.floating], truth: NDArray[np.int64], names: Sequence[str]
    ) -> LabelFigures | None:
        """Of probabilities of yes, float (n, labels), and true labels as bits, int64 (n,), -1 unknown.

        None where no label has an AUC.
        """
        found, truth = np.asarray(found, dtype=np.float64)[truth >= 0], truth[truth >= 0]
        count, pulls, areas, each = len(truth), np.zeros(len(truth)), list[float](), list[LabelFigure]()
        for place, name in enumerate(names if count else ()):
            there, scores = (truth >> place & 1).astype(np.bool_), found[:, place]
            yes, right, auc, ends = int(there.sum()), float(((scores >= 0.5) == there).mean()), None, None
            if 2 <= yes <= count - 2:
                above, below = own_parts(scores[~there], scores[there])
                auc, pull = float(above.mean()), np.zeros(count)  # an input's own part in the area
                pull[there], pull[~there] = (above - auc) / yes, (1 - auc - below) / (count - yes)
                ends, pulls = logit_interval(auc, float((pull**2).sum())), pulls + pull
                areas.append(auc)
            each.append(
                LabelFigure(
                    label=printable(name),
                    yes=yes,
                    prevalence=yes / count,
                    auc=auc,
                    auc_interval=ends,
                    accuracy=right,
                    accuracy_interval=wilson_interval(right, count),
                    majority=max(yes, count - yes) / count,
                )
            )
        if not areas:
            return None
        mean = sum(areas) / len(areas)
        return cls(
            count=count,
            mean_auc=mean,
            mean_auc_interval=logit_interval(mean, float((pulls**2).sum()) / len(areas) ** 2),
            mean_accuracy=sum(one.accuracy for one in each) / len(each),
            each=tuple(each),
        )

    @property
    def rows(self) -> tuple[tuple[str, float, Interval], ...]:
        """The mean AUC, then that of each label that has one, with its interval."""
        known = ((f"AUC, {one.label}", one.auc, one.auc_interval) for one in self.each)
        return (
            ("mean AUC", self.mean_auc, self.mean_auc_interval),
            *((name, auc, ends) for name, auc, ends in known if auc is not None and ends is not None),
        )

    @property
    def _over(self) -> str:
        """The labels that the mean is of."""
        known = sum(one.auc is not None for one in self.each)
        return f"{known} of {len(self.each)} labels" if known < len(self.each) else f"{known} labels"

    @property
    def bars(self) -> tuple[tuple[str, float, Interval], ...]:
        """What is drawn."""
        return self.rows

    @property
    def header(self) -> tuple[str, ...]:
        """Names of what `table` holds."""
        return ("label", "yes", "AUC", "95 % interval", "accuracy", "always the more frequent")

    @property
    def table(self) -> tuple[tuple[str, ...], ...]:
        """A row for each label, in words."""
        return tuple(
            (
                one.label,
                f"{one.yes:,} ({share_text(one.prevalence, self.count)})",
                "-" if one.auc is None else f"{one.auc:.3f}",
                "-" if one.auc_interval is None else "{:.3f} to {:.3f}".format(*one.auc_interval),
                accuracy_text(one.accuracy, self.count),
                share_text(one.majority, self.count),
            )
            for one in self.each
        )

    @property
    def caption(self) -> str:
        """What the figures are, in a sentence or two."""
        return "AUC is the chance that an input with the label gets a greater probability than one without."

    @property
    def beside(self) -> tuple[str, str]:
        """What stands beside the mean AUC, and its value."""
        return "accuracy", share_text(self.mean_accuracy, self.count)

    @property
    def on_the_line(self) -> str:
        """For a run's last line."""
        low, high = self.mean_auc_interval
        ends = f"n={self.count} interval={low:.3f}-{high:.3f}"
        return f"mean_AUC={self.mean_auc:.3f} {ends} mean_accuracy={self.mean_accuracy:.3f}"

    def said(self, inputs: str) -> str:
        """In sentences for everybody."""
        low, high = self.mean_auc_interval
        weakest = min((one for one in self.each if one.auc is not None), key=lambda one: one.auc or 0.0)
        return (
            f"On {self.count:,} public {inputs} its mean AUC over {self._over} was "
            f"{self.mean_auc:.3f} (95 % interval {low:.3f} to {high:.3f}; 0.5 is a guess, 1 always right). "
            f"It does worst on {weakest.label}: {weakest.auc:.3f}."
        )

    @property
    def text(self) -> str:
        """In words."""
        low, high = self.mean_auc_interval
        told = [f"{one.label} {one.auc:.3f}" for one in self.each if one.auc is not None]
        return (
            f"mean AUC over {self._over} {self.mean_auc:.3f} ({low:.3f} to {high:.3f}), of {self.count:,}; "
            f"{', '.join(told)}; "
            f"mean accuracy {share_text(self.mean_accuracy, self.count)}"
        )

    @property
    def warnings(self) -> list[str]:
        """Why the figures say little, a sentence each."""
        found = []
        guessed = [one.label for one in self.each if one.auc_interval and one.auc_interval[0] <= 0.5]
        if guessed:
            found.append(
                "It may tell no better than a guess, as the interval of AUC begins at 0.5 or below: "
                f"{', '.join(guessed)}."
            )
        few = [one for one in self.each if one.auc is not None and min(one.yes, self.count - one.yes) < _FEW]
        if few:
            told = ", ".join(f"{one.label} ({min(one.yes, self.count - one.yes)})" for one in few)
            found.append(f"Fewer than {_FEW} test inputs have, or have not: {told}. Its AUC is of few.")
        if unknown := [one.label for one in self.each if one.auc is None]:
            found.append(
                f"Fewer than two test inputs have, or have not: {', '.join(unknown)}. It has no AUC."
            )
        if self.count < FEW_TRIALS:
            found.append(
                f"It was tested on {self.count:,} inputs only: {FEW_TRIALS} or more give a figure to rely on."
            )
        return found
