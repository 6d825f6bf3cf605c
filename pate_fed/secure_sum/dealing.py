"""A hospital's arithmetic in one batch: deal out secrets, open others' shares, mask, reveal.

Pure functions; what may be asked and when is decided in `hospital.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError, IntegrityError
from pate_fed.secure_sum import shamir
from pate_fed.secure_sum.keys import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    BatchLabel,
    ExchangeKey,
    HashTree,
    SealingKeys,
    extract,
    pair_label,
    random_bytes,
    seal,
    unseal,
)
from pate_fed.secure_sum.masks import Masker, Vector
from pate_fed.secure_sum.messages import (
    PAIR_BYTES,
    SEALED_BYTES,
    BatchOpening,
    BatchShares,
    Head,
    MaskRequest,
    PinRequest,
    Positions,
)
from pate_fed.secure_sum.refusals import RefusedError, SumRefusal
from pate_fed.secure_sum.roster import Members
from pate_fed.secure_sum.shamir import Shares

PAIR_MASK = "pair mask"
SELF_MASK = "self mask"
SEEDS = "pair seeds"
_SHARE = "share"
_BOTH = 2 * shamir.SECRET_BYTES  # a share of each of two secrets
_PAIR, _SEAL = "pair", "seal"
_KEPT = struct.Struct(f"<I{KEY_BYTES}s{KEY_BYTES}s")


@dataclass(frozen=True, slots=True, repr=False)
class Seat:
    """A hospital's place in a pinned roster, with two secrets for each near one, by slot (its own are zeros).

    From `secrets` follow the masks of pairs, from `seals` the keys that shares are sealed under, 32 bytes
    each. Both are as `agree` gives them: extracted, so that each batch only expands them.
    """

    members: Members
    position: int
    secrets: bytes
    seals: bytes

    @property
    def near(self) -> list[int]:
        """Positions of those who hold shares of its secrets, itself among them, by slot."""
        return [*map(int, self.members.graph.near(self.position))]

    def slot(self, other: int) -> int:
        """Where this hospital has what belongs to the other one."""
        return self.members.graph.slot(self.position, other)

    def secret(self, slot: int) -> bytes:
        """What the masks of a pair follow from."""
        return self.secrets[KEY_BYTES * slot : KEY_BYTES * (slot + 1)]

    def seal(self, slot: int) -> bytes:
        """What the keys follow from that shares are sealed under."""
        return self.seals[KEY_BYTES * slot : KEY_BYTES * (slot + 1)]


class PlayedSeats:
    """The seats that one process takes in a roster, for a simulation alone: each pair agrees once there.

    Such a process has the secrets of all its hospitals on its disks. Those of a pair stay in memory until the
    second of the two sits down, or another roster comes.
    """

    __slots__ = ("_roster", "_taken", "_waiting")

    def __init__(self) -> None:
        # of each hospital without a seat both secrets with those who sit, each after the other's position
        self._roster, self._taken, self._waiting = "", 0, dict[int, bytearray]()

    def __repr__(self) -> str:
        return f"PlayedSeats({self._taken} of one roster, secrets=<hidden>)"

    def of(self, members: Members, position: int) -> dict[int, tuple[bytes, bytes]]:
        """Both secrets with each of those who sit in this roster, by position; they are given once."""
        if self._roster != members.digest:
            self._roster, self._taken = members.digest, 0
            self._waiting = {each: bytearray() for each in range(len(members))}
        row = bytes(self._waiting.pop(position, b""))  # none, who sits down twice
        return {other: (secret, seal) for other, secret, seal in _KEPT.iter_unpack(row)}

    def keep(self, seat: Seat) -> None:
        """Keep a seat's secrets for those who sit down later."""
        self._taken += 1
        for slot, other in enumerate(seat.near):
            if other in self._waiting:
                self._waiting[other] += _KEPT.pack(seat.position, seat.secret(slot), seat.seal(slot))


def take_seat(
    members: Members,
    position: int,
    exchange: ExchangeKey,
    sealing: SealingKeys,
    column: Sequence[bytes],
    played: PlayedSeats | None = None,
) -> Seat:
    """Agree on two secrets with each near member, once for the study; `column` as `sealing_column` gives it.

    With those whom the same process has `played` already, nothing is computed a second time.

    Raises:
        RefusedError: a member's exchange key is not usable.
    """
    taken = {} if played is None else played.of(members, position)
    secrets, seals = ([bytes(KEY_BYTES)] * members.graph.size for _ in range(2))
    for slot, other in enumerate(members.graph.near(position).tolist()):
        if other in taken:
            secrets[slot], seals[slot] = taken[other]
        elif other != position:
            secrets[slot] = agree(members, position, other, exchange)
            try:
                seals[slot] = agree_seal(members, position, other, sealing.key(slot), column[slot])
            except IntegrityError:  # of no use: what it seals will not open, and it is named for it;
                seals[slot] = random_bytes(KEY_BYTES)  # what is sealed for it nobody opens
    seat = Seat(members, position, b"".join(secrets), b"".join(seals))
    if played is not None:
        played.keep(seat)
    return seat


