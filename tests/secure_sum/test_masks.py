"""Masks hide: uniform, never shared, from keys of full strength. Each test rejects a mask that does not."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare

from pate_fed.errors import InputError
from pate_fed.secure_sum import SumRange
from pate_fed.secure_sum.keys import BatchLabel
from pate_fed.secure_sum.masks import Masker
from pate_fed.secure_sum.messages import MaskedVector

LENGTH = 20_000


def _looks_uniform(vector: Any) -> bool:
    """Chi-square over each byte of the entries, and over differences of neighbours, at 1e-9 in all."""
    columns = list(vector.view(np.uint8).reshape(len(vector), -1).T)
    columns.append(np.diff(vector).view(np.uint8).reshape(len(vector) - 1, -1)[:, 0])
    worst = min(chisquare(np.bincount(column, minlength=256)).pvalue for column in columns)
    return bool(worst > 1e-9 / len(columns))


def _masked(parties: Any, values: Any, batch: Any) -> list[MaskedVector]:
    requests = parties.until("share", values, batch=batch).mask_requests()
    return [parties.ask(name, requests[name], values[i]) for i, name in enumerate(parties.names)]


@pytest.mark.parametrize("summed", [SumRange.votes(100), SumRange.noisy()])
def test_masked_vectors_are_uniform_and_votes_are_not(
    summed: SumRange, federation: Any, vectors: Any
) -> None:
    parties, values = federation(4), vectors(4, LENGTH, most=1)
    replies = _masked(parties, values, parties.open(LENGTH, summed))
    for reply, votes in zip(replies, values, strict=True):
        assert _looks_uniform(reply.vector)
        assert not _looks_uniform(votes.astype(reply.vector.dtype))
        assert abs(np.corrcoef(reply.vector, votes)[0, 1]) < 0.05


def test_partial_sums_are_uniform_too(federation: Any, vectors: Any) -> None:
    """What the coordinator could add up before it unmasks, in any subset, and even over all of them."""
    parties, values = federation(4), vectors(4, LENGTH, most=1)
    replies = _masked(parties, values, parties.open(LENGTH))
    for size in range(1, 5):
        for chosen in itertools.combinations(replies, size):
            total = np.zeros(LENGTH, dtype=np.uint32)
            for reply in chosen:
                total += reply.vector
            assert _looks_uniform(total)


def test_the_uniformity_test_rejects_weak_masks() -> None:
    rng = np.random.default_rng(1)
    even = rng.integers(0, 2**32, LENGTH, dtype=np.uint32)
    assert _looks_uniform(even)
    assert not _looks_uniform(even & ~np.uint32(1 << 7))
    assert not _looks_uniform(rng.integers(0, 2**31, LENGTH, dtype=np.uint32))
    assert not _looks_uniform(np.arange(LENGTH, dtype=np.uint32) + even[0])


def test_no_two_masks_are_alike(federation: Any) -> None:
    """Zero votes show the masks: over hospitals, batches and runs they all differ, pairs cancel aside."""
    zeros, seen = np.zeros((4, 8), dtype=np.int64), []
    for _run in range(2):
        parties = federation(4)
        for _batch in range(3):
            seen += [reply.vector.tobytes() for reply in _masked(parties, zeros, parties.open(8))]
    assert len(set(seen)) == len(seen) == 24


def _ours(key: bytes) -> bytes:
    masker = Masker(4, 32)
    total = np.zeros(masker.length, dtype=masker.dtype)
    masker.add(total, key)
    return total.tobytes()


def _derived(secret: bytes) -> bytes:
    return _ours(BatchLabel("s", "ab" * 32, 0, "cd" * 32, 0).key(secret, "pair mask", 0, 1))


def _seeded(seed: int) -> bytes:
    return hashlib.sha256(seed.to_bytes(4, "big")).digest()[:16]


def _folded_to_32(key: bytes) -> bytes:
    """What Flower's SecAgg+ does: all words of the key, XORed into 32 bits."""
    return _seeded(int(np.bitwise_xor.reduce(np.frombuffer(key, dtype="<u4"))))


def _cut_to_32(key: bytes) -> bytes:
    return _seeded(int.from_bytes(key[:4], "big"))


def _hashed_to_32(key: bytes) -> bytes:
    return _seeded(int.from_bytes(hashlib.sha256(key).digest()[:4], "big"))


def _hashed_to_128(key: bytes) -> bytes:
    return hashlib.sha256(hashlib.sha256(key).digest()[:16]).digest()[:16]


def _is_strong(mask: Callable[[bytes], bytes]) -> bool:
    """Whether 256 bits of a key matter: no two keys that differ in one or two bits, nor 2^18 others, collide.

    A mask that depends on 32 bits, however they are taken from the key, collides among 2^18 keys but with a
    chance of exp(-8).
    """
    base = hashlib.sha256(b"base").digest()
    bits = [1 << bit for bit in range(256)]
    changes = [0, *bits, *(one | two for one, two in itertools.combinations(bits[::4], 2))]
    changes += [bits[at] | bits[at + gap] for gap in (8, 32, 64, 128) for at in range(256 - gap)]
    number = int.from_bytes(base, "big")
    near = {number ^ change for change in changes}
    keys = [value.to_bytes(32, "big") for value in near]
    if len({mask(key) for key in keys}) < len(keys):
        return False
    stream = np.random.default_rng(7).bytes(32 << 18)
    return len({mask(stream[at : at + 32]) for at in range(0, len(stream), 32)}) == 1 << 18


def test_a_mask_uses_all_of_its_key() -> None:
    assert _is_strong(_ours)


def test_a_derived_mask_uses_all_of_its_secret() -> None:
    secrets = {bytes(32), b"\1" + bytes(31), bytes(31) + b"\1", b"\x80" + bytes(31)}
    assert len({_derived(secret) for secret in secrets}) == len(secrets)


@pytest.mark.parametrize("weak", [_folded_to_32, _cut_to_32, _hashed_to_32])
def test_a_key_of_32_bits_is_found_out(weak: Callable[[bytes], bytes]) -> None:
    assert not _is_strong(weak)


def test_a_key_of_128_bits_passes() -> None:
    assert _is_strong(_hashed_to_128)


def test_a_mask_takes_no_shorter_key() -> None:
    for size in (0, 4, 16, 31, 33):
        with pytest.raises(InputError, match="32 bytes"):
            _ours(bytes(size))


def test_adding_and_taking_cancel_and_lengths_agree() -> None:
    for bits, length in ((16, 1), (16, 33), (32, 1), (32, 1000)):
        masker = Masker(length, bits)
        total = masker.residues(np.arange(length, dtype=np.int64) - 5)
        before = total.copy()
        masker.add(total, b"k" * 32)
        assert (total != before).any()
        masker.take(total, b"k" * 32)
        np.testing.assert_array_equal(total, before)
    for bad in ((0, 32), (5, 8), (5, 64)):
        with pytest.raises(InputError):
            Masker(*bad)
