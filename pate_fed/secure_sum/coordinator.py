"""The coordinator's side of a secure summation: who takes part, and the batches that are opened.

What the coordinator learns: names, public keys, who dropped out when, who broke the protocol, and of each
batch one sum over its survivors. This machine asks for nothing more, and the hospitals do not rely on that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pate_fed.errors import IntegrityError, QuorumError
from pate_fed.secure_sum.batch import SumBatch
from pate_fed.secure_sum.blame import SignedKey, judged
from pate_fed.secure_sum.graph import keys_for, shape
from pate_fed.secure_sum.keys import KEY_BYTES, ExchangeKey, HashTree, Identity, pack, unpack
from pate_fed.secure_sum.masks import SumRange
from pate_fed.secure_sum.messages import (
    CHECKS,
    BatchOpening,
    Enrolment,
    EnrolRequest,
    PinRequest,
    Roster,
    RosterPinned,
    SumRefused,
)
from pate_fed.secure_sum.refusals import SumRefusal
from pate_fed.secure_sum.roster import Members, read_roster, threshold_for
from pate_fed.structure import fit

_LEAST = 3  # hospitals in a roster


class CoordinatorSum:
    """One study's secure summation: enrol, close the roster once, then open batch after batch.

    `expected` are the hospitals' identities by name, where the coordinator knows them; no others are
    admitted. The roster has room for `places` hospitals, of which `threshold` must survive (None: two thirds)
    and `colluders` may be in league with the coordinator.
    """

    def __init__(
        self,
        identity: Identity,
        *,
        study: str,
        expected: Mapping[str, bytes] | None = None,
        places: int = 64,
        threshold: int | None = None,
        colluders: int = 0,
    ) -> None:
        _check("study", study)
        self._identity, self._study, self._expected = identity, study, expected
        self._threshold, self._colluders = threshold, colluders
        self._places = keys_for(places, threshold or threshold_for(places), colluders)
        self._roster = b""
        self._sealing: list[bytes] = []  # by position: each member's sealing keys
        self._trees: dict[int, HashTree] = {}
        self.wrong: set[str] = set()  # who broke the protocol
        self._enrolments: dict[str, Enrolment] = {}
        self._taken: dict[str | bytes, str] = {}  # by name and key: whose it is
        self._members: Members | None = None
        self._pinned: set[str] = set()
        self._used: set[int | str] = set()

    @classmethod
    def resume(cls, identity: Identity, saved: bytes) -> CoordinatorSum:
        """The coordinator of a study whose roster is closed, in a new process. Hospitals pin the same roster.

        `saved` is what `to_bytes` gave.

        Which batches there were is the hospitals' to know: they refuse a number or a digest of before.

        Raises:
            IntegrityError: damaged, or the roster is not signed by this identity.
        """
        record = unpack(saved)
        packed, keys = record.get("roster"), record.get("sealing")
        if not isinstance(packed, bytes) or not isinstance(keys, bytes):
            raise IntegrityError("the saved roster of secure summation is damaged")
        roster = Roster.from_bytes(packed)
        if roster.coordinator != identity.public or not roster.signed_by(identity.public):
            raise IntegrityError("the roster is not the one of this coordinator")
        coordinator = cls(identity, study=roster.study)
        coordinator._members, coordinator._roster = read_roster(roster), packed
        size = len(keys) // len(coordinator._members)
        coordinator._sealing = [keys[at : at + size] for at in range(0, len(keys), size)]
        return coordinator

    def to_bytes(self) -> bytes:
        """The closed roster with all sealing keys, for `resume`. All public."""
        return pack({"roster": self._roster, "sealing": b"".join(self._sealing)})

    def enrol_request(self) -> EnrolRequest:
        """The request that every hospital gets first."""
        request = EnrolRequest(study=self._study, coordinator=self._identity.public, places=self._places)
        return request.signed(self._identity)

    def admit(self, enrolment: Enrolment) -> None:
        """Take a hospital in.

        Raises:
            IntegrityError: the roster is closed, the name, identity or key is taken or of no use, the
                identity is not the expected one, or the enrolment is not signed by it.
        """
        party = enrolment.party
        if self._members is not None:
            raise IntegrityError(f"{party} enrols after the roster was closed")
        if enrolment.study != self._study:
            raise IntegrityError(f"{party} enrols in another study")
        if self._expected is not None and self._expected.get(party) != enrolment.identity:
            raise IntegrityError(f"{party} is not expected under this identity")
        if not enrolment.signed_by(enrolment.identity):
            raise IntegrityError(f"{party} did not sign its enrolment")
        if len(enrolment.sealing_keys) != KEY_BYTES * self._places:
            raise IntegrityError(f"{party} enrols with sealing keys of another number")
        _check_usable(party, enrolment.exchange_key)  # or all who pin the roster would refuse it
        for taken in (own := (party, enrolment.identity, enrolment.exchange_key)):
            if taken in self._taken:
                raise IntegrityError(f"{party} enrols with the name or a key of {self._taken[taken]}")
        self._taken.update(dict.fromkeys(own, party))
        self._enrolments[party] = enrolment

    def close_roster(self, *, threshold: int | None = None) -> Roster:
        """The roster for every hospital. `threshold` of None means the one of before.

        Raises:
            QuorumError: fewer than three hospitals have enrolled, or fewer than the threshold.
            IntegrityError: the roster was closed before, the threshold is at most half of it, or the graph of
                so few takes more sealing keys than they have.
        """
        if self._members is not None:
            raise IntegrityError("the roster is closed already; one roster serves the whole study")
        # one order for all, whoever came first
        names, count = sorted(self._enrolments), len(self._enrolments)
        needed = threshold or self._threshold or threshold_for(count)
        if count < (least := max(_LEAST, needed)):
            raise QuorumError(
                f"{count} hospitals have enrolled for secure summation; at least {least} are needed"
            )
        if shape(count, needed, self._colluders)[0] > self._places:
            raise IntegrityError(f"a graph of {count} hospitals takes more than {self._places} sealing keys")
        enrolments = [self._enrolments[name] for name in names]
        self._sealing = [entry.sealing_keys for entry in enrolments]
        roster = Roster(
            study=self._study,
            coordinator=self._identity.public,
            parties="\n".join(names),
            identities=b"".join(entry.identity for entry in enrolments),
            exchange_keys=b"".join(entry.exchange_key for entry in enrolments),
            sealings=b"".join(self._tree(place).root for place in range(count)),
            enrolments=b"".join(entry.signature for entry in enrolments),
            threshold=needed,
            colluders=self._colluders,
        ).signed(self._identity)
        self._members, self._roster = read_roster(roster), roster.to_bytes()
        return roster

    def pin_request(self, party: str) -> PinRequest:
        """The roster for one of its members, with the sealing keys that those near have for it."""
        place = self.members.positions[party]
        column = [self.sealing_key(owner, place) for owner in self.members.graph.near(place).tolist()]
        return PinRequest(
            party=party,
            listed=self._roster,
            sealing_keys=b"".join(signed.key for signed in column),
            paths=b"".join(signed.path for signed in column),
        ).signed(self._identity)

    def sealing_key(self, owner: int, place: int) -> SignedKey:
        """The key under which the hospital at `place` seals for the `owner`, by position, and its path."""
        slot = self.members.graph.slot(owner, place)
        key = self._sealing[owner][KEY_BYTES * slot : KEY_BYTES * (slot + 1)]
        return SignedKey(key, self._tree(owner).path(slot))

    def _tree(self, owner: int) -> HashTree:
        if owner not in self._trees:
            self._trees[owner] = HashTree(self._sealing[owner])
        return self._trees[owner]

    def forget_trees(self) -> None:
        """Free what `pin_request` made, once most have pinned the roster; it is made again where needed."""
        self._trees.clear()

    def leave_out(self, names: Iterable[str]) -> None:
        """From now on these are in no batch: they broke the protocol."""
        self.wrong |= set(names)

    @property
    def members(self) -> Members:
        """The closed roster; IntegrityError where it is not closed yet."""
        if self._members is None:
            raise IntegrityError("the roster is not closed yet")
        return self._members

    def note_pinned(self, reply: RosterPinned) -> None:
        """Note that a hospital has pinned the roster.

        Raises:
            IntegrityError: no member, another roster, or not signed by it.
        """
        members = self.members
        position = members.positions.get(reply.party)
        if position is None:
            raise IntegrityError(f"{reply.party} is not in the roster")
        if reply.roster != members.digest:
            raise IntegrityError(f"{reply.party} has pinned another roster")
        if not reply.signed_by(members.identities[position]):
            raise IntegrityError(f"{reply.party} did not sign its reply")
        self._pinned.add(reply.party)

    def open_batch(
        self,
        *,
        batch: int,
        batch_digest: str,
        length: int,
        sum_range: SumRange,
        roster_rides: bool = False,
        attempt: int = 0,
        proof: bytes = b"",
    ) -> SumBatch:
        """A new batch of `length` entries, each of whose sums lies in `sum_range`.

        A later `attempt` at one that was given up needs `proof`, as `SumBatch.proof` has it of all before.

        With `roster_rides` the caller sends the roster together with the opening, and so saves a round trip:
        everyone in it is invited, and whoever then shares has pinned it.

        Raises:
            QuorumError: fewer hospitals than the threshold have pinned the roster, or did not break the
                protocol.
            IntegrityError: the number or the digest was used before.
            InputError: a number, digest or length that no message can carry.
        """
        members = self.members
        for name, value in (("batch", batch), ("batch_digest", batch_digest), ("length", length)):
            _check(name, value)
        opening = BatchOpening(
            roster=members.digest,
            batch=batch,
            batch_digest=batch_digest,
            length=length,
            bits=sum_range.bits,
            attempt=attempt,
            proof=proof,
        ).signed(self._identity)
        self.leave_out(members.names[position] for position in judged(members, opening))
        invited = frozenset(members.names if roster_rides else self._pinned) - self.wrong
        if len(invited) < members.threshold:
            wrong = ", ".join(sorted(self.wrong))
            what = f"are left without {wrong}" if wrong else "have pinned the roster"
            raise QuorumError(
                f"{len(invited)} of {len(members)} hospitals {what}; the threshold is {members.threshold}"
            )
        if not attempt and (batch in self._used or batch_digest in self._used):
            raise IntegrityError(f"batch {batch} was opened before; a batch is never summed twice")
        self._used |= {batch, batch_digest}  # before anything is sent
        return SumBatch(self._identity, members, opening, sum_range, invited, sealing_key=self.sealing_key)

    def read_refusal(self, message: SumRefused) -> SumRefusal:
        """Why a hospital that has enrolled refuses what came after.

        Raises:
            IntegrityError: another study, or not signed by the hospital that it names.
        """
        known = {party: enrolment.identity for party, enrolment in self._enrolments.items()}
        if self._members is not None:
            known = dict(zip(self._members.names, self._members.identities, strict=True))
        identity = known.get(message.party)
        if identity is None:
            raise IntegrityError(f"{message.party} refuses and has not enrolled")
        if message.study != self._study or not message.signed_by(identity):
            raise IntegrityError(f"a refusal under the name of {message.party} is not signed by it")
        return message.refusal


def _check_usable(party: str, key: bytes) -> None:
    try:
        ExchangeKey.generate().agree(key, salt=b"", label=b"")
    except IntegrityError as error:
        raise IntegrityError(f"{party} enrols with an exchange key that is not usable") from error


def _check(name: str, value: int | str) -> None:
    fit(int if name in ("batch", "length") else str, value, CHECKS[name], name)