def agree(members: Members, position: int, other: int, exchange: ExchangeKey) -> bytes:
    """The secret of one pair for this roster, extracted under the roster's digest."""
    try:
        return _agreed(members, _PAIR, (position, other), exchange, members.exchange_keys[other])
    except IntegrityError as error:
        detail = f"{members.names[other]}'s exchange key is not usable"
        raise RefusedError(SumRefusal.ROSTER_MEMBER, detail) from error


def agree_seal(members: Members, position: int, other: int, key: ExchangeKey, public: bytes) -> bytes:
    """The secret under which two members seal for each other; IntegrityError where `public` is no key."""
    return _agreed(members, _SEAL, (position, other), key, public)


def _agreed(members: Members, use: str, pair: tuple[int, int], key: ExchangeKey, public: bytes) -> bytes:
    salt, label = bytes.fromhex(members.digest), pair_label(members.study, use, *sorted(pair))
    return extract(key.agree(public, salt=salt, label=label), salt)


def sealing_column(members: Members, position: int, request: PinRequest) -> list[bytes]:
    """The sealing keys that those near have for a hospital, by slot, each held against what its owner signed.

    Raises:
        RefusedError: another number of them, or one that its member has not signed.
    """
    count, keys, graph = members.graph.size, request.sealing_keys, members.graph
    if len(keys) != KEY_BYTES * count or len(request.paths) % (KEY_BYTES * count):
        raise RefusedError(SumRefusal.MALFORMED, "sealing keys of another number")
    size, column = len(request.paths) // count, list[bytes]()
    for slot, other in enumerate(graph.near(position).tolist()):
        key = keys[KEY_BYTES * slot : KEY_BYTES * (slot + 1)]
        path = request.paths[size * slot : size * (slot + 1)]
        if not HashTree.shows(members.sealings[other], graph.slot(other, position), key, path):
            detail = f"{members.names[other]} did not sign its sealing key"
            raise RefusedError(SumRefusal.ROSTER_MEMBER, detail)
        column.append(key)
    return column


def batch_label(members: Members, head: Head) -> BatchLabel:
    """The labels of the keys of one attempt at a batch."""
    return BatchLabel(members.study, members.digest, head["batch"], head["batch_digest"], head["attempt"])


def deal(seat: Seat, opening: BatchOpening) -> tuple[Shares, BatchShares]:
    """Draw the batch's two secrets and seal each near one's shares of them: what stays, what is to be signed.

    Shapes: what stays here is uint16 (2, 2, 17), both secrets, then its own share of both; the self-mask's is
    the first, then the one that its pair seeds are sealed under.
    """
    members, label = seat.members, batch_label(seat.members, opening.head)
    secrets = shamir.fresh_secrets(2)  # fresh in each batch: opening one opens no other
    graph, near = members.graph, seat.near
    shares = shamir.split(secrets, shares=graph.size, threshold=graph.least)
    share_key, plain, commit = label.keys(_SHARE), shamir.to_bytes(shares), label.commit_shares()
    # the own slot stays zeros: nothing is sent to oneself
    sealed = [bytes(SEALED_BYTES)] * graph.size
    for slot, other in enumerate(near):
        if other != seat.position:
            part = plain[_BOTH * slot : _BOTH * (slot + 1)]
            sealed[slot] = seal(share_key(seat.seal(slot), seat.position, other), part)
    self_mask, under = (shamir.to_bytes(secret) for secret in secrets)
    held = np.stack([secrets, shares[seat.slot(seat.position)]]).astype(np.uint16)
    return held, BatchShares(
        **opening.head,
        party=members.names[seat.position],
        view=opening.digest,
        pinned=bytes(SIGNATURE_BYTES),  # the identity's to make
        commitment=label.commit(self_mask, seat.position),
        seeds=seal(label.key(under, SEEDS, seat.position, seat.position), b"".join(_seeds(seat, label))),
        commitments=commit(_places([seat.position], near), plain),
        sealed=b"".join(sealed),
    )


class UnusableShareError(Exception):
    """What one hospital sealed for another is of no use; at which position in the roster it is."""

    def __init__(self, sender: int) -> None:
        super().__init__("a share that cannot be used")
        self.sender = sender


