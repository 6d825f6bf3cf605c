"""Terms of any kind: frozen values with one text and one digest, by which both sides name them."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from typing import TypeVar

from pate_fed.errors import IntegrityError
from pate_fed.structure import entries, from_plain, to_plain

A = TypeVar("A", bound="Agreed")


def digest_of(*parts: bytes) -> str:
    """SHA-256 over length-prefixed parts, so that no two lists of parts collide."""
    state = hashlib.sha256()
    for part in parts:
        state.update(len(part).to_bytes(8, "big"))
        state.update(part)
    return state.hexdigest()


class Agreed:
    """Terms that both sides name by their digest: frozen values with one canonical text."""

    __slots__ = ()

    def to_json(self) -> str:
        """Canonical JSON: equal terms give equal text."""
        return json.dumps(to_plain(self), sort_keys=True, separators=(",", ":"), ensure_ascii=True)

    @classmethod
    def from_json(cls: type[A], text: str) -> A:
        """Terms from their canonical JSON.

        Raises:
            IntegrityError: not JSON, fields missing or unknown, or values that the terms refuse.
        """
        kind: type = cls
        terms = _read(kind, text)
        assert isinstance(terms, cls)
        return terms

    @property
    def digest(self) -> str:
        """SHA-256 of the terms, hex; named in every later message."""
        return _digest(_Same(self))


# Parties that one process plays in turn read the same terms with every message.


@lru_cache(maxsize=4)
def _read(cls: type, text: str) -> Agreed:
    try:
        values = json.loads(text)
        if isinstance(values, dict) and set(values) != {entry.name for entry in entries(cls)}:
            raise IntegrityError(
                "the study's terms have missing or unknown fields: both sides must run one release"
            )
        terms: Agreed = from_plain(cls, values, where="the study's terms", error=IntegrityError)
    except (ValueError, TypeError, RecursionError) as error:
        raise IntegrityError("the study's terms are not readable") from error
    if to_plain(terms) != values:  # what is left out of a section would be each side's own default
        raise IntegrityError("the study's terms do not say all that they hold")
    return terms


class _Same:
    """One very object as a key: equal terms may have different texts, as 0.0 and -0.0 have."""

    __slots__ = ("terms",)

    def __init__(self, terms: Agreed) -> None:
        self.terms = terms

    def __hash__(self) -> int:
        return id(self.terms)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.terms is other.terms


@lru_cache(maxsize=4)
def _digest(one: _Same) -> str:
    return digest_of(b"pate_fed/v1 terms", one.terms.to_json().encode())
