"""Messages of `pate_fed.protocol.messages` as Flower records, and back."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.common.constant import SType
from numpy.typing import NDArray

from pate_fed.errors import IntegrityError
from pate_fed.protocol.messages import Record

_FIELDS = "fields"
_ARRAYS = "arrays"
_HEADER_BYTES = 1000
_MOST_ARRAYS = 8  # more than any message has: one array may stand under many names, and each is copied


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
    if len(arrays) > _MOST_ARRAYS:
        raise IntegrityError("a message of too many arrays")
    record: Record = {}
    for name, value in scalars.items():
        if not isinstance(value, int | float | str | bytes):
            raise IntegrityError("a message with a field of the wrong kind")
        record[name] = value
    for name, array in arrays.items():
        record[name] = _read_array(array)
    return record


def _read_array(array: Array) -> NDArray[np.int64]:
    """The whole numbers in a Flower array, all that messages hold.

    What it says of itself is compared with the bytes that came before anything is loaded: NumPy's own reader
    takes the memory that a header asks for, runs other readers by the name of `stype`, and raises whatever it
    meets first.

    Raises:
        IntegrityError: not int64 in C order, of at most two axes and as many bytes as the header says.
    """
    try:
        if array.stype != SType.NUMPY:
            raise ValueError("stype")
        file = io.BytesIO(array.data)
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError("version")
        shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(file, max_header_size=_HEADER_BYTES)
        size = dtype.itemsize * math.prod(shape)
        if dtype != np.dtype("<i8") or fortran_order or len(shape) > 2 or min(shape, default=0) < 0:
            raise ValueError("dtype or shape")
        if size != len(array.data) - file.tell():
            raise ValueError("size")
        return np.frombuffer(array.data, dtype=np.int64, offset=file.tell()).reshape(shape).copy()
    except Exception as error:  # a stranger's bytes: whatever fails says the same
        raise IntegrityError("a message with an array that is not readable") from error


def wire_parts(record: Record) -> list[tuple[str, bytes]]:
    """The parts of a message's content as Flower sends them: their kinds and their very bytes."""
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    parts = get_all_nested_objects(to_flower(record)).values()
    return [(type(part).__name__, part.deflate()) for part in parts]