class ShareOpener:
    """Opens what is sealed for one hospital in one attempt, and holds it against the commitments."""

    __slots__ = ("_commit", "_key", "_receiver")

    def __init__(self, members: Members, head: Head, receiver: int) -> None:
        label = batch_label(members, head)
        self._key, self._commit, self._receiver = label.keys(_SHARE), label.commit_shares(), receiver

    def open(self, secret: bytes, sender: int, sealed: bytes, commitments: bytes) -> bytes:
        """Both shares, 34 bytes each, from under the pair's `seals` secret.

        Raises:
            UnusableShareError: not sealed under it, not in the field, or not what was committed to.
        """
        shares = self.unseal(secret, sender, sealed)
        self.check_all([sender], [shares], commitments)
        return shares

    def unseal(self, secret: bytes, sender: int, sealed: bytes) -> bytes:
        """What `open` gives, not held against its commitments yet.

        Raises:
            UnusableShareError: not sealed under the pair's secret.
        """
        try:
            return unseal(self._key(secret, sender, self._receiver), sealed)
        except IntegrityError:
            raise UnusableShareError(sender) from None

    def check_all(self, senders: Sequence[int], shares: Sequence[bytes], commitments: bytes) -> None:
        """Hold the shares of many against their commitments, in one go.

        Raises:
            UnusableShareError: of the first that is not in the field, or not what was committed to.
        """
        plain = b"".join(shares)
        if {*map(len, shares)} <= {_BOTH} and shamir.in_field(plain):
            if self._commit(_places(senders, [self._receiver]), plain) == commitments:
                return
        if len(senders) == 1:
            raise UnusableShareError(senders[0])
        for row, sender in enumerate(senders):
            self.check_all([sender], [shares[row]], commitments[PAIR_BYTES * row : PAIR_BYTES * (row + 1)])
        raise UnusableShareError(senders[0])  # too few commitments, or too many


def _places(senders: Sequence[int], receivers: Sequence[int]) -> NDArray[np.int64]:
    """Of both shares of each pair of sender and receiver: int64 (shares, 3), as commitments name them."""
    pairs = [(sender, receiver, which) for sender in senders for receiver in receivers for which in (0, 1)]
    return np.array(pairs, dtype=np.int64).reshape(-1, 3)


def open_shares(seat: Seat, request: MaskRequest, own: Shares) -> Shares:
    """The shares that the near sharers sealed for this hospital: uint16 (near sharers, 2, 17).

    Raises:
        UnusableShareError: the first that is of no use.
    """
    opener = ShareOpener(seat.members, request.head, seat.position)
    near = seat.members.graph.among(seat.position, request.sharers)
    sharers, slots = near.tolist(), seat.members.graph.slots(seat.position, near).tolist()
    shares, commitments, shut = dict[int, bytes](), b"", None
    for row, sender in enumerate(sharers):
        if sender == seat.position:
            continue
        sealed = request.sealed[row * SEALED_BYTES : (row + 1) * SEALED_BYTES]
        try:
            shares[sender] = opener.unseal(seat.seal(slots[row]), sender, sealed)
        except UnusableShareError as error:
            shut = error
            break
        commitments += request.commitments[row * PAIR_BYTES : (row + 1) * PAIR_BYTES]
    opener.check_all([*shares], [*shares.values()], commitments)  # of those before it, too
    if shut is not None:
        raise shut
    shares[seat.position] = shamir.to_bytes(own)
    plain = b"".join(shares[sender] for sender in sharers)
    return shamir.from_bytes(plain).reshape(-1, 2, shamir.LIMBS)


def check_vector(values: NDArray[np.int64], opening: BatchOpening) -> None:
    """Refuse a vector of the hospital's own that does not belong into this sum.

    Raises:
        InputError: another length or type, or an entry that the modulus does not hold. No entry is shown.
    """
    if not isinstance(values, np.ndarray) or values.dtype != np.int64 or values.size != opening.length:
        raise InputError(f"an int64 vector of {opening.length} entries is summed; this one has others")
    if values.max() >= 2**opening.bits or values.min() < -(2 ** (opening.bits - 1)):
        raise InputError(f"an entry of the vector does not fit {opening.bits} bits")


def mask(
    seat: Seat, opening: BatchOpening, sharers: Positions, secret: Shares, values: NDArray[np.int64]
) -> Vector:
    """The vector under this hospital's self-mask and one mask for each other sharer near it.

    Of each pair the hospital with the higher position adds the mask, the other takes it away.
    """
    masker, label = Masker(opening.length, opening.bits), batch_label(seat.members, opening.head)
    total = masker.residues(values)
    # Pair masks alone would bare a vector that comes after its sender was counted as lost (Bonawitz 2017).
    masker.add(total, label.key(shamir.to_bytes(secret), SELF_MASK, seat.position, seat.position))
    chosen = set(sharers.tolist())
    for other, seed in zip(seat.near, _seeds(seat, label), strict=True):
        if other in chosen and other != seat.position:
            (masker.add if other < seat.position else masker.take)(total, seed)
    return total


def reveal(sharers: Positions, survivors: Positions, held: Shares) -> bytes:
    """One share of each near sharer: of its self-mask's secret if it survived, else of its pair seeds'."""
    # Never both of one hospital: its self-mask with its pair seeds would bare its vector.
    survived = np.isin(sharers, survivors)
    return shamir.to_bytes(np.where(survived[:, None], held[:, 0], held[:, 1]))


def _seeds(seat: Seat, label: BatchLabel) -> list[bytes]:
    """The batch's mask key of each pair, by slot; the own slot is zeros."""
    derive, seeds = label.keys(PAIR_MASK), [bytes(KEY_BYTES)] * seat.members.graph.size
    for slot, other in enumerate(seat.near):
        if other != seat.position:
            seeds[slot] = derive(seat.secret(slot), *sorted((seat.position, other)))
    return seeds
