"""What the guards around Flower's commands are told, through the environment of a child.

Apart from `pate_fed.flower.guard`, whose imports of Flower's server take a second and which only the children
need.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkGuard:
    """What a SuperLink's guard needs: bytes of a hospital's largest reply, and how many hospitals."""

    most_bytes: int
    hospitals: int

    def to_json(self) -> str:
        """For the environment of the child."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGuard:
    """What a SuperNode's guard needs: bytes of the largest request, the hospital's certificate, its key.

    `certificate` is PEM; `key` is a file in OpenSSH's format, whose content nothing here shows.
    """

    most_bytes: int
    certificate: str
    key: str

    def to_json(self) -> str:
        """For the environment of the child."""
        return json.dumps(asdict(self))
