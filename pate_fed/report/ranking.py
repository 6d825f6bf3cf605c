"""How well probabilities of two classes tell them apart: ROC, operating points, calibration, subgroups.

All of it is of test inputs whose classes are known: public ones, or a hospital's own at home.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pate_fed.data import Schema
from pate_fed.data.csv_file import AGES, letters_of
from pate_fed.format import accuracy_text, wilson_interval
from pate_fed.report.labels import Interval, logit_interval, own_parts

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

SPECIFICITY = 0.9  # at which a test's sensitivity is stated, unless another is asked for
_STEPS = 100  # of specificity, for which a sensitivity is kept
_FEWEST = 20  # test inputs of a subgroup: fewer tell nothing
_MOST_VALUES = 6  # of a column that makes subgroups
_AGE_ENDS = (18, 40, 65)  # years at which a band begins


def by_class(probabilities: NDArray[np.generic], truth: Ints) -> tuple[Floats, Floats]:
    """How much rather the second class is said, of inputs of the first and of the second."""
    found = np.asarray(probabilities, dtype=np.float64)
    no, yes = (found[truth == each, 1] - found[truth == each, 0] for each in (0, 1))
    return no, yes


def spread_of(parts: Sequence[Floats]) -> float:
    """The variance of a sum of means."""
    return float(sum(each.var(ddof=min(1, len(each) - 1)) / len(each) for each in parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """How well probabilities of two classes tell them apart, whatever the threshold.

    `auc` is the area under the ROC curve, `interval` its 95 % interval (DeLong et al. 1988, by the logit).
    `roc` has the share of the `positive` test inputs of the second class that are found where at least 100,
    99, … 0 % of the `negative` ones of the first are told to be such.
    """

    auc: float
    interval: Interval
    roc: tuple[float, ...]
    positive: int
    negative: int

    @classmethod
    def of(cls, probabilities: NDArray[np.generic], truth: Ints) -> Ranking | None:
        """Of probabilities float (n, 2) and true classes int64 (n,), -1 unknown; None of more classes."""
        if probabilities.shape[1] != 2 or min((truth == 0).sum(), (truth == 1).sum()) < 2:
            return None
        no, yes = by_class(probabilities, truth)
        parts = own_parts(no, yes)
        auc = float(parts[0].mean())
        wanted = np.ceil(np.arange(_STEPS, -1, -1) * len(no) / _STEPS).astype(np.int64)
        cuts = np.concatenate([[-np.inf], np.sort(no)])[wanted]
        return cls(
            auc=auc,
            interval=logit_interval(auc, spread_of(parts)),
            roc=tuple(round(float((yes > cut).mean()), 6) for cut in cuts),
            positive=len(yes),
            negative=len(no),
        )

    def at(self, specificity: float = SPECIFICITY) -> tuple[float, Interval]:
        """The sensitivity there, and its 95 % interval given the threshold (Wilson)."""
        found = self.roc[math.floor((1 - specificity) * _STEPS + 1e-9)]
        return found, wilson_interval(found, self.positive)

    def predictive(
        self, prevalence: float, specificity: float = SPECIFICITY
    ) -> Iterator[tuple[float, Interval]]:
        """The positive and the negative predictive value there, where the second class has this share.

        Each with its interval by that of the sensitivity.
        """
        sick, well = prevalence, 1 - prevalence
        share, ends = self.at(specificity)
        for values in (
            [each * sick / max(1e-12, each * sick + (1 - specificity) * well) for each in (share, *ends)],
            [specificity * well / (specificity * well + (1 - each) * sick) for each in (share, *ends)],
        ):
            yield values[0], (values[1], values[2])

    @property
    def text(self) -> str:
        """The area with its interval, and the sensitivity, in words."""
        low, high = self.interval
        return (
            f"AUC {self.auc:.3f} ({low:.3f} to {high:.3f}); at a specificity of {SPECIFICITY:.0%} a "
            f"sensitivity of {accuracy_text(self.at()[0], self.positive)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationLine:
    """Intercept and slope of the second class on its log odds, 0 and 1 where these are right (Cox 1958).

    A slope below 1 is of a student that is too sure. Both with their 95 % intervals.
    """

    slope: float
    slope_interval: Interval
    intercept: float
    intercept_interval: Interval

    @classmethod
    def of(cls, probabilities: NDArray[np.generic], truth: Ints) -> CalibrationLine | None:
        """Of probabilities float (n, 2) and true classes int64 (n,); None: no finite one is most likely."""
        known = truth >= 0
        shares = np.asarray(probabilities, dtype=np.float64)[known]
        if shares.shape[1] != 2 or not len(shares):
            return None
        odds = np.clip(shares[:, 1], 1e-6, 1 - 1e-6)
        x, weights = np.stack([np.ones(len(odds)), np.log(odds / (1 - odds))], axis=1), np.zeros(2)
        for _ in range(50):
            said = 1 / (1 + np.exp(-np.clip(x @ weights, -30, 30)))
            curve = (x * (said * (1 - said))[:, None]).T @ x
            if np.linalg.det(curve) < 1e-9:
                return None
            step = np.linalg.solve(curve, x.T @ ((truth[known] == 1) - said))
            weights = weights + step
            if np.abs(step).max() < 1e-8:
                far = 1.96 * np.sqrt(np.diag(np.linalg.inv(curve)))
                (a, b), (low_a, low_b), (high_a, high_b) = (
                    map(float, each) for each in (weights, weights - far, weights + far)
                )
                ends = {"slope_interval": (low_b, high_b), "intercept_interval": (low_a, high_a)}
                return cls(slope=b, intercept=a, **ends)
        return None

    @property
    def text(self) -> str:
        """Both in words."""
        slope, intercept = self.slope_interval, self.intercept_interval
        return (
            f"Calibration slope {self.slope:.2f} ({slope[0]:.2f} to {slope[1]:.2f}), intercept "
            f"{self.intercept:.2f} ({intercept[0]:.2f} to {intercept[1]:.2f})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Subgroup:
    """The test inputs that share a value of a column, or a band of ages: how many, and how many are right.

    Of two classes there is the `auc`, where both are among them.
    """

    name: str
    count: int
    right: int
    auc: float | None = None
    auc_interval: Interval | None = None

    @property
    def share(self) -> float:
        """The accuracy."""
        return self.right / self.count

    @property
    def auc_text(self) -> str:
        """The area with its interval, "-" where it is not known."""
        if self.auc is None or self.auc_interval is None:
            return "-"
        return "{:.3f} ({:.3f} to {:.3f})".format(self.auc, *self.auc_interval)


def subgroups(
    probabilities: NDArray[np.generic], truth: Ints, rows: NDArray[np.generic], schema: Schema
) -> tuple[Subgroup, ...]:
    """By each column of few values and by bands of age, where 20 or more inputs of known class are in one.

    Probabilities float (n, classes), true classes int64 (n,), and the rows as the schema encodes them.
    """
    found = []
    for name, inside in _parts(rows[truth >= 0], schema):
        shares, true = np.asarray(probabilities)[truth >= 0][inside], truth[truth >= 0][inside]
        if len(true) < _FEWEST:
            continue
        ranking = Ranking.of(shares, true)
        auc = {} if ranking is None else {"auc": ranking.auc, "auc_interval": ranking.interval}
        right = int((shares.argmax(axis=1) == true).sum())
        found.append(Subgroup(name=name, count=len(true), right=right, **auc))  # type: ignore[arg-type]
    return tuple(found)


def _parts(rows: NDArray[np.generic], schema: Schema) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    at, numbers = 0, np.asarray(rows, dtype=np.float64)
    for name, values in schema.columns:
        for place, value in enumerate(values if len(values) <= _MOST_VALUES else ()):
            yield f"{name} {value}", numbers[:, at + place] == 1
        if not values and letters_of(name) in AGES:
            bands = ((-math.inf, _AGE_ENDS[0]), *zip(_AGE_ENDS, (*_AGE_ENDS[1:], math.inf), strict=True))
            for low, high in bands:
                words = f"below {high}" if low < 0 else f"{low} and over" if high == math.inf else ""
                inside = (numbers[:, at] >= low) & (numbers[:, at] < high)
                yield f"{name} {words or f'{low} to {high - 1}'}", inside
        at += max(1, len(values))
