"""Feature maps of the user's own: public, non-negative, at most 1 long; cut to that by our code.

A part is one of
- `make(public)`, a function or a class that gives a function, or an object with `transform(inputs)`: from
  inputs as they are, images uint8 (n, height, width, channels) or rows float64 (n, features), to features
  (n, dimension). `public` are the public inputs that get labels.
- an object with `fit` and `transform`, or a class that gives one without arguments: any transformer of
  scikit-learn. It is fitted to the public inputs, as float64 rows, images flattened and scaled to [0, 1].
An input's features follow from that input alone, are finite, not negative, and no longer than 1 together.

A hospital asks about one record at a time, takes for 0 what is negative or no number, cuts what is too long,
and rounds down to the lattice in its own code. So what a record adds by itself is bounded whatever a map
gives. That it changes nothing of what others add is the code's word, and ε rests on it: a map may remember
records. What remembers by accident is found, by public inputs and some records that are asked about before
all records and after them. What hides that it remembers is not: see `Terms.assumptions`, docs/privacy.md.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError
from pate_fed.learning.features.feature_map import FeatureMap, FeatureSettings
from pate_fed.learning.teachers.own import flat_rows
from pate_fed.structure import to_plain
from pate_fed.structure.faults import telling
from pate_fed.structure.parts import PartIdentity, load_part, part_identity

Inputs = NDArray[Any]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Encode = Callable[[Inputs], Any]

KIND = "feature map"
MOST_FEATURES = 1_000_000
_TRIED = 24  # public inputs on which a map is tried, and looked at again after the records
_AGAIN = 8  # of a hospital's records, asked about before all of them and after
_NEAR = 1e-6


class OwnFeatures(FeatureMap):
    """The map that a part makes of the public inputs, cut to the lattice's length."""

    def __init__(
        self, settings: FeatureSettings, part: PartIdentity, encode: Encode, public: Inputs, dimension: int
    ) -> None:
        self.settings, self.part = settings, part
        self._encode, self._dimension, self._shape = encode, dimension, tuple(public.shape[1:])
        self._probes = public[:_TRIED]
        self._expected = self._asked(self._probes)

    @property
    def dimension(self) -> int:
        """Features of one input."""
        return self._dimension

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """As of the pool; None for rows of a table."""
        if len(self._shape) != 3:
            return None
        height, width, channels = self._shape
        return height, width, channels

    def to_bytes(self) -> bytes:
        """The same as JSON: no code is in it."""
        content = {
            "settings": to_plain(self.settings),
            "part": to_plain(self.part),
            "dimension": self.dimension,
        }
        return json.dumps(content, sort_keys=True).encode()

    def steps(self, inputs: Inputs) -> Ints:
        """Inputs to int64 (n, dimension): one at a time, so that none has a part in another's features."""
        if inputs.shape[1:] != self._shape:
            raise InputError(f"inputs {inputs.shape[1:]}: {self._shape} is meant, as of the public inputs")
        return np.floor(self.settings.lattice * self._asked(inputs)).astype(np.int64)

    def asked_alone(self, inputs: Inputs) -> Floats:
        """Features of a few records, before all of them are asked about."""
        return self._asked(_some(inputs))

    def require_alike(self, inputs: Inputs, before: Floats | None) -> None:
        """Refuse, by an InputError, code that says afterwards something else than before.

        That is seen on public inputs and on a few records, the last of them asked about first.
        """
        after = self._asked(_some(inputs)[::-1])[::-1]
        alike = before is not None and np.array_equal(after, before)
        if not alike or not np.array_equal(self._asked(self._probes), self._expected):
            raise InputError(f"{self._what}: remembers records; features of one input alone are meant")

    @property
    def _what(self) -> str:
        return f"{KIND} {self.part.name!r}"

    def _asked(self, inputs: Inputs) -> Floats:
        """Features from 0 to 1, float64 (n, dimension), whatever the code gives."""
        found = np.zeros((len(inputs), self._dimension))
        for row in range(len(inputs)):
            with telling(f"{self._what}: fails on an input", quoting=False):
                one = np.asarray(self._encode(inputs[row : row + 1].copy()), dtype=np.float64)
            if one.shape != (1, self._dimension):
                raise InputError(
                    f"{self._what}: gives another number of features for one input than for others"
                )
            found[row] = one[0]
        return np.clip(np.nan_to_num(found, nan=0.0, posinf=1.0, neginf=0.0), 0.0, 1.0)


