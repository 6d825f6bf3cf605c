"""The student "class-sums": scores linear in a public feature map, from one noisy release of class sums.

It is fitted in closed form to the noisy sums and the public pool: all of it is post-processing of these.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize_scalar

from pate_fed.disk import load_arrays, open_regular, write_result
from pate_fed.errors import InputError, IntegrityError
from pate_fed.learning.features.build import feature_map_from_bytes
from pate_fed.learning.features.feature_map import FeatureMap

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_ALIKE = 1e-3  # how closely a function that is 1 on the pool is sought, against its noise
_TINY = 1e-12  # of the Gram matrix, so that its factor exists without noise too
_SHARPNESS = (-1.0, 6.0)  # range of its logarithm
_BELIEVED = 0.95  # of the pool's greatest scores
_WEIGHTS = (0.0, 0.03, 0.1, 0.3, 1.0)  # of a map's further features, against the others
# Squared weights that a round may have to add: fewer where what matters stands in features of its own.
_LACKING, _LACKING_IN_KERNEL, _LACKING_IN_DIRECTIONS = 1.0, 30.0, 4.0
_HELD_OUT = 5  # every so many of the pool's inputs tell how sure the scores are
RARE = 0.4  # of an even share of the records: a class with less is rare


class SumsStudent:
    """Scores φ(x)·W of a public feature map, as probabilities softmax(sharpness · scores + offset).

    With a `target_range` they are of a number: scores + offset say how near it is to each end, 1 for there.
    With `several` labels each two columns are of one, no and yes, and their probabilities have the sum 1.

    Shapes: `weights` float64 (dimension, classes), for features in units of the greatest length; `offset`
    float64 (classes,).
    """

    kind: ClassVar[str] = "class-sums"

    def __init__(
        self,
        feature_map: FeatureMap,
        weights: Floats,
        *,
        sharpness: float = 1.0,
        offset: Floats | None = None,
        target_range: tuple[float, float] | None = None,
        several: int = 0,
    ) -> None:
        self.feature_map, self.weights, self.sharpness = feature_map, weights, sharpness
        self.offset = np.zeros(weights.shape[1]) if offset is None else offset
        self.target_range, self.several = target_range, several
        self.num_classes = int(weights.shape[1])
        self.class_names: tuple[str, ...] = ()
        self.rare: dict[int, float] = {}  # shares of classes for whose sake all count alike; in no file

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """Height, width and channels of the images that it takes; None for rows of a table."""
        return self.feature_map.image_shape

    def logits(self, inputs: NDArray[Any]) -> Floats:
        """Logarithms of probabilities but for a constant, float64 (n, classes)."""
        return self._logits_of(self.feature_map.scaled(inputs))

    def _logits_of(self, features: NDArray[np.float32]) -> Floats:
        return np.asarray(self.sharpness * (features @ self.weights) + self.offset)

    def predict(self, inputs: NDArray[Any]) -> NDArray[np.int64]:
        """The class of each input, of a number the nearer end of its range; int64 (n,).

        Of several labels the column of the one value that is surest.
        """
        return self.predict_of(self.feature_map.scaled(inputs))

    def predict_of(self, features: NDArray[np.float32]) -> NDArray[np.int64]:
        """The same of inputs' scaled features, float32 (n, dimension)."""
        sure = self.predict_proba_of(features) if self.several else self._logits_of(features)
        return np.asarray(sure.argmax(axis=1), dtype=np.int64)

    def numbers(self, inputs: NDArray[Any]) -> Floats:
        """The number of each input, in its range: float64 (n,)."""
        assert self.target_range is not None
        low, high = self.target_range
        place = np.clip(self.logits(inputs)[:, 1], 0.0, 1.0)
        return np.asarray((1 - place) * low + place * high)

    def predict_proba(self, inputs: NDArray[Any]) -> NDArray[np.float32]:
        """Class probabilities, float32 (n, classes), rows sum to 1."""
        return self.predict_proba_of(self.feature_map.scaled(inputs))

    def predict_proba_of(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """The same of inputs' scaled features, float32 (n, dimension)."""
        logits = self._logits_of(features)
        if self.target_range is not None:
            return np.asarray(np.clip(logits, 0.0, 1.0), dtype=np.float32)
        labels = self.several or 1
        parts = logits.reshape(len(logits), labels, self.num_classes // labels)
        shares = np.exp(parts - parts.max(axis=2, keepdims=True, initial=-np.inf))
        shares /= shares.sum(axis=2, keepdims=True)
        return np.asarray(shares.reshape(logits.shape), dtype=np.float32)

    def save(self, path: Path) -> None:
        """Write the student to `path` (.npz), whole or not at all, readable by the owner only.

        Raises:
            InputError: the folder cannot be written to.
        """
        content, names = io.BytesIO(), np.array(self.class_names, dtype=np.str_)
        more = {"digest": np.array(self.feature_map.digest), "class_names": names}
        np.savez(content, **self.to_arrays(), **more)  # type: ignore[arg-type]  # as in `write_arrays`
        write_result(path, content.getvalue())

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """All that its predictions follow from, as arrays of numbers."""
        arrays: dict[str, NDArray[Any]] = {
            "feature_map": np.frombuffer(self.feature_map.to_bytes(), dtype=np.uint8),
            "weights": self.weights,
            "sharpness": np.array(self.sharpness),
            "offset": self.offset,
        }
        if self.several:
            arrays["several"] = np.array(self.several)
        return arrays if self.target_range is None else arrays | {"target_range": np.array(self.target_range)}

    @classmethod
    def load(cls, path: Path) -> SumsStudent:
        """Read what `save` wrote; no code in the file is run.

        Raises:
            InputError: no such file.
            IntegrityError: the file is damaged or is no such student.
        """
        try:
            arrays = load_arrays(path)
            names = tuple(map(str, arrays["class_names"]))
            student = cls.of_arrays(arrays, where=str(path), digest=str(arrays["digest"]))
        except InputError:  # a ValueError, too: of a map that is code of the user's own
            raise
        except FileNotFoundError as error:
            raise InputError(f"{path}: there is no such file") from error
        except (OSError, ValueError, KeyError) as error:
            raise IntegrityError(f"{path}: the file is damaged or holds no student") from error
        student.class_names = names
        return student

    @classmethod
    def of_arrays(
        cls, arrays: Mapping[str, NDArray[Any]], *, where: str, digest: str | None = None
    ) -> SumsStudent:
        """The student that `to_arrays` gave; `digest` is its feature map's, None: not known.

        Raises:
            KeyError, ValueError: an array is missing, or is another one.
            IntegrityError: the arrays do not fit together.
        """
        data = arrays["feature_map"].tobytes()
        weights, sharpness, offset = arrays["weights"], float(arrays["sharpness"]), arrays["offset"]
        feature_map = feature_map_from_bytes(data, digest=digest)
        fits = weights.dtype == np.float64 and weights.ndim == 2 and len(weights) == feature_map.dimension
        fits = fits and offset.dtype == np.float64 and offset.shape == weights.shape[1:]
        ends = arrays.get("target_range")
        if ends is not None:
            fits = fits and ends.dtype == np.float64 and ends.shape == (2,) == offset.shape
            fits = fits and bool(ends[0] < ends[1])
        several = int(arrays.get("several", 0))
        if several:
            fits = fits and several > 1 and offset.shape == (2 * several,) and ends is None
        known = (weights, sharpness, offset, *(() if ends is None else (ends,)))
        if not fits or not all(np.isfinite(part).all() for part in known):
            raise IntegrityError(f"{where}: the file is damaged or holds no student")
        target_range = None if ends is None else (float(ends[0]), float(ends[1]))
        told: dict[str, Any] = {"target_range": target_range, "several": several}
        return cls(feature_map, weights, sharpness=sharpness, offset=offset, **told)


def holds_sums(path: Path) -> bool:
    """Whether a student.npz is one of class sums, and no forest."""
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            return "feature_map.npy" in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


@dataclass(frozen=True, slots=True, eq=False)
class _Released:
    """What is known of the records, in units of the greatest length.

    Shapes: sums and centred float64 (d, classes); `noise` is σ.
    """

    sums: Floats
    noise: float

    @property
    def centred(self) -> Floats:
        """The sums less their mean over classes."""
        return np.asarray(self.sums - self.sums.mean(axis=1, keepdims=True))


@dataclass(frozen=True, slots=True, eq=False)
class _Fitted:
    """Weights float64 (d, classes), and how they follow from the centred sums: by (d, d), of n records.

    `prior` float64 (d,) is what was expected of each feature's squared weights, in units of τ²;
    `evidence` the logarithm of how likely that makes the sums, but for a constant.
    """

    weights: Floats
    turn: Floats
    gram: Floats
    records: float
    prior: Floats
    evidence: float


def fit_sums_student(
    noisy: Ints, feature_map: FeatureMap, pool: NDArray[Any], *, sigma: float, balanced: bool | None = None
) -> SumsStudent:
    """Ridge regression on classes from noisy sums and the public pool, in closed form, and its calibration.

    With G = n E φφᵀ of the pool, S = G W* + noise where scores φ·W* are class probabilities. The noise of σ
    is on S, so what is fitted is S: W = (G² + cG + λ²)⁻¹ G (S - mean over classes), the minimum of |S - GW|²
    + λ²|W|² where c is 0. λ = σ/τ, where a prior expects weights of about τ = √((1 - 1/K)/K), the deviation
    of one of K classes' indicator. Chance has its part in n records and in a pool of p: as they are drawn S
    and G waver by a variance of about τ²G, and of τ²G n/p, so c = 1 + n/p. n is what the sums say of a
    function that is 1 on the pool. Of a map's `further` features smaller weights may be expected, down to
    none: so much that the sums, N(0, τ² (GDG + cG) + σ²) by class with D the squares expected, are the most
    likely; then W = DG(GDG + cG + λ²)⁻¹ S.

    With `balanced` each class counts alike, however many records it has; None: where one is rare, below 0.4
    of an even share. Shapes: noisy int64 (dimension, classes); pool as the map takes it; `sigma` in steps, of
    the noise that is known to be in it.

    Raises:
        InputError: sums of another shape than the map's, or an empty pool.
    """
    fit = RoundsFit(feature_map, pool, sigma=sigma, length=1, unit=1)
    fit.begin(noisy)
    return fit.student(fit.fitted, sharpness=fit.sharpness, balanced=balanced)


class RoundsFit:
    """Weights of scores φ(x)·W from sums in rounds, each by what the ones before left unexplained.

    In the first question a class counts `length` times, in later ones a residual of 1 has `unit` steps;
    `sigma`, in steps, is of every question's noise.

    A step of Newton's: of n records the sums of residuals N are the slope of the likelihood of their classes,
    about H (W* - W) with H = a n E φφᵀ and a the mean variance of a class by what W says of the pool. In the
    eigenvectors of H, with values h and the noise's variance σ² along them, W += g N in round r with
    g = h / ((1 + (r - 1)/2) h² + (1 + n/p) h + σ²/λ). What 1 + n/p stands for is said at `fit_sums_student`;
    W has learnt from r - 1 rounds before, and λ is how large squared weights may be that it lacks. Both were
    chosen on private parts that were left out of the sums, as the map was (docs/class-sums.md).

    With the number of `records`, known beforehand, the first question is of residuals too, those of weights
    0, and every step has the curvature of these: it is the greatest, and whole hospitals' noise is.
    """

    def __init__(
        self,
        feature_map: FeatureMap,
        pool: NDArray[Any],
        *,
        sigma: float,
        length: int,
        unit: int,
        records: int | None = None,
    ) -> None:
        if len(pool) == 0:
            raise InputError("the pool has no inputs: one at least is meant")
        self._map, self._sigma, self._length, self._unit = feature_map, sigma, length, unit
        self.features = feature_map.scaled(pool)  # of use to whoever labels the same pool
        self._gram = mean_gram(self.features)
        self._basis: tuple[Floats, Floats] | None = None
        self._stated, self.sharpness = records, 1.0
        self._lean = 0.0  # what a class's own noise adds to how its records score, in all
        self._off = math.inf  # the deviation of how many records a class has

    def again(self, *, sigma: float, records: int | None) -> RoundsFit:
        """One of the same map and pool for other noise and records, where this one has not begun."""
        found = copy(self)
        found._sigma, found._stated = sigma, records
        return found

    def begin(self, noisy: Ints) -> Floats:
        """Weights float64 (dimension, classes) from noisy sums of classes, int64 of the same shape.

        Raises:
            InputError: sums of another shape than the map's.
        """
        if noisy.ndim != 2 or len(noisy) != self._map.dimension:
            raise InputError(f"the sums are {noisy.shape}: ({self._map.dimension}, classes) is meant")
        released, features = self._released(noisy, self._length), self.features
        mean = features.mean(axis=0, dtype=np.float64)
        if self._stated is not None:
            self._prior, even = np.ones(len(noisy)), self._stated / noisy.shape[1]
            self._counts = even + released.sums[0] / features[0, 0]
            self._off = released.noise / float(features[0, 0])
            self._sums = released.sums + even * mean[:, None]
            return self._step(np.zeros(noisy.shape), released, 0)
        counting = _counting(self._gram, mean)
        self._sums, self._counts = released.sums, np.asarray(counting @ released.sums)
        self._off = released.noise * float(np.linalg.norm(counting))
        records = self._records
        fitted = max(
            (_fit(released, self._gram, records, len(features), prior) for prior in priors(self._map)),
            key=lambda each: each.evidence,
        )
        self._prior, self.fitted = fitted.prior, fitted.weights
        self.sharpness = _sharpness(released, features, records, fitted.prior)
        self._lean = self.sharpness * released.noise**2 * float(np.trace(fitted.turn))
        return fitted.weights * self.sharpness

    def go_on(self, weights: Floats, noisy: Ints, number: int) -> Floats:
        """Weights after those that round `number`, from 1 on, was asked with, and its noisy sums."""
        return self._step(weights, self._released(noisy, self._unit), number)

    def _step(self, weights: Floats, released: _Released, number: int) -> Floats:
        if self._basis is None:
            scale = np.sqrt(self._prior)
            values, vectors = np.linalg.eigh(scale[:, None] * self._gram * scale)
            self._basis = np.maximum(values, 0.0), scale[:, None] * vectors
        values, vectors = self._basis
        records, classes = self._records, weights.shape[1]
        spread = 1 / classes  # at weights 0
        if self._stated is None:
            asked = self.student(weights, balanced=False)  # by scores as hospitals have them
            shares = asked.predict_proba_of(self.features).astype(np.float64)
            spread = float((1 - (shares**2).sum(axis=1)).mean()) / (classes - 1)
        slope = records * spread * values
        chance = (1 + records / len(self.features)) * slope
        noise = released.noise**2 * (vectors**2).sum(axis=0) + _TINY * records**2
        along = vectors.T @ released.centred
        lacking = _LACKING if self._map.further else _LACKING_IN_KERNEL
        if self._stated is not None:
            lacking = _LACKING_IN_DIRECTIONS
        gain = slope / ((1 + max(0, number - 1) / 2) * slope**2 + chance + noise / lacking)
        return np.asarray(weights + vectors @ (gain[:, None] * along))

    def student(
        self, weights: Floats, *, sharpness: float = 1.0, balanced: bool | None = None
    ) -> SumsStudent:
        """The student of these weights; with `balanced` each class counts alike; None: where one is rare."""
        found = SumsStudent(self._map, weights, sharpness=sharpness)
        rare = self._rare if balanced is None else {}
        if balanced or rare:
            found.offset, found.rare = self._halfway(sharpness * weights), rare
        return found

    @property
    def _rare(self) -> dict[int, float]:
        """Shares of classes with less than `RARE` of an even one by more than the noise's deviation."""
        counts, found = np.maximum(self._counts, 1.0), self._counts + self._off < RARE * self._counts.mean()
        return {each: float(counts[each] / counts.sum()) for each in np.flatnonzero(found).tolist()}

    def _halfway(self, weights: Floats) -> Floats:
        """What to add to scores, so that between two classes each is called from halfway on.

        That is between the means of what their records score by the released sums, less what a class's noise
        adds to its own: the weights were made of it. With more than two classes the mean over all others.
        """
        classes = weights.shape[1]
        scores = (self.features @ weights).astype(np.float64)
        own = self._lean * (np.eye(classes) - 1 / classes)
        mean = (weights.T @ self._sums - own) / np.maximum(self._counts, 1.0)  # of a score, by class
        mean = np.clip(mean, scores.min(axis=0)[:, None], scores.max(axis=0)[:, None])
        whole = np.diag(mean)
        return np.asarray(-((whole[:, None] - mean.T) + (mean - whole)).mean(axis=1) / 2)

    @property
    def _records(self) -> float:
        return max(float(self._counts.sum()), 1.0) if self._stated is None else float(self._stated)

    def _released(self, noisy: Ints, steps: int) -> _Released:
        unit = float(np.sqrt(self._map.squared_norm)) * steps
        return _Released(noisy / unit, self._sigma / unit)


def priors(feature_map: FeatureMap) -> Iterator[Floats]:
    """Squared weights that may be expected, float64 (d,) each, in units of τ²."""
    further = np.arange(feature_map.dimension) >= feature_map.dimension - feature_map.further
    for weight in _WEIGHTS if further.any() else (1.0,):
        yield np.where(further, weight, 1.0)


def mean_gram(features: NDArray[np.float32]) -> Floats:
    """The mean of φφᵀ over inputs, their covariances drawn to 0 as far as chance may have made them.

    By the share Σ var(c_ij)/Σ c_ij² of Schäfer and Strimmer 2005 (target D), i ≠ j, with the plug-in variance
    of the mean of n products. Of a large pool nothing changes.
    """
    count, mean = len(features), features.mean(axis=0, dtype=np.float64)
    gram = np.asarray((features.T @ features).astype(np.float64) / count)
    both = np.outer(mean, mean)
    covariance = gram - both
    squares = (features - mean) ** 2
    apart = covariance - np.diag(np.diag(covariance))
    far = float((apart**2).sum())
    # Σ over pairs of E x_i² x_j² without a matrix: the squared length of x, less the squares of one entry.
    lengths = squares.sum(axis=1)
    squares *= squares  # in its place, as it is large
    wavers = float((lengths**2).mean() - squares.mean(axis=0).sum() - far) / count
    return np.asarray(gram - min(1.0, max(0.0, wavers) / max(far, 1e-30)) * apart)


def _fit(released: _Released, gram: Floats, records: float, pool: int, prior: Floats) -> _Fitted:
    """Weights by a pool of so many inputs with the mean `gram` of φφᵀ."""
    whole = records * gram
    bracket = (whole * prior) @ whole + (1 + records / pool) * whole
    classes = released.sums.shape[1]
    expected = (1 - 1 / classes) / classes  # τ²
    bracket[np.diag_indices_from(bracket)] += released.noise**2 / expected + _TINY * records**2
    factor = cho_factor(bracket, lower=True, overwrite_a=True, check_finite=False)
    found = cho_solve(factor, np.hstack([whole, released.centred]))
    turn, scaled = prior[:, None] * found[:, : len(gram)].T, found[:, len(gram) :]
    spread = float((released.centred * scaled).sum()) / expected
    evidence = -spread / 2 - (classes - 1) * float(np.log(np.diag(factor[0])).sum())
    return _Fitted(turn @ released.centred, turn, gram, records, prior, evidence)


def class_counts(sums: Floats, gram: Floats, mean: Floats) -> Floats:
    """Records of each class, float64 (classes,), by a function of features that is about 1 on the pool."""
    return np.asarray(_counting(gram, mean) @ sums)


def _counting(gram: Floats, mean: Floats) -> Floats:
    """That function's weights, float64 (d,); its mean over the pool is 1."""
    bracket = gram.copy()
    bracket[np.diag_indices_from(bracket)] += _ALIKE
    ones = cho_solve(cho_factor(bracket, lower=True), mean)
    return np.asarray(ones / float(ones @ mean))


def _sharpness(released: _Released, features: NDArray[np.float32], records: float, prior: Floats) -> float:
    """The s at which softmax(s · scores) has the greatest likelihood of the labels in the sums.

    That is n (s·fit - E ln Σ exp(s·scores)): the sums tell the first, inputs of the pool that had no part in
    the Gram matrix the second. From the fit is taken what the noise and the drawing of the records, whose
    labels differ from scores by `left` in the square, add to it (Stein's lemma).
    """
    held = np.arange(len(features)) % _HELD_OUT == 0
    if not (~held).any():
        held = ~held
    fitted = _fit(released, mean_gram(features[~held]), records, int((~held).sum()), prior)
    scores = (features[held] @ fitted.weights).astype(np.float64)
    classes = scores.shape[1]
    by_noise = released.noise**2 * (classes - 1) * float(np.trace(fitted.turn))
    fit = (float((released.sums * fitted.weights).sum()) - by_noise) / records
    left = max(0.0, 1 - 1 / classes - 2 * fit + float((scores**2).sum(axis=1).mean()))
    top = scores.max(axis=1, keepdims=True)
    # More would ask for certainty: hospitals' records and the pool are not quite alike.
    fit = min(fit - left * float((fitted.gram * fitted.turn).sum()), _BELIEVED * float(top.mean()))

    def loss(log_s: float) -> float:
        s = np.exp(log_s)
        return float((np.log(np.exp(s * (scores - top)).sum(axis=1)) + s * top[:, 0]).mean() - s * fit)

    return float(np.exp(minimize_scalar(loss, bounds=_SHARPNESS, method="bounded").x))
