"""How large a study's messages can be, by its terms alone: what is larger is no message of the study."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pate_fed.protocol.label_terms import LabelTerms
from pate_fed.protocol.terms import Terms

_NUMBER = 8  # int64 on the wire; masked entries take less, and so do most pools
_PER_HOSPITAL = 2048  # a name, keys, signatures, sealed shares
_RECEIPT = 400  # digests of a query's messages: five, where it is a batch of its own
_ENCODER = 64 * 2**20  # far more than the file of an encoder has, or of a feature map
_MARGIN = 2**20  # headers, digests, and what Flower wraps around a message
_MOST = 2**31 - 1  # gRPC's own limit


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSizes:
    """Bytes of the largest legitimate message each way, with a margin."""

    to_hospital: int
    to_coordinator: int


def largest_messages(terms: Terms | LabelTerms) -> MessageSizes:
    """What the largest message of a study under these terms can take.

    To a hospital that is the public pool (8 bytes a number, its file's type not being in the terms) with the
    encoder or the feature map, to the coordinator a batch of all the queries that the terms allow, a vote
    matrix of int64, or all sums.
    """
    shared = _MARGIN + _PER_HOSPITAL * terms.num_clients
    to_hospital = shared + len(terms.to_json())
    if isinstance(terms, LabelTerms):
        to_hospital += _NUMBER * terms.pool_size
        counts = terms.num_clusters * terms.num_classes
        to_coordinator = shared + _NUMBER * max(2 * terms.pool_size, counts)
    else:
        queries = min(terms.pool_size, terms.max_queries or terms.pool_size)
        to_hospital += _NUMBER * (terms.pool_size * math.prod(terms.image_shape) + queries)
        to_hospital += _RECEIPT * queries
        to_hospital += _ENCODER if terms.encoder is not None or terms.sums is not None else 0
        rows = queries if terms.sums is None else terms.sums.dimension
        to_coordinator = shared + _NUMBER * rows * terms.num_classes
    return MessageSizes(to_hospital=min(to_hospital, _MOST), to_coordinator=min(to_coordinator, _MOST))
