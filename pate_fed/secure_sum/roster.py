"""Who takes part: a hospital's demands on a roster, and the roster once it is checked.

Guarantee: a `Members` value holds only hospitals that signed their own keys for this study, each once, in one
order, with a threshold above half of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from pate_fed.errors import InputError
from pate_fed.secure_sum.graph import Graph, in_league
from pate_fed.secure_sum.keys import KEY_BYTES, SIGNATURE_BYTES, HashTree, fingerprint, verify
from pate_fed.secure_sum.messages import Enrolment, Positions, Roster, RosterPinned, enrolment_digest
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
    fewer than 2t - n such hospitals do not suffice; against several rosters that holds in either case.
    `colluders`: how many hospitals may be in league with the coordinator by the study's terms; where not all
    mask with all, the graph is made for as many, or for a fifth.
    `trusted`: fingerprints of identities confirmed out of band, by name. A roster may hold others, that a
    coordinator may have made up, but none of these names with another key.
    `least_confirmed`: how many of the other hospitals must be confirmed so; None: as many as protect
    (`confirmed_for`); 0: nobody, as in a simulation. Where not all mask with all, so many of those near it,
    too, or as many of these as protect whoever the others are.
    `most_strangers`: how many may not be, where ε counts on the noise of the others.

    Raises:
        InputError: demands that no roster should be held to.
    """

    least_parties: int = 4
    three_agreed: bool = False
    least_voters: int = 0
    every_signature: bool = False
    colluders: int = 0
    trusted: Mapping[str, str] = field(default_factory=dict)
    least_confirmed: int | None = 0
    most_strangers: int | None = None

    def __post_init__(self) -> None:
        floor = 3 if self.three_agreed else 4
        if self.least_parties < floor:
            raise InputError(
                f"least_parties={self.least_parties}: a sum over fewer than {floor} hospitals is refused"
                + ("" if self.three_agreed else "; three need three_agreed")
            )

    def confirmed_of(self, parties: int, threshold: int) -> int:
        """How many of the others in a roster of so many must be confirmed here."""
        least = self.least_confirmed
        if least is None:
            least = confirmed_for(parties, threshold, colluders=self.colluders)
        strangers = self.most_strangers
        return min(parties - 1, least if strangers is None else max(least, parties - 1 - strangers))

    @property
    def confirmed_in_sum(self) -> int:
        """How many confirmed hospitals must be in each sum: of fewer it would tell too much."""
        least = self.least_confirmed
        return _IN_SUM if least is None else min(_IN_SUM, least)

    def confirms(self, name: str, identity: bytes) -> bool:
        """Whether this identity was confirmed under this name."""
        return self.trusted.get(name) == fingerprint(identity)


_SHOWN = 5  # at once in a sentence
_IN_SUM = 2  # others that are real: with one alone, that one reads this hospital's vector


def confirmed_for(parties: int, threshold: int, *, colluders: int = 0) -> int:
    """How many others one must have confirmed so that all the rest, if made up, read nothing of it.

    The rest and the coordinator are one; whom the study's terms count as in league are among them. They must
    be fewer than 2 `threshold` - `parties`, or no more than the graph is made for; and two others are to be
    in a sum.
    """
    return min(parties - 1, max(_IN_SUM, parties - in_league(parties, threshold, colluders) - 1))


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
    colluders: int
    graph: Graph = field(repr=False)
    positions: Mapping[str, int] = field(repr=False)

    def __len__(self) -> int:
        return len(self.names)


