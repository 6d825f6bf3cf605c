"""Terms of any kind: frozen values with one text and one digest, by which both sides name them."""

from __future__ import annotations

import hashlib
import json
from typing import TypeVar

from pate_fed.errors import IntegrityError
from pate_fed.structure import entries, from_plain, to_plain

__all__ = ["Agreed", "digest_of"]

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
        try:
            values = json.loads(text)
            if isinstance(values, dict) and set(values) != {entry.name for entry in entries(cls)}:
                raise IntegrityError(
                    "the study's terms have missing or unknown fields: both sides must run one release"
                )
            terms = from_plain(cls, values, where="the study's terms", error=IntegrityError)
        except (ValueError, TypeError, RecursionError) as error:
            raise IntegrityError("the study's terms are not readable") from error
        if to_plain(terms) != values:  # what is left out of a section would be each side's own default
            raise IntegrityError("the study's terms do not say all that they hold")
        return terms

    @property
    def digest(self) -> str:
        """SHA-256 of the terms, hex; named in every later message."""
        return digest_of(b"pate_fed/v1 terms", self.to_json().encode())
