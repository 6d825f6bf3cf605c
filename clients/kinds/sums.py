"""Sums of features by class at a hospital: what is checked before they are made, and how they are made.

The feature map is public and comes with the terms, which name it by its digest. What one record can add, or
all of one patient, is bounded here, by this hospital's own code, whatever the map and the records hold. That
a record changes nothing of what others add follows of our maps from their code; of others it is their word.
"""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from clients.kinds.base import HospitalSide
from pate_fed.disk import write_private
from pate_fed.errors import InputError, IntegrityError
from pate_fed.kinds.sums import SumTerms
from pate_fed.kinds.words import Facts
from pate_fed.protocol.messages import Question, Refusal

if TYPE_CHECKING:
    from pate_fed.learning.features.feature_map import FeatureMap

FEATURES_FILE = "features.bin"
_LARGEST = 2**31 - 1  # sums under masks are read mod 2^32, around zero
_SIGMAS = 10  # of noise that an entry may have besides

Ints = NDArray[np.int64]


class SumSide(HospitalSide):
    """A hospital whose records' features are summed by class; nothing is trained."""

    @property
    def asks(self) -> SumTerms:
        """The terms of class sums."""
        return SumTerms.of(self.terms)

    _rehearsed: FeatureMap | None = None  # made here, in place of the one that comes with the terms

    def take(self, file: bytes) -> None:
        """Keep the feature map, whose bounds are those that the noise in the terms is made for."""
        self._read(file)
        write_private(self._path, file, durable=self.site.durable)

    def prepare(self) -> None:
        """Find what is wrong with the records.

        Raises:
            InputError: they cannot be read, or are too many for sums in 32 bits.
        """
        terms, count = self.terms, len(self.site.own_records())
        noise = (terms.sigma_party or self.asks.sigma or 0.0) * math.sqrt(terms.num_clients)
        most = (_LARGEST - int(_SIGMAS * noise)) // terms.num_clients
        if self._kept().largest_entry(count) > most:
            raise InputError(
                f"{count} records are more than sums in 32 bits have room for at one of {terms.num_clients} "
                "hospitals; a study with a smaller lattice (sums.lattice) has more"
            )

    def rehearse(self, inputs: NDArray[np.generic], *, of_pool: bool, sample: int) -> tuple[Ints, Facts]:
        """Make the feature map of these inputs; of the study's pool it is the one in the terms."""
        from pate_fed.kinds.make import feature_map_of

        features = feature_map_of(self.asks.settings, inputs[: self.asks.labels])
        if of_pool and features.digest != self.asks.features:
            raise InputError(
                "the feature map that follows from the pool is not the one in the terms; do not take part "
                "before the coordinator has explained it"
            )
        self._rehearsed = features
        index = np.arange(features.dimension, dtype=np.int64)
        return index, (("features", f"{features.dimension:,}"),)

    def refusal(self, question: Question) -> Refusal | None:
        """There is one question: every feature's sum once, in order, to be released."""
        every = np.arange(self.asks.dimension)
        fits = not question.measured and np.array_equal(question.index, every)
        return None if fits else Refusal.MALFORMED

    def answer(self, question: Question) -> Ints:
        """This hospital's sums of features by class: int64 (dimension, classes).

        With the unit patient all of one's records are cut to the length of one; with the unit hospital so is
        the whole, to that of so many.
        """
        dataset, own = self.site.dataset, self.site.own_records()
        return self._kept().contributions(
            dataset.private_images[own],
            dataset.private_labels[own],
            num_classes=self.terms.num_classes,
            groups=self.site.own_patients(),
            most_units=self.asks.most_units,
        )

    @property
    def _path(self) -> Path:
        return self.site.state_dir / FEATURES_FILE

    def _kept(self) -> FeatureMap:
        if self._rehearsed is not None:
            return self._rehearsed
        try:
            content = self._path.read_bytes()
        except OSError as error:
            raise IntegrityError("the feature map that this hospital kept is gone") from error
        return self._read(content)

    def _read(self, content: bytes) -> FeatureMap:
        sums = self.asks
        if not content:
            raise IntegrityError("no feature map came")
        features = _parsed(content, sums.features) if sums.part is None else self._own_map(content)
        found = (features.settings, features.dimension, features.squared_norm)
        if found != (sums.settings, sums.dimension, sums.squared_norm):
            raise IntegrityError("the feature map that came has other bounds than the terms say")
        return features

    def _own_map(self, content: bytes) -> FeatureMap:
        """A map of code that is installed here, made of the pool as it lies here; what came only names it.

        The policy lists it, and its source is the one in the terms: both were looked at before.

        Raises:
            IntegrityError: another one came.
        """
        from pate_fed.learning.features.own import own_features

        sums, place = self.asks, (self.asks.features, self.site.pool_digest)
        if place not in _OWN:
            _OWN.clear()
            public = self.site.dataset.public_images[: sums.labels]
            _OWN[place] = own_features(sums.settings, public, part=sums.part)
        if _OWN[place].to_bytes() != content or _OWN[place].digest != sums.features:
            raise IntegrityError("the feature map that came is not what its code makes of the pool here")
        return _OWN[place]


_OWN: dict[tuple[str, str], FeatureMap] = {}  # a process may play many hospitals in turn


@lru_cache(maxsize=1)  # it takes seconds, and a process may play many hospitals in turn
def _parsed(content: bytes, digest: str) -> FeatureMap:
    from pate_fed.learning.features.build import feature_map_from_bytes

    return feature_map_from_bytes(content, digest=digest)
