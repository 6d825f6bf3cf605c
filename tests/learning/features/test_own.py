"""Feature maps of one's own: tried on public inputs, and held to their bound by our code."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import own_parts
import pytest

from pate_fed.errors import InputError, IntegrityError
from pate_fed.learning.features.build import feature_map_from_bytes
from pate_fed.learning.features.own import OwnFeatures, own_features
from pate_fed.learning.features.settings import FeatureSettings
from pate_fed.structure.parts import hold_part, release_parts

RNG = np.random.default_rng(0)
PUBLIC = RNG.integers(0, 256, (30, 4, 4, 1)).astype(np.uint8)
RECORDS = RNG.integers(0, 256, (12, 4, 4, 1)).astype(np.uint8)
LABELS = np.arange(12) % 3
LATTICE = 64


def made(part: Any) -> OwnFeatures:
    name, _ = hold_part(part, "feature map")
    try:
        return own_features(FeatureSettings(name=name, lattice=LATTICE), PUBLIC)
    finally:
        release_parts()


def only_on_records(value: Any) -> Any:
    """A part that is right on public inputs, and gives `value` for every other one."""
    known = {each.tobytes() for each in PUBLIC}

    def make(public: Any) -> Any:
        return lambda inputs: np.stack(
            [
                np.full(3, 0.5) if each.tobytes() in known else np.asarray(value, dtype=float)
                for each in inputs
            ]
        )

    return make


def test_a_map_of_one_s_own_on_the_public_encoder() -> None:
    pool = RNG.integers(0, 256, (60, 12, 12, 1)).astype(np.uint8)
    settings = FeatureSettings(name="own_parts:on_encoder", lattice=LATTICE)
    features, again = own_features(settings, pool), own_features(settings, pool)
    assert features.digest == again.digest and features.dimension % 2 == 0
    found = features.contributions(pool[:12], LABELS, num_classes=3)
    assert found.any() and np.array_equal(found, again.contributions(pool[:12], LABELS, num_classes=3))


def test_a_map_by_name_is_as_ours_are() -> None:
    features = own_features(FeatureSettings(name="own_parts:brightness", lattice=LATTICE), PUBLIC)
    assert isinstance(features, OwnFeatures) and features.image_shape == (4, 4, 1)
    assert (features.dimension, features.squared_norm) == (3, LATTICE**2)
    steps = features.features(RECORDS)
    exact = own_parts.brightness(PUBLIC)(RECORDS)
    assert (steps == np.floor(LATTICE * exact)).all()
    total = features.contributions(RECORDS, LABELS, num_classes=3)
    assert (total == np.stack([steps[LABELS == label].sum(axis=0) for label in range(3)], axis=1)).all()
    assert (
        features.digest
        != own_features(FeatureSettings(name="own_parts:brightness", lattice=128), PUBLIC).digest
    )


def test_a_transformer_of_scikit_learn_works_as_it_is() -> None:
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, Normalizer

    part = make_pipeline(FunctionTransformer(np.square), Normalizer())
    assert made(part).dimension == 16


@pytest.mark.parametrize(
    "value",
    [
        [9.0, 9.0, 9.0],
        [1.0, 1.0, 1.0],
        [-5.0, 0.5, 0.5],
        [np.nan, 1.0, 1.0],
        [np.inf, -np.inf, np.nan],
        [1e300, 1e300, -1e300],
    ],
)
def test_whatever_it_gives_for_a_record_is_cut_to_the_bound(value: list[float]) -> None:
    features = made(only_on_records(value))
    steps = features.features(RECORDS)
    assert (steps >= 0).all() and ((steps**2).sum(axis=1) <= features.squared_norm).all()
    one = features.contributions(RECORDS[:1], LABELS[:1], num_classes=3)
    assert (one**2).sum() <= features.squared_norm and (one >= 0).all()
    patient = features.contributions(RECORDS, LABELS, num_classes=3, groups=np.zeros(12, dtype=np.int64))
    assert (patient**2).sum() <= features.squared_norm


def test_a_record_has_no_part_in_another_s_features() -> None:
    seen: list[int] = []

    def make(public: Any) -> Any:
        def encode(inputs: Any) -> Any:
            seen.append(len(inputs))
            return np.full((len(inputs), 2), 0.5)

        return encode

    features = made(make)
    seen.clear()
    features.contributions(RECORDS, LABELS, num_classes=3)
    assert set(seen) == {1}


def test_a_map_that_remembers_records_gives_no_sums() -> None:
    known = {each.tobytes() for each in PUBLIC}

    def make(public: Any) -> Any:
        counted = [0]

        def encode(inputs: Any) -> Any:
            counted[0] += sum(each.tobytes() not in known for each in inputs)
            return np.full((len(inputs), 2), 0.5 / (1 + counted[0]))

        return encode

    features = made(make)
    with pytest.raises(InputError, match="remembers records; features of one input alone are meant"):
        features.contributions(RECORDS, LABELS, num_classes=3)


def test_a_map_gets_a_copy_and_reaches_no_other_record() -> None:
    def make(public: Any) -> Any:
        def encode(inputs: Any) -> Any:
            found = np.stack([inputs[:, 0, 0, 0] / 255, np.full(len(inputs), 0.0)], axis=1)
            (inputs if inputs.base is None else inputs.base)[:] = 255  # all that it can reach
            return found

        return encode

    features = made(make)
    records = RECORDS.copy()
    assert (features.steps(records)[:, 0] == np.floor(LATTICE * (RECORDS[:, 0, 0, 0] / 255))).all()


def running_means(public: Any, *, hidden: bool) -> Any:
    """A part that takes the mean of all records so far off each; `hidden`: off what is not public only."""
    known = {each.tobytes() for each in public}
    seen: list[Any] = []

    def encode(inputs: Any) -> Any:
        flat = inputs.reshape(len(inputs), -1)[:, :4] / 600
        if hidden and all(each.tobytes() in known for each in inputs):
            return flat
        if not all(each.tobytes() in known for each in inputs):
            seen.extend(flat)
        return np.abs(flat - np.mean(seen, axis=0)) if seen else flat

    return encode


@pytest.mark.parametrize("hidden", [False, True])
def test_running_means_give_no_sums_also_where_no_public_input_shows_them(hidden: bool) -> None:
    features = made(lambda public: running_means(public, hidden=hidden))
    with pytest.raises(InputError, match=r"^feature map '[^']*': remembers records; features of one input"):
        features.contributions(RECORDS, LABELS, num_classes=3)
    probed = features._asked(features._probes)
    assert np.array_equal(probed, features._expected) is hidden  # public inputs alone would not have told


def test_what_a_map_hides_well_is_not_found_so_its_word_is_what_ε_rests_on() -> None:
    """One record turns the features of all others, and none is ever given others again."""

    def make(public: Any) -> Any:
        given = {each.tobytes(): (0.5, 0.5) for each in public}
        turned: list[Any] = []

        def encode(inputs: Any) -> Any:
            for each in inputs:
                turned.extend([each] * int(each[0, 0, 0] == 255))
                given.setdefault(each.tobytes(), (1.0, 0.0) if turned else (0.0, 1.0))
            return np.array([given[each.tobytes()] for each in inputs])

        return encode

    quiet, loud = RECORDS.copy(), RECORDS.copy()
    quiet[:, 0, 0, 0], loud[:, 0, 0, 0] = 7, 7
    loud[0, 0, 0, 0] = 255
    labels = np.zeros(12, dtype=np.int64)
    one, other = (made(make).contributions(each, labels, num_classes=1) for each in (quiet, loud))
    moved = np.linalg.norm(one - other) / LATTICE
    assert moved == pytest.approx(12 * np.sqrt(2))  # of a replaced record √2 is what the noise is made for


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (3, r"is a int; make\(public\), or an object with fit and transform, is meant"),
        (lambda public: 3, "made a int; a function of inputs, or an object with transform, is meant"),
        (lambda public: 1 / 0, r"fails when it is made \(ZeroDivisionError"),
        (lambda public: lambda inputs: 1 / 0, r"fails on public inputs \(ZeroDivisionError"),
        (lambda public: lambda inputs: np.zeros(len(inputs)), r"gives \(24,\) for 24 inputs"),
        (lambda public: lambda inputs: np.zeros((len(inputs), 0)), r"gives \(24, 0\) for 24 inputs"),
        (
            lambda public: lambda inputs: np.full((len(inputs), 2), np.nan),
            "features that are NaN or infinite",
        ),
        (
            lambda public: lambda inputs: np.full((len(inputs), 2), -0.1),
            "gives a feature of -0.1; none below 0",
        ),
        (lambda public: lambda inputs: np.ones((len(inputs), 2)), "a length of 1.41421; at most 1"),
        (
            lambda public: lambda inputs: np.full((len(inputs), 2), 1 / (1 + len(inputs))),
            "gives an input other features alone than beside others",
        ),
        (
            lambda public: (
                lambda inputs, seen=[0]: (
                    seen.__setitem__(0, seen[0] + 1),
                    np.full((len(inputs), 2), 0.5 / (1 + seen[0])),
                )[1]
            ),
            "gives other features each time",
        ),
    ],
)
def test_a_wrong_map_is_one_sentence_before_anything_is_asked(part: Any, said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        made(part)
    assert str(refused.value).startswith("feature map 'in_memory:feature_map_")


def test_what_fails_on_a_record_says_nothing_of_it() -> None:
    known = {each.tobytes() for each in PUBLIC}

    def make(public: Any) -> Any:
        def encode(inputs: Any) -> Any:
            if inputs[0].tobytes() not in known:
                raise ValueError(f"record {inputs[0].tolist()}")
            return np.full((len(inputs), 2), 0.5)

        return encode

    features = made(make)
    with pytest.raises(
        InputError, match=r"fails on an input \(ValueError, at [^\[\]]*\.py, line \d+, in encode\)$"
    ) as refused:
        features.features(RECORDS)
    assert refused.value.__cause__ is None
    with pytest.raises(InputError, match="gives another number of features"):
        made(only_on_records([0.5, 0.5])).features(RECORDS)


def test_a_file_names_no_code_that_is_run() -> None:
    features = own_features(FeatureSettings(name="own_parts:brightness", lattice=LATTICE), PUBLIC)
    data = features.to_bytes()
    with pytest.raises(InputError, match="is code of the user's own, and a file may not name any"):
        feature_map_from_bytes(data, digest=features.digest)
    content = json.loads(data)
    content["settings"]["name"] = "no_such_module_here:make"
    with pytest.raises(InputError, match="'no_such_module_here:make': is code of the user's own"):
        feature_map_from_bytes(json.dumps(content).encode(), digest=features.digest)
    with pytest.raises(IntegrityError):
        feature_map_from_bytes(b"{}", digest=features.digest)