def _some(inputs: Inputs) -> Inputs:
    return np.asarray(inputs)[np.linspace(0, len(inputs) - 1, min(_AGAIN, len(inputs)), dtype=np.int64)]


def own_features(
    settings: FeatureSettings, public: Inputs, *, part: PartIdentity | None = None
) -> OwnFeatures:
    """The map of a part, made of the public inputs (n, ...) and tried on some of them.

    `part` is its identity where that is known, and was held against the code that is here.

    Raises:
        InputError: the part cannot be loaded, fails, or gives no such features; the message names it.
    """
    what = f"{KIND} {settings.name!r}"
    encode = _make(load_part(settings.name, KIND), public, what)
    tried = public[:_TRIED]
    features = _tried(encode, tried, what)
    for again, why in (
        (lambda: _tried(encode, tried, what), "gives other features each time"),
        (
            lambda: np.concatenate([_tried(encode, tried[row : row + 1], what) for row in range(len(tried))]),
            "gives an input other features alone than beside others; each is asked about alone",
        ),
    ):
        found = again()
        if found.shape != features.shape or not np.allclose(found, features, rtol=1e-4, atol=1e-6):
            raise InputError(f"{what}: {why}")
    identity = part or part_identity(settings.name, KIND)
    return OwnFeatures(settings, identity, encode, public, features.shape[1])


def _make(part: Any, public: Inputs, what: str) -> Encode:
    fits = callable(getattr(part, "fit", None)) and callable(getattr(part, "transform", None))
    if not fits and not callable(part):
        raise InputError(
            f"{what}: is a {type(part).__name__}; make(public), or an object with fit and transform, is meant"
        )
    with telling(f"{what}: fails when it is made"):
        if fits:
            made = part() if isinstance(part, type) else copy.deepcopy(part)
            made.fit(flat_rows(public))
            return lambda inputs: made.transform(flat_rows(inputs))
        made = part(public)
    encode = getattr(made, "transform", made)
    if not callable(encode):
        raise InputError(
            f"{what}: made a {type(made).__name__}; a function of inputs, or an object with transform, is "
            "meant"
        )
    found: Encode = encode
    return found


def _tried(encode: Encode, inputs: Inputs, what: str) -> Floats:
    """Features of public inputs, float64 (n, dimension).

    Raises:
        InputError: the code fails, or gives no features.
    """
    with telling(f"{what}: fails on public inputs"):
        found = np.asarray(encode(inputs.copy()), dtype=np.float64)
    if found.ndim != 2 or len(found) != len(inputs) or not 0 < found.shape[1] <= MOST_FEATURES:
        raise InputError(
            f"{what}: gives {found.shape} for {len(inputs)} inputs; ({len(inputs)}, features) is meant"
        )
    if not np.isfinite(found).all():
        raise InputError(f"{what}: gives features that are NaN or infinite; numbers from 0 to 1 are meant")
    if found.min() < -_NEAR:
        raise InputError(f"{what}: gives a feature of {found.min():.4g}; none below 0 is meant")
    longest = float(np.sqrt((found * found).sum(axis=1)).max())
    if longest > 1 + _NEAR:
        raise InputError(
            f"{what}: gives features of a length of {longest:.6g}; at most 1 for each input is meant, as a "
            "record that is longer is cut"
        )
    return found
