"""How good a student is on hospitals' own records: figures of noisy counts of held-out ones.

A count's noise is as large as all sums' together, so every interval, of 95 %, is of the noise and of chance.
All of it follows from counts that were released with noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_Z = 1.96
_STEP = 0.0005  # between shares that an interval is sought among
_GROUPS = 5  # of a calibration curve, at most
_LEAST = 1e-6  # of a chance
_SURE = 1.0  # deviations by which an operating point must win
_TOLD = 3.0  # deviations of their noise that right and wrong ones together must be from 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A share, and the ends of its interval of 95 %."""

    share: float
    low: float
    high: float

    @property
    def text(self) -> str:
        """In per cent."""
        return f"{100 * self.share:.1f} % ({100 * self.low:.1f} to {100 * self.high:.1f} %)"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRecords:
    """Figures on held-out records of all hospitals; None where the noise leaves nothing to be told.

    `records` is about how many there were, `noise` the deviation of that. Of two classes there are `auc` and
    the `roc`, shares of the first and of the second class that are called the second, and `at` is the chance
    of the second from which on it is called, where that was chosen by the same counts. `calibration` has for
    groups of records how sure the student was, and how often it was right; `slope` is below 1 where it is too
    sure, of two classes.
    """

    records: float
    noise: float
    accuracy: Estimate | None = None
    recall: tuple[Estimate | None, ...] = ()
    balanced: Estimate | None = None
    auc: Estimate | None = None
    roc: tuple[tuple[float, float], ...] = ()
    calibration: tuple[tuple[float, Estimate], ...] = ()
    slope: float | None = None
    at: float | None = None

    @property
    def text(self) -> str:
        """It in one line."""
        about = f"of about {max(0.0, self.records):,.0f} records that no sum had a part of, with noise"
        if self.accuracy is None:
            return f"nothing is told {about}"
        more = "" if self.auc is None else f", AUC {self.auc.text}"
        return f"{self.accuracy.text} right{more}, {about}"


