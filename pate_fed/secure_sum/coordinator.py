"""The coordinator's side of a secure summation: who takes part, and the batches that are opened.

What the coordinator learns: names, public keys, who dropped out when, and of each batch one sum over its
survivors. This machine asks for nothing more, and the hospitals do not rely on that.
"""

from __future__ import annotations

from collections.abc import Mapping

from pate_fed.errors import IntegrityError, QuorumError
from pate_fed.secure_sum.batch import SumBatch
from pate_fed.secure_sum.keys import Identity
from pate_fed.secure_sum.masks import SumRange
from pate_fed.secure_sum.messages import (
    CHECKS,
    BatchOpening,
    Enrolment,
    EnrolRequest,
    Roster,
    RosterPinned,
    SumRefusal,
    SumRefused,
)
from pate_fed.secure_sum.roster import Members, read_roster, threshold_for
from pate_fed.structure import fit

_LEAST = 3  # hospitals in a roster


class CoordinatorSum:
    """One study's secure summation: enrol, close the roster once, then open batch after batch.

    `expected` are the hospitals' identities by name, where the coordinator knows them; no others are
    admitted.
    """

    def __init__(
        self, identity: Identity, *, study: str, expected: Mapping[str, bytes] | None = None
    ) -> None:
        _check("study", study)
        self._identity, self._study, self._expected = identity, study, expected
        self._enrolments: dict[str, Enrolment] = {}
        self._members: Members | None = None
        self._pinned: set[str] = set()
        self._used: set[int | str] = set()

    @classmethod
    def resume(cls, identity: Identity, roster: Roster) -> CoordinatorSum:
        """The coordinator of a study whose roster is closed, in a new process. Hospitals pin the same roster.

        Which batches there were is the hospitals' to know: they refuse a number or a digest of before.

        Raises:
            IntegrityError: the roster is not signed by this identity.
        """
        if roster.coordinator != identity.public or not roster.signed_by(identity.public):
            raise IntegrityError("the roster is not the one of this coordinator")
        coordinator = cls(identity, study=roster.study)
        coordinator._members = read_roster(roster)
        return coordinator

    def enrol_request(self) -> EnrolRequest:
        """The request that every hospital gets first."""
        request = EnrolRequest(study=self._study, coordinator=self._identity.public)
        return request.signed(self._identity)

    def admit(self, enrolment: Enrolment) -> None:
        """Take a hospital in.

        Raises:
            IntegrityError: the roster is closed, the name, identity or key is taken, the identity is not the
                expected one, or the enrolment is not signed by it.
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
        for other in self._enrolments.values():
            if (
                party == other.party
                or enrolment.identity == other.identity
                or enrolment.exchange_key == other.exchange_key
            ):
                raise IntegrityError(f"{party} enrols with the name or a key of {other.party}")
        self._enrolments[party] = enrolment

    def close_roster(self, *, threshold: int | None = None) -> Roster:
        """The roster for every hospital. `threshold` of None means two thirds of those enrolled.

        Raises:
            QuorumError: fewer than three hospitals have enrolled, or fewer than `threshold`.
            IntegrityError: the roster was closed before, or the threshold is at most half of it.
        """
        if self._members is not None:
            raise IntegrityError("the roster is closed already; one roster serves the whole study")
        # one order for all, whoever came first
        names, count = sorted(self._enrolments), len(self._enrolments)
        needed = threshold_for(count) if threshold is None else threshold
        if count < (least := max(_LEAST, needed)):
            raise QuorumError(
                f"{count} hospitals have enrolled for secure summation; at least {least} are needed"
            )
        enrolments = [self._enrolments[name] for name in names]
        roster = Roster(
            study=self._study,
            coordinator=self._identity.public,
            parties="\n".join(names),
            identities=b"".join(entry.identity for entry in enrolments),
            exchange_keys=b"".join(entry.exchange_key for entry in enrolments),
            enrolments=b"".join(entry.signature for entry in enrolments),
            threshold=needed,
        ).signed(self._identity)
        self._members = read_roster(roster)
        return roster

    @property
    def members(self) -> Members:
        """The closed roster.

        Raises:
            IntegrityError: it is not closed yet.
        """
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
    ) -> SumBatch:
        """A new batch of `length` entries, each of whose sums lies in `sum_range`.

        With `roster_rides` the caller sends the roster together with the opening, and so saves a round trip:
        everyone in it is invited, and whoever then shares has pinned it.

        Raises:
            QuorumError: fewer hospitals than the threshold have pinned the roster.
            IntegrityError: the number or the digest was used before.
            InputError: a number, digest or length that no message can carry.
        """
        members = self.members
        for name, value in (("batch", batch), ("batch_digest", batch_digest), ("length", length)):
            _check(name, value)
        invited = frozenset(members.names if roster_rides else self._pinned)
        if len(invited) < members.threshold:
            raise QuorumError(
                f"{len(invited)} of {len(members)} hospitals have pinned the roster; the threshold is "
                f"{members.threshold}"
            )
        if batch in self._used or batch_digest in self._used:
            raise IntegrityError(f"batch {batch} was opened before; a batch is never summed twice")
        self._used |= {batch, batch_digest}  # before anything is sent
        opening = BatchOpening(
            roster=members.digest,
            batch=batch,
            batch_digest=batch_digest,
            length=length,
            bits=sum_range.bits,
        ).signed(self._identity)
        return SumBatch(self._identity, members, opening, sum_range, invited)

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


def _check(name: str, value: int | str) -> None:
    fit(int if name in ("batch", "length") else str, value, CHECKS[name], name)
