"""How near a student's numbers come to true ones: R², mean absolute error and RMSE, with their intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_Z = 1.96
_ODD = 0.05  # of true numbers at an end of the range: more are told


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFigures:
    """Errors on `count` inputs with true numbers, in the target's own unit; every interval is of 95 %.

    `r2` is 1 less the mean squared error over the variance: 0 for whoever always says these inputs' mean.
    `usual` is that one's mean absolute error. True numbers beyond the range count as its nearer end: `at_end`
    of them are there or beyond.
    Intervals are of large samples, on a logarithmic scale.
    """

    count: int
    r2: float
    r2_interval: tuple[float, float]
    mae: float
    mae_interval: tuple[float, float]
    rmse: float
    rmse_interval: tuple[float, float]
    usual: float
    at_end: int

    @classmethod
    def of(cls, found: Floats, truth: Floats, ends: tuple[float, float]) -> TargetFigures | None:
        """Of told and true numbers, float64 (n,) each, in a range; None of fewer than two, or all alike."""
        if len(truth) < 2 or not truth.std():
            return None
        wrong, far = np.abs(found - truth), (truth - truth.mean()) ** 2
        square = float((wrong**2).mean())
        left = square / float(far.mean())
        low, high = _about(left, wrong**2 - left * far, scale=float(far.mean()))
        around = _about(square, wrong**2)
        return cls(
            count=len(truth),
            r2=1 - left,
            r2_interval=(1 - high, 1 - low),
            mae=float(wrong.mean()),
            mae_interval=_about(float(wrong.mean()), wrong),
            rmse=math.sqrt(square),
            rmse_interval=(math.sqrt(around[0]), math.sqrt(around[1])),
            usual=float(np.abs(truth - truth.mean()).mean()),
            at_end=int(np.isin(truth, ends).sum()),
        )

    @property
    def rows(self) -> tuple[tuple[str, float, tuple[float, float]], ...]:
        """Each figure by its name, with its interval."""
        return (
            ("R²", self.r2, self.r2_interval),
            ("mean absolute error", self.mae, self.mae_interval),
            ("RMSE", self.rmse, self.rmse_interval),
        )

    @property
    def bars(self) -> tuple[tuple[str, float, tuple[float, float]], ...]:
        """What is drawn: R², with ends from 0 to 1."""
        low, high = (min(1.0, max(0.0, end)) for end in self.r2_interval)
        return (("R²", max(0.0, self.r2), (low, high)),)

    @property
    def header(self) -> tuple[str, ...]:
        """Names of what `table` holds."""
        return ("figure", "value", "95 % interval")

    @property
    def table(self) -> tuple[tuple[str, ...], ...]:
        """A row for each figure, in words."""
        rows = [(name, f"{value:.4g}", f"{low:.4g} to {high:.4g}") for name, value, (low, high) in self.rows]
        return (*rows, ("error of always the mean", f"{self.usual:.4g}", "-"))

    @property
    def caption(self) -> str:
        """What the figures are, in a sentence or two."""
        return (
            "R² is the share of the variance that it tells. A true number beyond the range counts as its "
            "nearer end."
        )

    @property
    def beside(self) -> tuple[str, str]:
        """What stands beside R², and its value."""
        return "off by", f"{self.mae:.3g}"

    @property
    def on_the_line(self) -> str:
        """For a run's last line."""
        low, high = self.r2_interval
        return f"R2={self.r2:.3f} n={self.count} interval={low:.3f}-{high:.3f} MAE={self.mae:.4g}"

    def said(self, inputs: str) -> str:
        """In a sentence for everybody."""
        least, most = self.mae_interval
        return (
            f"On {self.count:,} public {inputs} it was off by {self.mae:.3g} in the mean (95 % interval "
            f"{least:.3g} to {most:.3g}), where always saying their mean is off by {self.usual:.3g}."
        )

    @property
    def text(self) -> str:
        """In words."""
        told = [f"{name} {value:.3g} ({low:.3g} to {high:.3g})" for name, value, (low, high) in self.rows]
        return f"{', '.join(told)}, of {self.count:,}; always the mean: {self.usual:.3g} off"

    @property
    def warnings(self) -> list[str]:
        """Why the figures say little, a sentence each."""
        (low, high), found = self.r2_interval, list[str]()
        if high < 0:
            found = ["The student is worse than always saying the mean: its interval of R² lies below 0."]
        elif low <= 0:
            found = ["The student may be no better than always saying the mean: its interval of R² holds 0."]
        if self.at_end > _ODD * self.count:
            found.append(
                f"{self.at_end:,} of {self.count:,} true numbers are at an end of the declared range or "
                "beyond it, which counts as that end: of those beyond, errors are larger than these."
            )
        return found


def _about(mean: float, values: Floats, *, scale: float = 1.0) -> tuple[float, float]:
    """An interval of a mean above 0, by the spread of what it is linear in, over `scale`."""
    if mean <= 0:
        return mean, mean
    factor = math.exp(_Z * float(values.std()) / (scale * math.sqrt(len(values)) * mean))
    return mean / factor, mean * factor
