"""Sums of features by class at a hospital: what is checked before they are made, and how they are made.

The feature map is public and comes with the terms, which name it by its digest. What one record can add, or
all of one patient, is bounded here, by this hospital's own code, whatever the map and the records hold. That
a record changes nothing of what others add follows of our maps from their code; of others it is their word.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from clients.journal import Journal
from clients.kinds.base import HospitalSide
from clients.local import check_records, kind_of
from pate_fed.data.schema import TARGET_STEPS
from pate_fed.disk import write_private
from pate_fed.errors import InputError, IntegrityError
from pate_fed.kinds.rounds import RoundTerms, ScoredTerms
from pate_fed.kinds.sums import SumTerms
from pate_fed.kinds.words import Facts
from pate_fed.learning.features.feature_map import DIRECTIONS
from pate_fed.learning.features.residuals import ScoreRows, packed_size
from pate_fed.protocol.messages import Question, Refusal

if TYPE_CHECKING:
    from pate_fed.kinds.terms import Terms
    from pate_fed.learning.features.feature_map import FeatureMap, Pull

FEATURES_FILE = "features.bin"

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
        self._require_room(len(self.site.own_records()), self.terms)

    @classmethod
    def check_file(cls, path: Path, terms: Terms, *, decimal: str | None) -> str:
        """As of other kinds, and whether sums have room for so many: a refusal later would tell how many."""
        own = check_records(path, replace(kind_of(terms), decimal=decimal), unit=terms.privacy.unit)
        cls._require_room(len(own.labels), terms)
        return own.read_as

    @classmethod
    def _require_room(cls, records: int, terms: Terms) -> None:
        asks = SumTerms.of(terms)
        units, room = records, asks.room(terms)
        if asks.most_units is not None:  # along directions nothing but the cut bounds an entry
            directions = asks.settings.name == DIRECTIONS
            units = asks.most_units if directions else min(units, asks.most_units)
        if units > room:
            coarse = lattice = asks.settings.lattice
            while coarse > 1 and units > room * lattice // coarse:
                coarse //= 2
            told = ", or one that is told about how many there are (parties.records)" * (asks.times > 1)
            raise InputError(
                f"more records than the {room:,} that sums in 32 bits have room for at each of "
                f"{terms.num_clients} hospitals; right is a study with sums.lattice = {coarse}{told}"
            )

    def rehearse(self, inputs: NDArray[np.generic], *, of_pool: bool, sample: int) -> tuple[Ints, Facts]:
        """Make the feature map of these inputs; of the study's pool it is the one in the terms."""
        from pate_fed.kinds.make import feature_map_of

        features = feature_map_of(self.asks.settings, inputs[: self.asks.labels])
        # Directions may have other last bits on another machine; no bound rests on them.
        same = self.asks.settings.name == DIRECTIONS or features.digest == self.asks.features
        if of_pool and not same:
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
        return self._contributions()

    def _summed(self) -> Ints:
        """Which of this hospital's records are in its sums, as places among them."""
        return np.arange(len(self.site.own_records()), dtype=np.int64)

    def _patients(self, places: Ints) -> Ints | None:
        patients = None if self.asks.settings.name == DIRECTIONS else self.site.own_patients()
        return None if patients is None else patients[places]

    def _contributions(self, pull: Pull | None = None, kept: NDArray[np.generic] | None = None) -> Ints:
        dataset, summed = self.site.dataset, self._summed()
        own = self.site.own_records()[summed]
        inputs, every = dataset.private_images, np.arange(len(dataset.private_labels))
        return self._kept().contributions(
            inputs if np.array_equal(own, every) else inputs[own],  # all of a hospital's are not copied
            dataset.private_labels[own],
            num_classes=self.terms.num_classes,
            groups=self._patients(summed),
            most_units=self.asks.most_units,
            pull=pull,
            kept=kept,
            steps=TARGET_STEPS if self.terms.target_range is not None else None,
            several=self.terms.several or None,
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
        found = (features.settings, features.dimension, features.squared_norm * (self.terms.several or 1))
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


class RoundSide(SumSide):
    """A hospital whose sums are asked for in rounds; weights that come are numbers, and are not trusted."""

    @property
    def asks(self) -> RoundTerms:
        """The terms of sums in rounds."""
        return RoundTerms.of(self.terms)

    def refusal(self, question: Question) -> Refusal | None:
        """A question is every feature of one round, in order; weights come with all but the first.

        The journal has each place answered once, so no round is answered again with other weights.
        """
        asks, places = self.asks, question.index
        if question.measured or len(places) != asks.dimension:
            return Refusal.MALFORMED
        number = asks.round_of(question)
        if not 0 <= number <= asks.rounds:
            return Refusal.MALFORMED
        if not np.array_equal(places, np.arange(asks.dimension) + number * asks.dimension):
            return Refusal.MALFORMED
        size = packed_size(asks.dimension, self.terms.num_classes) if number else 0
        return None if len(question.given) == size else Refusal.MALFORMED

    def answer(self, question: Question) -> Ints:
        """This hospital's sums of one round: int64 (dimension, classes)."""
        found = self._contributions(self.asks.pull(self.terms, question), self._features())
        if self.asks.round_of(question) == self.asks.rounds:
            _FEATURES.pop(self._place, None)
        return found

    @property
    def _place(self) -> tuple[str, str, int]:
        return str(self.site.state_dir), self.terms.digest, len(self.site.own_records())

    def _features(self) -> NDArray[np.generic] | None:
        """The records' features as a process keeps them from round to round; None where they are too many."""
        features, own = self._kept(), self.site.own_records()[self._summed()]
        small = np.int16 if features.largest < 2**15 else np.int32
        size = len(own) * features.dimension * np.dtype(small).itemsize
        place = self._place
        if place in _FEATURES or size > _MOST_KEPT:
            return _FEATURES.get(place)
        while _FEATURES and size + sum(each.nbytes for each in _FEATURES.values()) > _MOST_KEPT:
            _FEATURES.pop(next(iter(_FEATURES)))
        inputs = self.site.dataset.private_images
        found = np.empty((len(own), features.dimension), dtype=small)
        for start in range(0, len(own), _CHUNK):
            found[start : start + _CHUNK] = features.features(inputs[own[start : start + _CHUNK]])
        _FEATURES[place] = found
        return found


class ScoredSide(RoundSide):
    """A hospital that keeps some records out of its sums, and counts them once by the weights that come."""

    @property
    def asks(self) -> ScoredTerms:
        """The terms of sums in rounds and counts."""
        return ScoredTerms.of(self.terms)

    @cached_property
    def _held_out(self) -> NDArray[np.bool_]:
        return self.site.held_out(self.asks.held_out)

    def _summed(self) -> Ints:
        return np.flatnonzero(~self._held_out)

    @classmethod
    def _require_room(cls, records: int, terms: Terms) -> None:
        """And counts have, of twice as many as are held out on average: by the number of all alone."""
        super()._require_room(records, terms)
        asks = ScoredTerms.of(terms)
        if 2 * asks.held_out * records * asks.count > asks.largest_entry(terms):
            raise InputError(
                "more held-out records than counts in 32 bits have room for; right is a study that is told "
                "about how many records there are (parties.records)"
            )

    def _asks_for_counts(self, question: Question) -> bool:
        return np.array_equal(question.index, self.asks.places(self.terms))

    def refusal(self, question: Question) -> Refusal | None:
        """A question is every feature of one round, or every place of the counts, after which no sum leaves.

        Whoever missed the last round may still be asked for counts, so these are not held to come after it.
        """
        asks = self.asks
        if not self._asks_for_counts(question):
            over = Journal(self.site.state_dir).overlaps(asks.places(self.terms))
            return Refusal.CAPS if over else super().refusal(question)
        size = ScoreRows.size(asks.dimension, self.terms.num_classes, asks.bins)
        fits = not question.measured and len(question.given) == size
        return None if fits else Refusal.MALFORMED

    def answer(self, question: Question) -> Ints:
        """Sums of one round; or counts of the records that are in none, int64 (rows, classes).

        Each record, or with the unit patient each patient, has one count in all: so many parts of it, each
        rounded down, as it has records in one place of the table.
        """
        answered = Journal(self.site.state_dir).answered() > 0
        self.site.keep_held_out(self._held_out, answered=answered)
        if not self._asks_for_counts(question):
            return super().answer(question)
        asks, held_out = self.asks, np.flatnonzero(self._held_out)
        own, rows = self.site.own_records()[held_out], asks.score_rows(self.terms, question)
        inputs, features = self.site.dataset.private_images, self._kept()
        place = np.zeros(len(own), dtype=np.int64)
        for start in range(0, len(own), _CHUNK):
            place[start : start + _CHUNK] = rows(features.features(inputs[own[start : start + _CHUNK]]))
        classes = self.terms.num_classes
        place = place * classes + self.site.dataset.private_labels[own]
        whose = self._patients(held_out)
        whose = np.arange(len(own)) if whose is None else np.unique(whose, return_inverse=True)[1]
        pairs, alike = np.unique(np.column_stack([whose, place]), axis=0, return_counts=True)
        found = np.zeros((asks.rows(self.terms), classes), dtype=np.int64)
        np.add.at(found.reshape(-1), pairs[:, 1], asks.count * alike // np.bincount(whose)[pairs[:, 0]])
        return found


_CHUNK = 1000  # records at once
_MOST_KEPT = 400 * 2**20  # bytes of features of all hospitals that a process plays
_FEATURES: dict[tuple[str, str, int], NDArray[np.generic]] = {}
_OWN: dict[tuple[str, str], FeatureMap] = {}  # a process may play many hospitals in turn


@lru_cache(maxsize=1)  # it takes seconds, and a process may play many hospitals in turn
def _parsed(content: bytes, digest: str) -> FeatureMap:
    from pate_fed.learning.features.build import feature_map_from_bytes

    return feature_map_from_bytes(content, digest=digest)
