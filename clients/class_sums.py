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

from clients.site import Site
from pate_fed.disk import write_private
from pate_fed.errors import InputError, IntegrityError
from pate_fed.protocol.messages import VoteRequest
from pate_fed.protocol.sum_terms import SumTerms
from pate_fed.protocol.terms import Terms

if TYPE_CHECKING:
    from pate_fed.learning.features.feature_map import FeatureMap

FEATURES_FILE = "features.bin"
_LARGEST = 2**31 - 1  # sums under masks are read mod 2^32, around zero
_SIGMAS = 10  # of noise that an entry may have besides

Ints = NDArray[np.int64]


def keep_features(site: Site, terms: Terms, content: bytes) -> None:
    """Keep the feature map that came, if it is the one in the terms.

    Raises:
        IntegrityError: another one came, or none, or one of which the terms say what is not so.
    """
    _read(site, terms, content)
    write_private(_path(site), content, durable=site.durable)


def check_sums(site: Site, terms: Terms) -> None:
    """What is wrong with the records is found now, and not in the middle of a sum.

    Raises:
        InputError: they cannot be read, or are too many for sums in 32 bits.
    """
    features, count = _kept(site, terms), len(site.own_records())
    noise = (terms.sigma_party or _sums_of(terms).sigma or 0.0) * math.sqrt(terms.num_clients)
    most = (_LARGEST - int(_SIGMAS * noise)) // terms.num_clients
    if features.largest_entry(count) > most:
        raise InputError(
            f"{count} records are more than sums in 32 bits have room for at one of {terms.num_clients} "
            "hospitals; a study with a smaller lattice (sums.lattice) has more"
        )


def asks_all_features(terms: Terms, question: VoteRequest) -> bool:
    """Whether a question is the one that there is: every feature's sum once, in order, to be released."""
    every = np.arange(_sums_of(terms).dimension)
    return not question.measured and np.array_equal(question.index, every)


def count_sums(site: Site, terms: Terms) -> Ints:
    """This hospital's sums of features by class, without noise: int64 (dimension, classes).

    Records of one patient are cut to the length of one record's; with the unit hospital so is the whole.

    Raises:
        InputError: records that do not fit the feature map.
    """
    dataset, own = site.dataset, site.own_records()
    return _kept(site, terms).contributions(
        dataset.private_images[own],
        dataset.private_labels[own],
        num_classes=terms.num_classes,
        groups=None if dataset.patients is None else dataset.patients[own],
        most_units=_sums_of(terms).most_units,
    )


def _sums_of(terms: Terms) -> SumTerms:
    if terms.sums is None:
        raise TypeError("a study with votes: no sums of features are asked for")
    return terms.sums


def _path(site: Site) -> Path:
    return site.state_dir / FEATURES_FILE


def _kept(site: Site, terms: Terms) -> FeatureMap:
    try:
        content = _path(site).read_bytes()
    except OSError as error:
        raise IntegrityError("the feature map that this hospital kept is gone") from error
    return _read(site, terms, content)


def _read(site: Site, terms: Terms, content: bytes) -> FeatureMap:
    """The map, whose bounds are those that the noise in the terms is made for."""
    sums = _sums_of(terms)
    if not content:
        raise IntegrityError("no feature map came")
    features = _parsed(content, sums.features) if sums.part is None else _own_map(site, terms, content)
    found = (features.settings, features.dimension, features.squared_norm)
    if found != (sums.settings, sums.dimension, sums.squared_norm):
        raise IntegrityError("the feature map that came has other bounds than the terms say")
    return features


def _own_map(site: Site, terms: Terms, content: bytes) -> FeatureMap:
    """A map of code that is installed here, made of the pool as it lies here; what came only names it.

    The policy lists it, and its source is the one in the terms: both were looked at before.

    Raises:
        IntegrityError: another one came.
    """
    from pate_fed.learning.features.own import own_features

    sums, place = _sums_of(terms), (_sums_of(terms).features, site.pool_digest)
    if place not in _OWN:
        _OWN.clear()
        public = site.dataset.public_images[: terms.max_queries]
        _OWN[place] = own_features(sums.settings, public, part=sums.part)
    if _OWN[place].to_bytes() != content or _OWN[place].digest != sums.features:
        raise IntegrityError("the feature map that came is not what its code makes of the pool here")
    return _OWN[place]


_OWN: dict[tuple[str, str], FeatureMap] = {}  # a process may play many hospitals in turn


@lru_cache(maxsize=1)  # it takes seconds, and a process may play many hospitals in turn
def _parsed(content: bytes, digest: str) -> FeatureMap:
    from pate_fed.learning.features.build import feature_map_from_bytes

    return feature_map_from_bytes(content, digest=digest)