def threshold_for(parties: int) -> int:
    """How many of `parties` must survive: at least two thirds, and always more than half."""
    return max(-(-2 * parties // 3), parties // 2 + 1)  # any two quorums share 2t - n hospitals


@lru_cache(maxsize=4)
def unpack_roster(data: bytes) -> Roster:
    """A roster in its bytes. Remembered, like `verify`, for simulations: it is the same for all hospitals."""
    return Roster.from_bytes(data)


@lru_cache(maxsize=4)
def read_roster(roster: Roster) -> Members:
    """The members in a roster, of which no signature is verified here.

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
        colluders=roster.colluders,
        graph=Graph.of(roster.digest.hex(), len(names), roster.threshold, roster.colluders),
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
    _check_members(members, members.positions[own.party], _rows(roster.enrolments, SIGNATURE_BYTES))
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
    if members.colluders != demands.colluders:
        text = f"a graph for {members.colluders} hospitals in league, where {demands.colluders} are agreed"
        raise RefusedError(SumRefusal.THRESHOLD, text)
    if not (demands.trusted or demands.least_confirmed != 0 or demands.most_strangers is not None):
        return
    others = {
        name: demands.confirms(name, identity)
        for name, identity in zip(members.names, members.identities, strict=True)
        if name != own
    }
    unknown = [name for name, confirmed in others.items() if not confirmed]
    changed = [name for name in unknown if name in demands.trusted]
    if changed:
        text = f"another key than was confirmed has {', '.join(changed)}: telephone it, with a new admission"
        raise RefusedError(SumRefusal.CONFIRMED, f"{text}; {_said(members, changed)}")
    needed = demands.confirmed_of(len(members), members.threshold)
    if len(others) - len(unknown) < needed:
        text = f"{needed} of the other {len(others)} are wanted, not confirmed are {', '.join(unknown)}"
        raise RefusedError(SumRefusal.CONFIRMED, f"{text}; {_said(members, unknown)}")
    near = [members.names[at] for at in members.graph.near(members.positions[own]).tolist()]
    strange = [name for name in near if not others.get(name, True)]
    protects = 2 * (members.graph.size - members.graph.least)
    wanted = min(needed, protects if demands.least_confirmed is None else _IN_SUM)
    if len(near) - 1 - len(strange) < wanted:
        text = f"{wanted} of the {len(near) - 1} near this hospital are wanted, not confirmed are"
        raise RefusedError(SumRefusal.CONFIRMED, f"{text} {', '.join(strange)}; {_said(members, strange)}")


def _said(members: Members, names: Sequence[str]) -> str:
    """The words of some members as the roster has them, to be held against what these read out."""
    shown = [f"{name}={fingerprint(members.identities[members.positions[name]])}" for name in names[:_SHOWN]]
    return f"the coordinator says {', '.join(shown)}{' and others' * (len(names) > _SHOWN)}"


def roster_pinned(members: Members, position: int, signature: bytes) -> bool:
    """Whether this hospital has signed that it pinned this roster; an honest one pins no other."""
    told = RosterPinned(roster=members.digest, party=members.names[position])
    return len(signature) == SIGNATURE_BYTES and verify(members.identities[position], signature, told.digest)


def enough_confirmed(members: Members, own: str, demands: Demands, chosen: Positions) -> bool:
    """Whether of the chosen, by position, as many near ones are confirmed as are demanded in a sum."""
    near = members.graph.among(members.positions[own], chosen)
    found = (
        members.names[at] != own and demands.confirms(members.names[at], members.identities[at])
        for at in near.tolist()
    )
    return demands.confirmed_in_sum == 0 or sum(found) >= min(demands.confirmed_in_sum, len(members) - 1)


def _check_own(members: Members, own: Enrolment) -> None:
    position = members.positions.get(own.party)
    if position is None:
        raise RefusedError(SumRefusal.ROSTER_SELF, "its name is missing")
    keys = members.identities[position], members.exchange_keys[position], members.sealings[position]
    if keys != (own.identity, own.exchange_key, HashTree(own.sealing_keys).root):
        raise RefusedError(SumRefusal.ROSTER_SELF, "its keys were changed")
    if len(own.sealing_keys) < KEY_BYTES * members.graph.size:  # others would seal under none of its making
        raise RefusedError(SumRefusal.ROSTER_SELF, "it was asked for fewer sealing keys than it needs")


def _check_members(members: Members, own: int, signatures: tuple[bytes, ...]) -> None:
    """Each once, and those near have signed their keys; of the others no key is used but the identity."""
    for what, values in (
        ("name", members.names),
        ("identity", members.identities),
        ("exchange key", members.exchange_keys),
    ):
        if len(set(values)) != len(members):
            raise RefusedError(SumRefusal.ROSTER_MEMBER, f"two hospitals have the same {what}")
    for at in members.graph.near(own).tolist():
        name, identity = members.names[at], members.identities[at]
        keys = identity, members.exchange_keys[at], members.sealings[at]
        if not verify(identity, signatures[at], enrolment_digest(members.study, name, *keys)):
            raise RefusedError(SumRefusal.ROSTER_MEMBER, f"{name} did not sign its keys")


def _rows(data: bytes, size: int) -> tuple[bytes, ...]:
    return tuple(data[at : at + size] for at in range(0, len(data), size))
