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
    held_out,
    partition,
    split_among_teachers,
    split_by_patient,
)
from pate_fed.data.partition import patient_numbers
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
    indices=st.lists(st.integers(0, 10**3), min_size=1, max_size=60, unique=True),
    teachers=st.integers(1, 70),
    key=st.binary(min_size=16, max_size=64),
)
def test_teachers_share_all_of_a_party_s_records(indices: list[int], teachers: int, key: bytes) -> None:
    names = np.arange(1001) // 2
    parts = split_among_teachers(np.array(indices), names, num_teachers=teachers, key=key)
    assert len(parts) == teachers and all(part.dtype == np.int64 for part in parts)
    assert sorted(np.concatenate(parts).tolist()) == sorted(indices)
    owners = [set(names[part].tolist()) for part in parts]
    assert sum(map(len, owners)) == len(set().union(*owners))  # who is two records' teaches one teacher


def test_parts_of_teachers_are_of_about_equal_size_and_another_key_deals_otherwise() -> None:
    everyone, names = np.arange(20_000), np.arange(20_000)
    one, two = (split_among_teachers(everyone, names, num_teachers=10, key=bytes([n]) * 16) for n in (1, 2))
    sizes = np.array([len(part) for part in one])
    assert abs(sizes - 2000).max() < 5 * np.sqrt(2000)
    both = [len(np.intersect1d(a, b)) for a in one for b in two]
    assert min(both) > 120 and max(both) < 290  # 200, as if dealt anew


def test_who_teaches_whom_is_the_same_on_every_machine() -> None:
    inputs = np.arange(400, dtype=np.uint8).reshape(100, 2, 2, 1)
    for names in ((inputs, np.arange(100) % 3), (inputs, (np.arange(100) % 3).astype(">i8"))):
        parts = split_among_teachers(np.arange(100), *names, num_teachers=4, key=b"k" * 32)
        digest = sha256(b"|".join(part.astype("<i8").tobytes() for part in parts)).hexdigest()
        assert digest[:16] == "c5d6d8477fd6e0c7"


def test_patients_numbers_follow_from_their_names_alone() -> None:
    some = patient_numbers(["b", "a", "b", "Zoë"])
    assert some[0] == some[2] and len(set(some.tolist())) == 3 and some.min() >= 0
    assert patient_numbers(["Zoë"])[0] == some[3]


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


def test_no_teacher_and_no_key_are_errors() -> None:
    with pytest.raises(InputError, match="teachers is 0"):
        split_among_teachers(np.arange(3), np.arange(3), num_teachers=0, key=b"k" * 16)
    for key in (b"", b"k" * 15, b"k" * 65):
        with pytest.raises(InputError, match="key of"):
            split_among_teachers(np.arange(3), np.arange(3), num_teachers=2, key=key)


def test_no_patient_is_in_two_parts_and_none_is_lost() -> None:
    patients = np.repeat(np.arange(40), np.arange(40) % 5 + 1)
    indices = np.arange(len(patients)) + 100
    parts = split_by_patient(indices, patients, folds=6, seed=3)
    assert sorted(np.concatenate(parts).tolist()) == indices.tolist()
    owners = [set(patients[part - 100].tolist()) for part in parts]
    assert sorted(len(each) for each in owners) == [6, 6, 7, 7, 7, 7]
    with pytest.raises(InputError, match="41 parts for 40 patients"):
        split_by_patient(indices, patients, folds=41, seed=3)


def test_held_out_follows_from_a_record_and_the_key_alone() -> None:
    """About the share, the same in any company, by patient where names are patients'."""
    rows = np.arange(6000, dtype=np.float32).reshape(-1, 2)
    key, everyone = b"k" * 32, np.arange(len(rows))
    out = held_out(everyone, rows, share=0.2, key=key)
    assert abs(out.mean() - 0.2) < 0.03
    some = everyone[::-3]
    np.testing.assert_array_equal(held_out(some, rows, share=0.2, key=key), out[some])
    assert (held_out(everyone, rows, share=0.2, key=b"j" * 32) != out).mean() > 0.2
    patients = np.repeat(np.arange(1000), 3)
    by_patient = held_out(everyone, patients, share=0.5, key=key).reshape(-1, 3)
    assert (by_patient == by_patient[:, :1]).all() and abs(by_patient.mean() - 0.5) < 0.05
    dealt = split_among_teachers(everyone, rows, num_teachers=4, key=key)
    assert all(0.1 < out[part].mean() < 0.3 for part in dealt)
    assert not held_out(everyone, rows, share=0.0, key=key).any()
    assert held_out(everyone, rows, share=1.0, key=key).all()
    for bad in ({"share": 1.5}, {"share": -0.1}, {"key": b"short"}):
        with pytest.raises(InputError):
            held_out(everyone, rows, **{"share": 0.2, "key": key, **bad})
