"""Messages of `pate_fed.protocol.messages` as Flower records, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from pate_fed.errors import IntegrityError
from pate_fed.protocol.messages import Record

__all__ = ["from_flower", "to_flower"]

_FIELDS = "fields"
_ARRAYS = "arrays"


def to_flower(record: Record) -> RecordDict:
    """A flat record as a Flower RecordDict: scalars in a ConfigRecord, arrays in an ArrayRecord."""
    scalars: dict[str, Any] = {n: value for n, value in record.items() if not isinstance(value, np.ndarray)}
    arrays = {name: Array(value) for name, value in record.items() if isinstance(value, np.ndarray)}
    return RecordDict({_FIELDS: ConfigRecord(scalars), _ARRAYS: ArrayRecord(arrays)})


def from_flower(content: RecordDict) -> Record:
    """The flat record in a Flower RecordDict.

    Raises:
        IntegrityError: anything but the two records that `to_flower` makes.
    """
    if set(content) != {_FIELDS, _ARRAYS}:
        raise IntegrityError("a message with unknown records")
    scalars, arrays = content[_FIELDS], content[_ARRAYS]
    if not isinstance(scalars, ConfigRecord) or not isinstance(arrays, ArrayRecord):
        raise IntegrityError("a message with records of the wrong kind")
    record: Record = {}
    for name, value in scalars.items():
        if not isinstance(value, int | float | str | bytes):
            raise IntegrityError("a message with a field of the wrong kind")
        record[name] = value
    for name, array in arrays.items():
        record[name] = array.numpy()
    return record
