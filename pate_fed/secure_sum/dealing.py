"""A hospital's arithmetic in one batch: deal out secrets, open others' shares, mask, reveal.

Pure functions; what may be asked and when is decided in `hospital.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError, IntegrityError
from pate_fed.secure_sum import shamir
from pate_fed.secure_sum.keys import KEY_BYTES, BatchLabel, ExchangeKey, extract, pair_label, seal, unseal
from pate_fed.secure_sum.masks import Masker, Vector
from pate_fed.secure_sum.messages import SEALED_BYTES, BatchOpening, Positions, RefusedError, SumRefusal
from pate_fed.secure_sum.roster import Members

PAIR_MASK = "pair mask"
SELF_MASK = "self mask"
SEEDS = "pair seeds"
_SHARE = "share"
_MOST_PLAYED = 1024  # hospitals of a roster whose secrets one process keeps: some 40 MB

Limbs = shamir.Limbs


@dataclass(frozen=True, slots=True, repr=False)
class Seat:
    """A hospital's place in a pinned roster, with its secret for each other one (its own slot is zeros).

    The secrets are as `agree` gives them: extracted, so that each batch only expands them.
    """

    members: Members
    position: int
    secrets: tuple[bytes, ...]

    @property
    def others(self) -> list[int]:
        """Positions of all other hospitals."""
        return [position for position in range(len(self.members)) if position != self.position]


@dataclass(frozen=True, slots=True, repr=False)
class Deal:
    """A batch's two fresh secrets of a hospital, and what it sends of them.

    Shapes: `secrets` int64 (2, 17), the self-mask's and the one that its pair seeds are sealed under; `own`
    int64 (2, 17), its own share of both.
    """

    secrets: Limbs
    own: Limbs
    commitment: bytes
    seeds: bytes
    sealed: bytes


class PlayedSeats:
    """The seats that one process takes in a roster, for a simulation alone: each pair agrees once there.

    Such a process has the secrets of all its hospitals on its disks. They stay in memory until the last seat
    is taken, or another roster comes.
    """

    __slots__ = ("_roster", "_seats")

    def __init__(self) -> None:
        self._roster, self._seats = "", dict[int, Seat]()

    def __repr__(self) -> str:
        return f"PlayedSeats({len(self._seats)} of one roster, secrets=<hidden>)"

    def of(self, members: Members) -> Mapping[int, Seat]:
        """Those taken in this roster, by position."""
        if self._roster != members.digest:
            self._roster, self._seats = members.digest, {}
        return self._seats

    def keep(self, seat: Seat) -> None:
        """Keep a seat for those who sit down later."""
        count = len(seat.members)
        if len(self.of(seat.members)) + 1 >= count:
            self._seats = {}
        elif count <= _MOST_PLAYED:
            self._seats[seat.position] = seat


def take_seat(
    members: Members, position: int, exchange: ExchangeKey, played: PlayedSeats | None = None
) -> Seat:
    """Agree on a secret with every member, once for the study.

    With those whom the same process has `played` already, nothing is computed a second time.

    Raises:
        RefusedError: a member's exchange key is not usable.
    """
    taken = {} if played is None else played.of(members)
    secrets = [bytes(KEY_BYTES)] * len(members)
    for other in range(len(members)):
        if other in taken:
            secrets[other] = taken[other].secrets[position]
        elif other != position:
            secrets[other] = agree(members, position, other, exchange)
    seat = Seat(members, position, tuple(secrets))
    if played is not None:
        played.keep(seat)
    return seat


def agree(members: Members, position: int, other: int, exchange: ExchangeKey) -> bytes:
    """The secret of one pair for this roster, extracted under the roster's digest."""
    salt, label = bytes.fromhex(members.digest), pair_label(members.study, *sorted((position, other)))
    try:
        return extract(exchange.agree(members.exchange_keys[other], salt=salt, label=label), salt)
    except IntegrityError as error:
        detail = f"{members.names[other]}'s exchange key is not usable"
        raise RefusedError(SumRefusal.ROSTER_MEMBER, detail) from error


