"""Keys: what people compare, what does not travel, and labels that differ."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from pate_fed.errors import PateFedError
from pate_fed.secure_sum import Identity, fingerprint
from pate_fed.secure_sum.keys import BatchLabel, ExchangeKey


def test_secrets_are_not_pickled(federation: Any) -> None:
    for secret in (Identity.generate(), ExchangeKey.generate()):
        with pytest.raises(TypeError, match="not pickled"):
            pickle.dumps(secret)
        assert "hidden" in repr(secret)
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(federation(4).hospitals["hospital-0"])


def test_a_fingerprint_is_for_people() -> None:
    one, two = Identity.generate(), Identity.generate()
    assert Identity(one.to_bytes()).public == one.public
    assert len(fingerprint(one.public).split()) == 16 and fingerprint(one.public) != fingerprint(two.public)
    with pytest.raises(PateFedError, match="32 bytes"):
        Identity(b"short")


def test_a_label_changes_with_everything_in_it() -> None:
    base: dict[str, Any] = {"study": "s", "roster": "ab" * 32, "batch": 0, "batch_digest": "cd" * 32}
    labels = [BatchLabel(**base)]
    changes = ({"study": "t"}, {"roster": "ac" * 32}, {"batch": 1}, {"batch_digest": "ce" * 32})
    labels += [BatchLabel(**{**base, **change}) for change in changes]
    keys = {label.key(bytes(32), use, *pair) for label in labels for use in "ab" for pair in _PAIRS}
    assert len(keys) == len(labels) * 2 * len(_PAIRS)


_PAIRS = [(0, 1), (1, 0), (0, 0), (1, 256), (256, 1), (0, 2**31)]