def even_edges(shares: Floats, bins: int) -> Floats:
    """Chances at which bins end that inputs like these fill alike, for each class that is said.

    Shapes: float64 (n, classes) to (classes, bins - 1).
    """
    top, said = shares.max(axis=1), shares.argmax(axis=1)
    at = np.arange(1, bins) / bins
    own = [top[said == each] if (said == each).any() else top for each in range(shares.shape[1])]
    return np.stack([np.quantile(each, at) for each in own])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeldOutCount:
    """A table of counts, in records, with noise of `sigma` on each.

    Shapes: `table` float64 (classes · bins, classes), by the class said, how sure, and the true class;
    `edges` float64 (classes, bins - 1) are the chances at which bins end.
    """

    table: Floats
    sigma: float
    edges: Floats

    @property
    def _classes(self) -> int:
        return int(self.table.shape[1])

    @property
    def _bins(self) -> int:
        return len(self.table) // self._classes

    @property
    def _said(self) -> NDArray[np.int64]:
        return np.repeat(np.arange(self._classes), self._bins)

    @property
    def _ordered(self) -> Floats:
        """Of two classes, rows from the surest of the first to the surest of the second."""
        return np.concatenate([self.table[: self._bins][::-1], self.table[self._bins :]])

    @property
    def _ends(self) -> Floats:
        """Of two classes, log odds of the second at which the ordered rows end, but the last; rising."""
        chance = np.array([*(1 - self.edges[0][::-1]), 0.5, *self.edges[1]])
        chance = np.clip(chance, _LEAST, 1 - _LEAST)
        return np.asarray(np.log(chance / (1 - chance)))

    @property
    def _line(self) -> tuple[float, float]:
        """Of two classes, intercept and slope of the second's log odds by those that the student gives.

        The likelihood is linear in the counts, so noise leaves it right on average, and two numbers are all
        that it can sway.
        """
        from scipy.optimize import minimize  # late: reports need none of it

        ends = self._ends
        at = np.concatenate([[ends[0] - 1], (ends[1:] + ends[:-1]) / 2, [ends[-1] + 1]])

        def unlikely(line: Floats) -> float:
            odds = line[0] + line[1] * at
            no, yes = np.logaddexp(0, odds), np.logaddexp(0, -odds)
            return float(self._ordered[:, 0] @ no + self._ordered[:, 1] @ yes)

        found = minimize(unlikely, np.array([0.0, 1.0]), bounds=[(-10, 10), (0.1, 10)])
        return float(found.x[0]), float(found.x[1])

    @property
    def _best(self) -> tuple[int, float] | None:
        """From which of the ordered rows on the second class is best called, and its chance there.

        Best for the mean of both recalls is where the chance is the class's share; the nearest end of a row.
        None where that is the usual one, or does not win by more than the deviation of what it wins.
        """
        if self._classes != 2 or None in self._recall(self._right(None)):
            return None
        no, yes = self._ordered.sum(axis=0)
        intercept, slope = self._line
        ends = self._ends
        far = np.abs(ends - (math.log(yes / no) - intercept) / slope)
        # Rows that end beyond the cut are parted by other chances than the one that would be published.
        far[np.abs(ends) >= math.log((1 - _LEAST) / _LEAST) - 1e-6] = np.inf
        row = int(np.argmin(far)) + 1
        return (row, 1 / (1 + math.exp(-ends[row - 1]))) if self._wins(row) else None

    def _wins(self, row: int) -> bool:
        """Whether both recalls' mean is higher, calling from this row on, by more than its deviation."""
        first, last = sorted((row, self._bins))
        moved, whole = self._ordered[first:last].sum(axis=0), self._ordered.sum(axis=0)
        share = np.clip(moved / whole, 0, 1)
        variance = (self.sigma**2 * (last - first) / whole + share * (1 - share)) / whole
        gain = float(moved[1] / whole[1] - moved[0] / whole[0]) * (1 if row < self._bins else -1)
        return gain > _SURE * math.sqrt(float(variance.sum()))

    @property
    def shift(self) -> float | None:
        """What to add to the second class's score, so that it is called where that is best; else None."""
        best = self._best
        return None if best is None else math.log((1 - best[1]) / best[1])

    def _right(self, row: int | None) -> NDArray[np.bool_]:
        """Which counts are of right answers, as the table has them; with `row` as called from there on."""
        said = self._said
        if row is not None:
            ordered = np.arange(len(self.table)) >= row
            said = np.concatenate([ordered[: self._bins][::-1], ordered[self._bins :]]).astype(np.int64)
        return np.asarray(said[:, None] == np.arange(self._classes))

    def _uncut(self, right: NDArray[np.bool_], among: NDArray[np.bool_]) -> Estimate | None:
        """The share of right ones among some counts, and all that noise and chance do not rule out (Fieller).

        Noise may take both below 0 and above 1. It is told by how far right and wrong ones together are from
        0, in deviations: that leans to no share, as their sum would.
        """
        good, bad = int((right & among).sum()), int((among & ~right).sum())
        hits, misses = float(self.table[right & among].sum()), float(self.table[among & ~right].sum())
        count = hits + misses
        clear = math.hypot(hits / math.sqrt(max(1, good)), misses / math.sqrt(max(1, bad)))
        if clear < _TOLD * self.sigma or count < 1:
            return None
        p, found = np.arange(-1, 2, _STEP), min(2.0, max(-1.0, hits / count))
        noise = self.sigma**2 * (good * (1 - p) ** 2 + bad * p**2)
        spread = noise + count * np.maximum(0, p * (1 - p))
        ahead = bad * p * hits + good * (1 - p) * misses > 0  # else right and wrong ones both below 0
        inside = np.append(p[((hits - p * count) ** 2 <= _Z**2 * spread) & ahead], found)
        return Estimate(share=found, low=float(inside.min()) - _STEP, high=float(inside.max()) + _STEP)

    def _share(self, right: NDArray[np.bool_], among: NDArray[np.bool_]) -> Estimate | None:
        found = self._uncut(right, among)
        return None if found is None else _cut(found)

    def _recall(self, right: NDArray[np.bool_]) -> tuple[Estimate | None, ...]:
        """Of each class; uncut."""
        columns = np.eye(self._classes, dtype=np.bool_)
        return tuple(self._uncut(right, np.broadcast_to(each, right.shape)) for each in columns)

    def figures(self, *, at_threshold: bool) -> OwnRecords:
        """All of them; `at_threshold`: of two classes, as called from where that is best."""
        chosen = self._best if at_threshold else None
        right = self._right(None if chosen is None else chosen[0])
        recall, everywhere = self._recall(right), np.ones_like(right)
        more: dict[str, Any] = {}
        if self._classes == 2 and None not in recall:
            more = {"auc": self._auc(), "roc": self._roc(), "slope": round(self._line[1], 3)}
        return OwnRecords(
            records=float(self.table.sum()),
            noise=self.sigma * math.sqrt(self.table.size),
            accuracy=self._share(right, everywhere),
            recall=tuple(None if each is None else _cut(each) for each in recall),
            balanced=_mean([each for each in recall if each is not None], of=self._classes),
            calibration=self._calibration(),
            at=None if chosen is None else chosen[1],
            **more,
        )

    def _auc(self) -> Estimate | None:
        """The area under the ROC curve, ties by half; its variance by how each count moves it."""
        no, yes = self._ordered.T
        below, above = no.cumsum() - no / 2, yes[::-1].cumsum()[::-1] - yes / 2
        area = float(yes @ below / (yes.sum() * no.sum()))
        moved = ((below / no.sum() - area) / yes.sum(), (above / yes.sum() - area) / no.sum())
        variance = sum(
            float((each**2 * (self.sigma**2 + np.maximum(count, 0))).sum())
            for each, count in zip(moved, (yes, no), strict=True)
        )
        far = _Z * math.sqrt(variance)
        return _cut(Estimate(share=area, low=area - far, high=area + far))

    def _roc(self) -> tuple[tuple[float, float], ...]:
        """From (0, 0) to (1, 1); noise that would have it fall is averaged away."""
        called = np.maximum.accumulate(np.clip(self._ordered[::-1].cumsum(axis=0), 0, None), axis=0)
        shares = np.clip(called / self._ordered.sum(axis=0), 0, 1)
        points = [(0.0, 0.0), *map(tuple, shares.round(4).tolist())]
        return (*points[:-1], (1.0, 1.0))

    def _calibration(self) -> tuple[tuple[float, Estimate], ...]:
        """Groups of rows, from the least sure on, each with enough records to tell something."""
        ends = np.column_stack(
            [np.full(self._classes, 1 / self._classes), self.edges, np.ones(self._classes)]
        )
        sure = ((ends[:, 1:] + ends[:, :-1]) / 2).reshape(-1)
        right, found, group = self._right(None), [], np.zeros(len(sure), dtype=np.bool_)
        enough = float(self.table.sum()) / _GROUPS
        for row in np.argsort(sure, kind="stable"):
            group[row] = True
            among = np.broadcast_to(group[:, None], right.shape)
            weight = np.maximum(self.table[group].sum(axis=1), 0)
            told = self._share(right, among) if self.table[among].sum() >= enough else None
            if told is not None:
                found.append((round(float(np.average(sure[group], weights=weight)), 4), told))
                group[:] = False
        return tuple(found)


def _cut(found: Estimate) -> Estimate:
    """What of it can be; a share that cannot be is moved with its ends, so that these never fall on it."""
    share = min(1.0, max(0.0, found.share))
    low, high = (
        min(found.low, found.low - found.share + share),
        max(found.high, found.high - found.share + share),
    )
    return Estimate(share=share, low=max(0.0, low), high=min(1.0, high))


def _mean(parts: list[Estimate], *, of: int) -> Estimate | None:
    """Their mean, by the distances to their own ends, which are not cut yet (MOVER: Zou and Donner 2008).

    None: one is not known.
    """
    if len(parts) < of:
        return None
    share = sum(each.share for each in parts) / of
    down = math.sqrt(sum((each.share - each.low) ** 2 for each in parts)) / of
    up = math.sqrt(sum((each.high - each.share) ** 2 for each in parts)) / of
    return _cut(Estimate(share=share, low=share - down, high=share + up))
