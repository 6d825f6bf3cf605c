"""The section of a study that people read before they accept it."""

from __future__ import annotations

from dataclasses import dataclass

from pate_fed.structure import check, entries, refusal, setting

_MOST_SAID = 500  # characters of one text


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Who asks hospitals, and what for: for people, who read it before they accept. Empty: not stated."""

    requester: str = setting("", help="who asks: a person or an institution", most=_MOST_SAID)
    purpose: str = setting("", help="what the student will be used for", most=_MOST_SAID)
    legal_basis: str = setting("", help="the consent, law or approval that allows it", most=_MOST_SAID)
    contact: str = setting("", help="whom to ask, and who is told of a withdrawal", most=_MOST_SAID)
    retention: str = setting("", help="how long labels, student and ledger are kept", most=_MOST_SAID)

    def __post_init__(self) -> None:
        check(self)
        for entry in entries(About):
            if not getattr(self, entry.name).isprintable():
                raise refusal(
                    self, entry.name, f"one line of at most {_MOST_SAID} printable characters is meant"
                )
