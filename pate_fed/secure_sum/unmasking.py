"""Taking the masks off a sum of masked vectors, with the shares that the survivors revealed.

Of a survivor only its self-mask's secret is recovered, of a hospital that dropped out only the batch's pair
seeds; the secrets of other batches and of the study are not derivable from either.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from cryptography.hazmat.primitives import constant_time

from pate_fed.errors import IntegrityError
from pate_fed.secure_sum import shamir
from pate_fed.secure_sum.dealing import SEEDS, SELF_MASK, batch_label
from pate_fed.secure_sum.keys import KEY_BYTES, unseal
from pate_fed.secure_sum.masks import Masker, Vector
from pate_fed.secure_sum.messages import BatchOpening, BatchShares, Positions
from pate_fed.secure_sum.roster import Members


class Unmasking:
    """The last step of one batch.

    `dealt` holds each sharer's message by position, `shares` what at least `threshold` survivors revealed:
    one share a sharer, in the order of `sharers`.
    """

    def __init__(
        self,
        members: Members,
        opening: BatchOpening,
        dealt: Mapping[int, BatchShares],
        sharers: Positions,
        survivors: Positions,
        shares: Mapping[int, bytes],
    ) -> None:
        self._members, self._dealt, self._survivors = members, dealt, survivors
        self._label = batch_label(members, opening)
        self._secrets = self._combine(sharers, shares)

    def remove_masks(self, total: Vector, masker: Masker) -> None:
        """Take every mask that does not cancel off `total`, in place.

        Raises:
            IntegrityError: a recovered secret is not the one that was committed to; the text names whose.
        """
        for position, secret in self._secrets.items():
            if position in self._survivors:
                self._remove_self_mask(position, secret, total, masker)
            else:
                self._remove_pair_masks(position, secret, total, masker)

    def _combine(self, sharers: Positions, shares: Mapping[int, bytes]) -> dict[int, bytes]:
        helpers = sorted(shares)[: self._members.threshold]
        revealed = np.stack([self._read(helper, shares[helper]) for helper in helpers])
        secrets = shamir.combine(np.array(helpers, dtype=np.int64) + 1, revealed)
        pairs = zip(sharers.tolist(), secrets, strict=True)
        return {position: shamir.to_bytes(secret) for position, secret in pairs}

    def _read(self, helper: int, shares: bytes) -> shamir.Limbs:
        try:
            return shamir.from_bytes(shares)
        except IntegrityError as error:
            raise IntegrityError(f"{self._members.names[helper]} revealed a share of no field") from error

    def _remove_self_mask(self, position: int, secret: bytes, total: Vector, masker: Masker) -> None:
        expected = self._dealt[position].commitment
        if not constant_time.bytes_eq(self._label.commit(secret, position), expected):
            raise self._misfit(position, "self-mask")
        masker.take(total, self._label.key(secret, SELF_MASK, position, position))

    def _remove_pair_masks(self, position: int, secret: bytes, total: Vector, masker: Masker) -> None:
        """Undo what each survivor did with its mask for a hospital that dropped out."""
        key = self._label.key(secret, SEEDS, position, position)
        try:
            seeds = unseal(key, self._dealt[position].seeds)
        except IntegrityError as error:
            raise self._misfit(position, "pair seeds") from error
        for survivor in self._survivors.tolist():
            seed = seeds[survivor * KEY_BYTES : (survivor + 1) * KEY_BYTES]
            if position < survivor:
                masker.take(total, seed)
            else:
                masker.add(total, seed)

    def _misfit(self, position: int, what: str) -> IntegrityError:
        return IntegrityError(
            f"the shares revealed of {self._members.names[position]}'s {what} do not fit what it committed "
            "to: a hospital sent wrong shares, and nothing is unmasked"
        )
