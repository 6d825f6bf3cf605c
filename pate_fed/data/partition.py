"""How private records are dealt out to parties, and a party's records to its teachers.

In a simulation every party computes the same partition from the labels and the seed alone, so that the parts
are disjoint without a word between them. It depends on nothing but NumPy's raw Philox stream and its frozen
`RandomState`, both of which NumPy promises to keep.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from hashlib import blake2b, sha256

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.errors import InputError
from pate_fed.structure import nearest

Indices = NDArray[np.int64]

_KEY = 16, blake2b.MAX_KEY_SIZE  # bytes of a key by which records are dealt


def partition(
    labels: ArrayLike,
    *,
    num_parties: int,
    scheme: str = "iid",
    seed: int,
) -> list[Indices]:
    """Partition private records among parties, at random or by Dirichlet shares of each class.

    Args:
        labels: `(records,)` integers; only `dirichlet` looks at their values.
        num_parties: number of parts.
        scheme: `iid`: parts of equal size (±1) at random; `dirichlet:ALPHA`: each class is divided in shares
            drawn from a symmetric Dirichlet distribution, so that a small ALPHA gives parties few classes and
            very different sizes (Yurochkin et al. 2019, section 4).
        seed: equal seeds give equal parts.

    Returns:
        One ascending `int64` index array a party: disjoint, together every record, none empty.

    Raises:
        InputError: an unknown scheme, ALPHA not above 0, no party, or more parties than records.
    """
    values = np.asarray(labels)
    alpha = _alpha(scheme)
    _check_count(num_parties, len(values), one="party", many="parties")
    order = _shuffled(len(values), f"partition/{seed}")
    if alpha is None:
        return [np.sort(part) for part in np.array_split(order, num_parties)]
    return _by_label(values, order, num_parties, alpha, seed)


def deal_patients(
    deal: Callable[[NDArray[np.int64], int, int], list[Indices]],
    labels: NDArray[np.int64],
    patients: NDArray[np.int64],
    *,
    num_parties: int,
    seed: int,
) -> list[Indices]:
    """Deal records out so that no patient is in two parts: `deal(labels, parties, seed)` deals patients.

    A patient counts as of its records' most frequent class. Equal numbers in `patients` (n,) are one patient.
    Patients are dealt by where they stand in the data, so that another one in one's place moves no third.

    Raises:
        InputError: more parties than patients.
    """
    names, first, owner = np.unique(patients, return_index=True, return_inverse=True)
    owner = np.argsort(np.argsort(first))[owner]
    if num_parties > len(names):
        raise InputError(
            f"{num_parties} parties for {len(names)} patients: every party needs a patient of its own"
        )
    classes, place = np.unique(labels, return_inverse=True)
    pairs, times = np.unique(owner * len(classes) + place, return_counts=True)
    order = np.lexsort((-pairs, times))  # of a patient the most frequent class last, the first of equals
    usual = np.empty(len(names), dtype=np.int64)
    usual[pairs[order] // len(classes)] = classes[pairs[order] % len(classes)]
    part_of = np.empty(len(names), dtype=np.int64)
    for party, part in enumerate(deal(usual, num_parties, seed)):
        part_of[part] = party
    return [np.flatnonzero(part_of[owner] == party) for party in range(num_parties)]


def patient_numbers(names: Sequence[str]) -> Indices:
    """A number for each patient, int64 (n,), which follows from the patient's own name and nobody else's.

    Two names of 2³² have one number by chance; they then count as one patient.
    """
    known = {
        name: int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") >> 1
        for name in set(names)
    }
    return np.array([known[name] for name in names], dtype=np.int64)


def is_scheme(text: str) -> bool:
    """Whether it names a way in which `partition` deals records out."""
    try:
        _alpha(text)
    except InputError:
        return False
    return True


def split_among_teachers(
    indices: ArrayLike, *names: NDArray[np.generic], num_teachers: int, key: bytes
) -> list[Indices]:
    """Split one party's records among its teachers by a keyed hash of what names each record's unit.

    Which teacher gets a record follows from its own names, the key and the number of teachers, and from no
    other record. So a unit that comes or goes changes one part, and one that is replaced by another at most
    two: the old one's and the new one's. Parts are of about equal size; some may be empty.

    Args:
        indices: `(n,)` the party's records, as places in `names`.
        names: arrays whose rows at a place name the unit: whose the record is, where patients are taken
            together; else all that the record is, inputs and label.
        num_teachers: number of parts.
        key: 16 to 64 bytes, the party's own, which no record has a part in (BLAKE2b's key).

    Returns:
        One `int64` array a teacher, in the order of `indices`: disjoint, together all of them.

    Raises:
        InputError: no teacher, or a key of another length.
    """
    values = np.asarray(indices, dtype=np.int64)
    if num_teachers < 1:
        raise InputError(f"the number of teachers is {num_teachers}: at least 1 is needed")
    _check_key(key)
    if num_teachers == 1:
        return [values]
    owner = (_hashed(values, names, key) % np.uint64(num_teachers)).astype(np.int64)
    return [values[owner == teacher] for teacher in range(num_teachers)]


def held_out(indices: ArrayLike, *names: NDArray[np.generic], share: float, key: bytes) -> NDArray[np.bool_]:
    """Which of one party's records are held out, bool `(n,)`: about a `share` of the units, from 0 to 1.

    Whether one is follows from its own names and the key alone, as in `split_among_teachers`, whose arguments
    these are; of another hash, so that no teacher has all of them or none.

    Raises:
        InputError: a key of another length, or no share.
    """
    _check_key(key)
    if not 0 <= share <= 1:
        raise InputError(f"a share of {share}: 0 to 1 is meant")
    found = _hashed(np.asarray(indices, dtype=np.int64), names, key, person=b"held out")
    return np.asarray(found >> np.uint64(11) < round(share * 2**53))


def _check_key(key: bytes) -> None:
    if not _KEY[0] <= len(key) <= _KEY[1]:
        raise InputError(f"a key of {len(key)} bytes: {_KEY[0]} to {_KEY[1]} are meant")


def _hashed(
    values: Indices, names: tuple[NDArray[np.generic], ...], key: bytes, *, person: bytes = b""
) -> NDArray[np.uint64]:
    """A keyed hash of each place's names, uint64 (n,)."""
    found = np.empty(len(values), dtype=np.uint64)
    for place, index in enumerate(values.tolist()):
        state = blake2b(digest_size=8, key=key, person=person)
        for each in names:
            row = each[index]
            state.update(row.astype(row.dtype.newbyteorder("<"), copy=False).tobytes())
        found[place] = int.from_bytes(state.digest(), "little")
    return found


