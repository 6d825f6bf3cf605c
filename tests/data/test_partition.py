"""Laws of dealing out: disjoint, complete, none empty, the same for everyone who asks."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pate_fed.data import (
    partition,
    split_among_teachers,
    split_by_patient,
)
from pate_fed.errors import InputError

SCHEMES = st.one_of(
    st.just("iid"),
    st.floats(1e-320, 1e300).map(lambda alpha: f"dirichlet:{alpha!r}"),
    st.sampled_from(["dirichlet:0.5", "dirichlet:0.01", "dirichlet:100"]),
)


@st.composite
def dealings(draw: st.DrawFn) -> tuple[NDArray[np.int64], int]:
    labels = draw(st.lists(st.integers(0, 5), min_size=1, max_size=80))
    return np.array(labels, dtype=np.int64), draw(st.integers(1, len(labels)))


@settings(deadline=None)
@given(dealing=dealings(), scheme=SCHEMES, seed=st.integers(0, 2**63 - 1))
def test_parts_are_disjoint_complete_ascending_and_never_empty(
    dealing: tuple[NDArray[np.int64], int], scheme: str, seed: int
) -> None:
    labels, parties = dealing
    parts = partition(labels, num_parties=parties, scheme=scheme, seed=seed)
    assert len(parts) == parties
    assert all(len(part) >= 1 and part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
    again = partition(labels, num_parties=parties, scheme=scheme, seed=seed)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


@settings(deadline=None)
@given(
    indices=st.lists(st.integers(0, 10**6), min_size=1, max_size=60, unique=True),
    data=st.data(),
    seed=st.integers(0, 2**31),
)
def test_teachers_share_a_party_s_records_evenly(indices: list[int], data: st.DataObject, seed: int) -> None:
    teachers = data.draw(st.integers(1, len(indices)))
    parts = split_among_teachers(np.array(indices), num_teachers=teachers, seed=seed)
    assert sorted(np.concatenate(parts).tolist()) == sorted(indices)
    sizes = [len(part) for part in parts]
    assert len(sizes) == teachers and max(sizes) - min(sizes) <= 1 and min(sizes) >= 1


def test_iid_parts_have_equal_sizes_and_mixed_labels() -> None:
    labels = np.repeat(np.arange(10), 600)
    parts = partition(labels, num_parties=25, seed=3)
    assert {len(part) for part in parts} == {240}
    shares = np.stack([np.bincount(labels[part], minlength=10) for part in parts]) / 240
    assert shares.min() > 0.02 and shares.max() < 0.2


@pytest.mark.parametrize(("alpha", "least", "most"), [(100.0, 0.0, 0.2), (0.05, 0.55, 1.0)])
def test_a_small_alpha_gives_parties_few_classes(alpha: float, least: float, most: float) -> None:
    labels = np.repeat(np.arange(10), 600)
    parts = partition(labels, num_parties=25, scheme=f"dirichlet:{alpha}", seed=3)
    top = [np.bincount(labels[part], minlength=10).max() / len(part) for part in parts]
    assert least <= np.mean(top) <= most


def test_dirichlet_shares_have_the_moments_of_the_distribution() -> None:
    # One class of many records: a party's share of it has mean 1/P and variance (P-1)/(P²(Pα+1)).
    parties, alpha, labels = 5, 0.5, np.zeros(20_000, dtype=np.int64)
    shares = np.array(
        [
            [
                len(part) / len(labels)
                for part in partition(labels, num_parties=parties, scheme="dirichlet:0.5", seed=s)
            ]
            for s in range(300)
        ]
    )
    assert shares.mean() == pytest.approx(1 / parties)
    expected = (parties - 1) / (parties**2 * (parties * alpha + 1))
    assert shares.var() == pytest.approx(expected, rel=0.12)


def test_other_seeds_deal_otherwise() -> None:
    labels = np.arange(1000) % 10
    for scheme in ("iid", "dirichlet:0.5"):
        first, second = (partition(labels, num_parties=4, scheme=scheme, seed=seed) for seed in (1, 2))
        assert not all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(
    ("scheme", "digest"), [("iid", "43fabd4e68f866e8"), ("dirichlet:0.3", "18da3abe01a4421a")]
)
def test_the_parts_are_the_same_on_every_machine(scheme: str, digest: str) -> None:
    parts = partition(np.arange(5000) % 7, num_parties=40, scheme=scheme, seed=1)
    assert sha256(b"|".join(part.astype("<i8").tobytes() for part in parts)).hexdigest()[:16] == digest


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scheme": "iidd"}, ["'iidd'", "did you mean iid"]),
        ({"scheme": "iid:1"}, ["'iid:1'", "iid, or dirichlet:ALPHA"]),
        ({"scheme": "dirichlett:0.5"}, ["did you mean dirichlet"]),
        ({"scheme": "dirichlet"}, ["above 0"]),
        ({"scheme": "dirichlet:0"}, ["'dirichlet:0'", "above 0"]),
        ({"scheme": "dirichlet:-1"}, ["above 0"]),
        ({"scheme": "dirichlet:nan"}, ["above 0"]),
        ({"scheme": "dirichlet:inf"}, ["above 0"]),
        ({"scheme": "dirichlet:much"}, ["above 0"]),
        ({"num_parties": 0}, ["parties is 0", "at least 1"]),
        ({"num_parties": -3}, ["parties is -3"]),
        ({"num_parties": 11}, ["11 parties", "10 records"]),
        ({"num_parties": 11, "scheme": "dirichlet:1"}, ["11 parties", "10 records"]),
    ],
)
def test_bad_input_is_named(options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        partition(np.zeros(10, dtype=np.int64), **{"num_parties": 2, "seed": 0, **options})
    assert all(word in str(caught.value) for word in words), caught.value


def test_more_teachers_than_records_is_an_error() -> None:
    with pytest.raises(InputError, match="4 teachers for 3 records"):
        split_among_teachers(np.array([4, 8, 9]), num_teachers=4, seed=0)


def test_no_patient_is_in_two_parts_and_none_is_lost() -> None:
    patients = np.repeat(np.arange(40), np.arange(40) % 5 + 1)
    indices = np.arange(len(patients)) + 100
    parts = split_by_patient(indices, patients, num_teachers=6, seed=3)
    assert sorted(np.concatenate(parts).tolist()) == indices.tolist()
    owners = [set(patients[part - 100].tolist()) for part in parts]
    assert sorted(len(each) for each in owners) == [6, 6, 7, 7, 7, 7]
    with pytest.raises(InputError, match="41 teachers for 40 patients"):
        split_by_patient(indices, patients, num_teachers=41, seed=3)