def batch_label(members: Members, opening: BatchOpening) -> BatchLabel:
    """The labels of a batch's keys."""
    return BatchLabel(members.study, members.digest, opening.batch, opening.batch_digest)


def deal(seat: Seat, opening: BatchOpening) -> Deal:
    """Draw the batch's two secrets and seal everyone's shares of them."""
    members, label = seat.members, batch_label(seat.members, opening)
    secrets = shamir.fresh_secrets(2)  # fresh in each batch: opening one opens no other
    shares = shamir.split(secrets, shares=len(members), threshold=members.threshold)
    share_key, plain = label.keys(_SHARE), shamir.to_bytes(shares)
    # the own slot stays zeros: nothing is sent to oneself
    sealed, size = [bytes(SEALED_BYTES)] * len(members), len(plain) // len(members)
    for other in seat.others:
        key = share_key(seat.secrets[other], seat.position, other)
        sealed[other] = seal(key, plain[size * other : size * (other + 1)])
    self_mask, under = (shamir.to_bytes(secret) for secret in secrets)
    return Deal(
        secrets=secrets,
        own=shares[seat.position],
        commitment=label.commit(self_mask, seat.position),
        seeds=seal(label.key(under, SEEDS, seat.position, seat.position), b"".join(_seeds(seat, label))),
        sealed=b"".join(sealed),
    )


def open_shares(seat: Seat, opening: BatchOpening, sharers: Positions, sealed: bytes, own: Limbs) -> Limbs:
    """The shares that the sharers sealed for this hospital: int64 (sharers, 2, 17).

    Raises:
        RefusedError: a share that its sender did not seal for this batch.
    """
    share_key = batch_label(seat.members, opening).keys(_SHARE)
    shares = []
    for row, sender in enumerate(sharers.tolist()):
        if sender == seat.position:
            shares.append(shamir.to_bytes(own))
            continue
        key = share_key(seat.secrets[sender], sender, seat.position)
        try:
            shares.append(unseal(key, sealed[row * SEALED_BYTES : (row + 1) * SEALED_BYTES]))
        except IntegrityError as error:
            raise _bad_share(seat, sender) from error
    try:
        return shamir.from_bytes(b"".join(shares)).reshape(-1, 2, shamir.LIMBS)
    except IntegrityError as error:
        fits = [shamir.in_field(share) for share in shares]
        raise _bad_share(seat, int(sharers[fits.index(False)])) from error


def _bad_share(seat: Seat, sender: int) -> RefusedError:
    return RefusedError(SumRefusal.SHARE, f"from {seat.members.names[sender]}")


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
    seat: Seat, opening: BatchOpening, sharers: Positions, secret: Limbs, values: NDArray[np.int64]
) -> Vector:
    """The vector under this hospital's self-mask and one mask for each other sharer.

    Of each pair the hospital with the higher position adds the mask, the other takes it away.
    """
    masker, label = Masker(opening.length, opening.bits), batch_label(seat.members, opening)
    total = masker.residues(values)
    # Pair masks alone would bare a vector that comes after its sender was counted as lost (Bonawitz 2017).
    masker.add(total, label.key(shamir.to_bytes(secret), SELF_MASK, seat.position, seat.position))
    seeds = _seeds(seat, label)
    for other in sharers.tolist():
        if other < seat.position:
            masker.add(total, seeds[other])
        elif other > seat.position:
            masker.take(total, seeds[other])
    return total


def reveal(sharers: Positions, survivors: Positions, held: Limbs) -> bytes:
    """One share a sharer: of its self-mask's secret if it survived, else of its pair seeds' secret."""
    # Never both of one hospital: its self-mask with its pair seeds would bare its vector.
    survived = np.isin(sharers, survivors)
    return shamir.to_bytes(np.where(survived[:, None], held[:, 0], held[:, 1]))


def _seeds(seat: Seat, label: BatchLabel) -> list[bytes]:
    """The batch's mask key of each pair, by the other's position; the own slot is zeros."""
    derive, seeds = label.keys(PAIR_MASK), [bytes(KEY_BYTES)] * len(seat.members)
    for other in seat.others:
        low, high = sorted((seat.position, other))
        seeds[other] = derive(seat.secrets[other], low, high)
    return seeds