def split_by_patient(indices: ArrayLike, patients: ArrayLike, *, folds: int, seed: int) -> list[Indices]:
    """Split records into parts of equally many patients (±1), none in two, to try a model out in turn.

    Which part a patient is in follows from all patients, so this is for what does not leave a hospital; its
    teachers' parts are `split_among_teachers`.

    Args:
        indices: `(n,)` the party's records.
        patients: `(n,)`, equal for records of one patient.
        folds: number of parts.
        seed: equal seeds give equal parts.

    Returns:
        One ascending `int64` array a part: disjoint, together all of `indices`, none empty.

    Raises:
        InputError: no part, or more parts than patients.
    """
    values = np.asarray(indices, dtype=np.int64)
    names, owner = np.unique(np.asarray(patients), return_inverse=True)
    _check_count(folds, len(names), one="part", many="parts", of="patients")
    order = _shuffled(len(names), f"teachers/{seed}")
    return [np.sort(values[np.isin(owner, part)]) for part in np.array_split(order, folds)]


def _check_count(count: int, units: int, *, one: str, many: str, of: str = "records") -> None:
    if count < 1:
        raise InputError(f"the number of {many} is {count}: at least 1 is needed")
    if count > units:
        raise InputError(f"{count} {many} for {units} {of}: every {one} needs at least one")


def _alpha(scheme: str) -> float | None:
    name, colon, text = scheme.partition(":")
    if name == "iid" and not colon:
        return None
    allowed = "iid, or dirichlet:ALPHA with ALPHA a number above 0, such as dirichlet:0.5"
    if name != "dirichlet":
        hint = nearest(name, ("iid", "dirichlet"), cutoff=0.4)
        raise InputError(f"partition {scheme!r} is unknown: {allowed}{hint}")
    try:
        alpha = float(text)
    except ValueError:
        alpha = math.nan
    if not (math.isfinite(alpha) and alpha > 0):
        raise InputError(f"partition {scheme!r}: {allowed}")
    # Below, one party already takes a whole class; above, the shares are already equal.
    return min(max(alpha, 1e-6), 1e9)


def _shuffled(count: int, purpose: str) -> Indices:
    key = int.from_bytes(sha256(purpose.encode()).digest()[:16], "little")
    return np.argsort(np.random.Philox(key=key).random_raw(count), kind="stable")


def _by_label(
    labels: NDArray[np.generic], order: Indices, parties: int, alpha: float, seed: int
) -> list[Indices]:
    _, classes = np.unique(labels[order], return_inverse=True)
    grouped = order[np.argsort(classes, kind="stable")]  # class by class, at random within one
    sizes = np.bincount(classes)
    shares = _dirichlet(len(sizes), parties, alpha, seed)
    cuts = np.floor(np.cumsum(shares, axis=1) * sizes[:, None]).astype(np.int64)
    cuts[:, -1] = sizes
    counts = np.diff(cuts, axis=1, prepend=0)
    owner = np.repeat(np.tile(np.arange(parties), len(sizes)), counts.ravel())
    dealt = grouped[np.argsort(owner, kind="stable")]
    bounds = np.cumsum(counts.sum(axis=0))[:-1]
    return _fill_empty([np.sort(part) for part in np.split(dealt, bounds)])


def _dirichlet(rows: int, columns: int, alpha: float, seed: int) -> NDArray[np.float64]:
    words = np.frombuffer(sha256(f"dirichlet/{seed}".encode()).digest(), dtype="<u4")
    stream = np.random.RandomState(words.astype(np.uint32))
    # Gamma(α) = Gamma(α + 1) · U^(1/α), in logarithms: with a small α every share would underflow to 0.
    gamma = stream.standard_gamma(alpha + 1.0, size=(rows, columns))
    uniform = 1.0 - stream.random_sample((rows, columns))
    logs = np.log(gamma) + np.log(uniform) / alpha
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _fill_empty(parts: list[Indices]) -> list[Indices]:
    """Give every empty part one record of the part that is then the largest."""
    sizes = np.array([len(part) for part in parts])
    for empty in np.flatnonzero(sizes == 0):
        donor = int(sizes.argmax())
        parts[empty], parts[donor] = parts[donor][-1:].copy(), parts[donor][:-1]
        sizes[empty], sizes[donor] = 1, sizes[donor] - 1
    return parts
