"""Who takes part: a hospital's demands on a roster, and the roster once it is checked.

Guarantee: a `Members` value holds only hospitals that signed their own keys for this study, each once, in one
order, with a threshold above half of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from pate_fed.errors import InputError
from pate_fed.secure_sum.keys import KEY_BYTES, SIGNATURE_BYTES, HashTree, fingerprint, verify
from pate_fed.secure_sum.messages import Enrolment, Roster, enrolment_digest
from pate_fed.secure_sum.refusals import RefusedError, SumRefusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """What a hospital demands before it takes part; its own policy, never the coordinator's.

    `least_parties`: the smallest roster. In a roster of three, two hospitals that pool what they know read
    the third one's votes, so 3 needs `three_agreed`, and less is never accepted.
    `least_voters`: how many must survive every step, where the study's terms fix more than two thirds: noise
    that hospitals add is shared out among as many.
    `every_signature`: demand every survivor's signature before unmasking, not only the threshold's. Then no
    number of hospitals in league with the coordinator gets two sums out of one batch, but one hospital that
    is lost between its vector and its signature voids the batch. With the threshold's signatures, t of n,
    fewer than 2t - n such hospitals do not suffice.
    `trusted`: fingerprints of identities confirmed out of band, by name; where given, a roster may hold no
    others.

    Raises:
        InputError: demands that no roster should be held to.
    """

    least_parties: int = 4
    three_agreed: bool = False
    least_voters: int = 0
    every_signature: bool = False
    trusted: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        floor = 3 if self.three_agreed else 4
        if self.least_parties < floor:
            raise InputError(
                f"least_parties={self.least_parties}: a sum over fewer than {floor} hospitals is refused"
                + ("" if self.three_agreed else "; three need three_agreed")
            )


@dataclass(frozen=True, slots=True)
class Members:
    """A checked roster: by position names, identities, exchange keys and roots of sealing keys."""

    study: str
    digest: str
    coordinator: bytes
    names: tuple[str, ...]
    identities: tuple[bytes, ...]
    exchange_keys: tuple[bytes, ...]
    sealings: tuple[bytes, ...]
    threshold: int
    positions: Mapping[str, int] = field(repr=False)

    def __len__(self) -> int:
        return len(self.names)


def threshold_for(parties: int) -> int:
    """How many of `parties` must survive: at least two thirds, and always more than half."""
    return max(-(-2 * parties // 3), parties // 2 + 1)  # any two quorums share 2t - n hospitals


def read_roster(roster: Roster) -> Members:
    """The members in a roster that was checked before, without verifying its signatures again.

    Raises:
        RefusedError: lists of different lengths, or an unfit threshold.
    """
    names = tuple(roster.parties.split("\n"))  # a name holds no line break (PARTY_NAME)
    identities = _rows(roster.identities, KEY_BYTES)
    exchange_keys = _rows(roster.exchange_keys, KEY_BYTES)
    sealings, signed = _rows(roster.sealings, KEY_BYTES), len(roster.enrolments) // SIGNATURE_BYTES
    if not len(names) == len(identities) == len(exchange_keys) == len(sealings) == signed:
        raise RefusedError(SumRefusal.MALFORMED, "the roster's lists differ in length")
    if not len(names) // 2 < roster.threshold <= len(names):
        raise RefusedError(
            SumRefusal.THRESHOLD,
            f"threshold={roster.threshold} is not above half of {len(names)} hospitals and at most all",
        )
    return Members(
        study=roster.study,
        digest=roster.digest.hex(),
        coordinator=roster.coordinator,
        names=names,
        identities=identities,
        exchange_keys=exchange_keys,
        sealings=sealings,
        threshold=roster.threshold,
        positions={name: position for position, name in enumerate(names)},
    )


def check_roster(roster: Roster, own: Enrolment, coordinator: bytes, demands: Demands) -> Members:
    """A roster against a hospital's own keys and demands.

    Raises:
        RefusedError: why this hospital does not pin it; the text names the member at fault.
    """
    if roster.coordinator != coordinator or not roster.signed_by(coordinator):
        raise RefusedError(SumRefusal.COORDINATOR)
    if roster.study != own.study:
        raise RefusedError(SumRefusal.STUDY)
    members = read_roster(roster)
    check_demands(members, own.party, demands)
    _check_own(members, own)
    _check_members(members, _rows(roster.enrolments, SIGNATURE_BYTES))
    return members


def check_demands(members: Members, own: str, demands: Demands) -> None:
    """Who takes part against the demands of the hospital `own`, which may have changed since it pinned them.

    Raises:
        RefusedError: too few, too low a threshold, or somebody not confirmed; the text names the member.
    """
    if len(members) < demands.least_parties:
        raise RefusedError(SumRefusal.ROSTER_SMALL, f"{len(members)} of at least {demands.least_parties}")
    least = max(threshold_for(len(members)), demands.least_voters)
    if members.threshold < least:
        raise RefusedError(SumRefusal.THRESHOLD, f"{members.threshold} of at least {least}")
    known = demands.trusted
    if known is None:
        return
    for name, identity in zip(members.names, members.identities, strict=True):
        if name != own and known.get(name) != fingerprint(identity):
            raise RefusedError(SumRefusal.ROSTER_MEMBER, f"{name} is not confirmed with this identity")


def _check_own(members: Members, own: Enrolment) -> None:
    position = members.positions.get(own.party)
    if position is None:
        raise RefusedError(SumRefusal.ROSTER_SELF, "its name is missing")
    keys = members.identities[position], members.exchange_keys[position], members.sealings[position]
    if keys != (own.identity, own.exchange_key, HashTree(own.sealing_keys).root):
        raise RefusedError(SumRefusal.ROSTER_SELF, "its keys were changed")


def _check_members(members: Members, signatures: tuple[bytes, ...]) -> None:
    for what, values in (
        ("name", members.names),
        ("identity", members.identities),
        ("exchange key", members.exchange_keys),
    ):
        if len(set(values)) != len(members):
            raise RefusedError(SumRefusal.ROSTER_MEMBER, f"two hospitals have the same {what}")
    unsigned = _first_unsigned(
        members.study,
        members.names,
        members.identities,
        members.exchange_keys,
        members.sealings,
        signatures,
    )
    if unsigned is not None:
        raise RefusedError(SumRefusal.ROSTER_MEMBER, f"{unsigned} did not sign its keys")


@lru_cache(maxsize=4)
def _first_unsigned(
    study: str,
    names: tuple[str, ...],
    identities: tuple[bytes, ...],
    exchange_keys: tuple[bytes, ...],
    sealings: tuple[bytes, ...],
    signatures: tuple[bytes, ...],
) -> str | None:
    """The first member whose enrolment is not signed by it. Remembered, like `verify`, for simulations."""
    rows = zip(names, identities, exchange_keys, sealings, signatures, strict=True)
    for name, identity, key, sealing, signature in rows:
        if not verify(identity, signature, enrolment_digest(study, name, identity, key, sealing)):
            return name
    return None


def _rows(data: bytes, size: int) -> tuple[bytes, ...]:
    return tuple(data[at : at + size] for at in range(0, len(data), size))
