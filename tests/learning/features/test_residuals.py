"""What is summed in rounds: each record by itself, never longer than was agreed, whatever the weights are."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pate_fed.errors import IntegrityError
from pate_fed.learning.features.feature_map import FeatureMap, FeatureSettings, Pull, clipped
from pate_fed.learning.features.residuals import (
    FINE,
    ClassPull,
    ResidualPull,
    WholePull,
    cut_rows,
    pack_weights,
    unpack_weights,
)
from pate_fed.privacy import Protection
from pate_fed.privacy.mechanisms.class_sums import class_length, signed_sensitivity

Ints = NDArray[np.int64]

CLASSES, DIMENSION, LATTICE, LENGTH, UNIT = 3, 4, 16, 10, 20
MOST = (2**31 - 1) / FINE


class Whole(FeatureMap):
    """Inputs are the features already."""

    settings = FeatureSettings(lattice=LATTICE)
    dimension = DIMENSION

    def to_bytes(self) -> bytes:
        """Nothing."""
        return b""

    def steps(self, inputs: NDArray[Any]) -> Ints:
        """They are."""
        return inputs.astype(np.int64)


def _pull(weights: NDArray[np.float64], length: int = LENGTH, unit: int = UNIT) -> ResidualPull:
    kept = unpack_weights(pack_weights(weights), weights.shape)
    return ResidualPull(weights=kept, squared_norm=LATTICE**2, length=length, unit=unit)


def _weights() -> Iterator[NDArray[np.float64]]:
    """Honest ones, and those of a coordinator that wants to see one record alone."""
    rng, shape = np.random.default_rng(0), (DIMENSION, CLASSES)
    yield np.zeros(shape)
    yield from (rng.normal(size=shape) * scale for scale in (1.0, 30.0, 1e4))
    yield np.where(rng.uniform(size=shape) < 0.5, -MOST, MOST)
    isolating = np.full(shape, -MOST)  # sure of a class but for what has the last feature
    isolating[:, 0], isolating[-1] = MOST, [-MOST, MOST, 0]
    yield isolating


def _records(count: int) -> tuple[Ints, Ints]:
    rng = np.random.default_rng(1)
    inputs = rng.integers(0, LATTICE + 1, (count, DIMENSION))
    inputs[:DIMENSION] = LATTICE * np.eye(DIMENSION, dtype=np.int64)
    inputs[DIMENSION], inputs[DIMENSION + 1] = 0, 40 * LATTICE
    return inputs, rng.integers(0, CLASSES, count)


@pytest.mark.parametrize(("length", "unit"), [(10, 20), (1, 32), (3, 7), (32, 20), (7, 20)])
def test_no_weights_make_a_record_longer_than_was_agreed(length: int, unit: int) -> None:
    inputs, labels = _records(400)
    features = Whole().features(inputs)
    longest = 0
    for weights in _weights():
        for label in range(CLASSES):
            found = _pull(weights, length, unit)(features, np.full_like(labels, label))
            squares = (found**2).sum(axis=1)
            assert squares.max() <= length**2
            longest = max(longest, int(squares.max()))
            summed = np.einsum("nd,nk->ndk", features, found)
            assert (summed**2).sum(axis=(1, 2)).max() <= LATTICE**2 * length**2
    assert longest >= min(length, unit) ** 2 // 2  # the bound is not idle


def test_what_is_cut_is_rounded_towards_zero() -> None:
    rows = np.array([[3, -4, 0], [6, -8, 1], [-100, 99, 1], [0, 0, 0], [5, 0, 0]])
    found = cut_rows(rows, 25)
    assert found.tolist() == [[3, -4, 0], [2, -3, 0], [-3, 3, 0], [0, 0, 0], [5, 0, 0]]
    total = np.array([[-3, 4], [-1, 1]])
    assert clipped(total, 27).tolist() == total.tolist()
    assert clipped(total, 26).tolist() == [[-2, 3], [0, 0]]
    assert clipped(-total, 26).tolist() == [[2, -3], [0, 0]]


def test_a_residual_is_the_class_less_what_the_weights_say_of_it_on_average() -> None:
    inputs, labels = _records(6000)
    features = Whole().features(inputs)
    weights = np.random.default_rng(2).normal(size=(DIMENSION, CLASSES))
    scores = (features / LATTICE) @ weights
    shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    exact = np.eye(CLASSES)[labels] - shares
    exact *= np.minimum(1, LENGTH / UNIT / np.sqrt((exact**2).sum(axis=1, keepdims=True)))
    found = _pull(weights)(features, labels) / UNIT
    assert np.abs(found - exact).max() < 0.2  # rounding, and what is cut for it
    # What the dither rounds is right on average: without a cut nothing but its own chance is left.
    free = _pull(weights, length=32)(features, labels) / UNIT
    apart = free - (np.eye(CLASSES)[labels] - shares)
    assert np.abs(apart).max() <= 1.01 / UNIT
    assert np.abs(apart.mean(axis=0)).max() < 5 * apart.std() / np.sqrt(len(labels)) + 1e-3


def test_a_record_counts_the_same_alone_in_any_order_and_beside_any_others() -> None:
    inputs, labels = _records(700)
    features, order = Whole().features(inputs), np.random.default_rng(3).permutation(700)
    for weights in _weights():
        pull = _pull(weights)
        found = pull(features, labels)
        assert np.array_equal(pull(features[order], labels[order]), found[order])
        for size in (1, 7, 64):
            parts = [pull(features[at : at + size], labels[at : at + size]) for at in range(0, 700, size)]
            assert np.array_equal(np.concatenate(parts), found)


UNITS = {
    "record": lambda owners: None,
    "patient": lambda owners: owners,
}


@pytest.mark.parametrize("adjacency", ["replace-one", "add-or-remove-one"])
@pytest.mark.parametrize("unit", UNITS)
def test_neighbours_are_never_further_apart_than_is_charged_in_any_round(unit: str, adjacency: str) -> None:
    """All neighbours of small instances, with weights that set them apart as far as they can."""
    rng, protection = np.random.default_rng(4), Protection(unit=unit, adjacency=adjacency)
    most = signed_sensitivity(LATTICE**2 * LENGTH**2, protection)
    groups = UNITS[unit]
    corners = [LATTICE * row for row in np.eye(DIMENSION, dtype=np.int64)]
    worlds = [(row, label) for row in (*corners, np.full(DIMENSION, 7)) for label in range(CLASSES)]
    first: Pull = ClassPull(num_classes=CLASSES, length=class_length(LENGTH, adjacency))
    farthest = 0
    for pull in (first, *map(_pull, _weights())):
        others = rng.integers(0, LATTICE, (5, DIMENSION)), rng.integers(0, CLASSES, 5)
        for one, other in itertools.combinations(worlds, 2):
            # A unit's records: one, or three of one patient, two of them alike.
            sides = [[one], [other]] if unit == "record" else [[one, one, other], [other, other]]
            if adjacency == "add-or-remove-one":
                sides[1] = []
            total = [_summed(others, side, pull, groups) for side in sides]
            farthest = max(farthest, int(((total[0] - total[1]) ** 2).sum()))
    assert most * 0.9 < farthest <= most  # reached, as nearly as whole numbers let


CUT = 2  # records' lengths, to which all of a hospital is cut


@pytest.mark.parametrize("adjacency", ["replace-one", "add-or-remove-one"])
def test_whole_hospitals_are_never_further_apart_than_is_charged_in_any_round(adjacency: str) -> None:
    """All pairs of small hospitals, weights that set them apart, and features of any sign and length."""
    most = signed_sensitivity(
        LATTICE**2 * LENGTH**2, Protection(unit="hospital", votes_moved=CUT, adjacency=adjacency)
    )
    rows = [
        sign * far * row for row in np.eye(DIMENSION, dtype=np.int64) for sign in (1, -1) for far in (5, 500)
    ]
    rows += [np.zeros(DIMENSION, dtype=np.int64), np.full(DIMENSION, -(2**15))]
    hospitals = [[(row, label)] * count for row in rows for label in range(CLASSES) for count in (1, 30)]
    hospitals += [[], [(rows[0], 0), (rows[5], 1), (rows[-1], 2)] * 20]
    farthest, nobody = 0, np.zeros((DIMENSION, CLASSES), dtype=np.int64)
    for weights, unit in itertools.product(_weights(), (1, 4096)):
        kept = unpack_weights(pack_weights(weights), weights.shape)
        pull = WholePull(weights=kept, lattice=LATTICE, length=LENGTH, unit=unit)
        sums = [_of_hospital(own, pull) for own in hospitals]
        assert all(int((each**2).sum()) <= most for each in sums)
        others = itertools.repeat(nobody) if adjacency == "add-or-remove-one" else None
        pairs = zip(sums, others, strict=False) if others else itertools.combinations(sums, 2)
        farthest = max(farthest, *(int(((one - other) ** 2).sum()) for one, other in pairs))
    assert most * 0.9 < farthest <= most


def _of_hospital(records: list[tuple[Ints, int]], pull: WholePull) -> Ints:
    inputs = np.array([row for row, _ in records], dtype=np.int64).reshape(-1, DIMENSION)
    labels = np.array([label for _, label in records], dtype=np.int64)
    given: dict[str, Any] = {"num_classes": CLASSES, "most_units": CUT, "pull": pull, "kept": inputs}
    return Whole().contributions(inputs, labels, **given)


def test_what_a_whole_hospital_adds_is_its_residuals_where_nothing_is_cut() -> None:
    rng = np.random.default_rng(8)
    inputs, labels = rng.integers(-LATTICE, LATTICE, (6, DIMENSION)), rng.integers(0, CLASSES, 6)
    weights = rng.normal(size=(DIMENSION, CLASSES))
    pull = WholePull(weights=weights, lattice=LATTICE, length=LENGTH, unit=UNIT)
    shares = np.exp(inputs / LATTICE @ weights)
    exact = inputs.T @ (np.eye(CLASSES)[labels] - shares / shares.sum(axis=1, keepdims=True)) * UNIT
    found = Whole().contributions(
        inputs, labels, num_classes=CLASSES, most_units=10**6, pull=pull, kept=inputs
    )
    assert np.abs(found - exact).max() <= 1


def _summed(
    others: tuple[Ints, Ints],
    own: list[tuple[Ints, int]],
    pull: Pull,
    groups: Callable[[Ints], Ints | None],
) -> Ints:
    inputs = np.concatenate([others[0], *[row[None] for row, _ in own]])
    labels = np.concatenate([others[1], np.array([label for _, label in own], dtype=np.int64)])
    owners = np.concatenate([np.arange(len(others[1])), np.full(len(own), 99)])
    return Whole().contributions(inputs, labels, num_classes=CLASSES, groups=groups(owners), pull=pull)


def test_features_at_hand_give_the_very_same_sums() -> None:
    inputs, labels = _records(2300)
    owners = np.random.default_rng(5).integers(0, 1500, 2300)
    for pull in (
        None,
        ClassPull(num_classes=CLASSES, length=14),
        _pull(next(itertools.islice(_weights(), 2, 3))),
    ):
        for groups in (None, owners):
            given: dict[str, Any] = {"num_classes": CLASSES, "groups": groups, "pull": pull}
            kept = Whole().features(inputs).astype(np.int16)
            found = Whole().contributions(inputs, labels, **given)
            assert np.array_equal(Whole().contributions(inputs, labels, **given, kept=kept), found)


def test_weights_are_read_as_they_were_packed_and_no_others() -> None:
    weights = np.random.default_rng(6).normal(size=(DIMENSION, CLASSES)) * 100
    packed = pack_weights(weights)
    found = unpack_weights(packed, weights.shape)
    assert np.abs(found - weights).max() <= 0.5 / FINE and pack_weights(found) == packed
    assert np.isfinite(unpack_weights(bytes(range(48)), weights.shape)).all()
    assert unpack_weights(pack_weights(np.full((1, 2), 1e300)), (1, 2)).tolist() == [[MOST, MOST]]
    for wrong in (b"", packed[:-1], packed + b"\0" * 4):
        with pytest.raises(IntegrityError, match=r"\(4, 3\) of 4 bytes are meant"):
            unpack_weights(wrong, weights.shape)
