"""Messages as Flower records and back, put together within bounds, and the bundle that is sent along.

An array names its chunks by their places, and may name one any number of times: two bytes more on the wire
are another 5 MiB in memory. So what a message grows to is added up before it is put together. In Flower the
coordinator ships the app's code, too. A hospital of `pate_fed` runs what it installed, never what it is sent:
the bundle is a thin shim without code, compared with the one expected byte for byte, and never opened.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import zipfile
from io import BytesIO
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.constant import SType
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_head_values_from_object_content,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from numpy.typing import NDArray

from pate_fed.errors import IntegrityError
from pate_fed.protocol.messages import NUMBERS, Record

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
    """The flat record in a Flower RecordDict; IntegrityError where `to_flower` does not make it."""
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


def _read_array(array: Array) -> NDArray[Any]:
    """The whole numbers in a Flower array, all that messages hold.

    What it says of itself is compared with the bytes that came before anything is loaded: NumPy's own reader
    takes the memory that a header asks for, runs other readers by the name of `stype`, and raises whatever it
    meets first.
    """
    try:
        if array.stype != SType.NUMPY:
            raise ValueError("stype")
        file = io.BytesIO(array.data)
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError("version")
        shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(file, max_header_size=_HEADER_BYTES)
        size = dtype.itemsize * math.prod(shape)
        if dtype not in NUMBERS or fortran_order or len(shape) > 2 or min(shape, default=0) < 0:
            raise ValueError("dtype or shape")
        if size != len(array.data) - file.tell():
            raise ValueError("size")
        return np.frombuffer(array.data, dtype, offset=file.tell()).reshape(shape).copy()
    except Exception as error:  # a stranger's bytes: whatever fails says the same
        raise IntegrityError("a message with an array that is not readable") from error


def wire_parts(record: Record) -> list[tuple[str, bytes]]:
    """The parts of a message's content as Flower sends them: their kinds and their very bytes."""
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    parts = get_all_nested_objects(to_flower(record)).values()
    return [(type(part).__name__, part.deflate()) for part in parts]


MOST_BYTES = 2**31 - 1
"""Where no terms bound a message: gRPC's own limit."""


def inflate_message(name: str, contents: dict[str, bytes], *, most_bytes: int) -> Message:
    """The message with the id `name`, from the contents of all its parts by their ids, which are used up.

    Raises:
        ValueError: its arrays take more than `most_bytes`, or it is no message. On a stranger's bytes any
            other exception may come, too.
    """
    if sum(_grown(part, contents) for part in contents.values()) > most_bytes:
        raise ValueError("arrays that grow beyond any message of the study")
    found = inflate_object_from_contents(name, contents)
    if not isinstance(found, Message):
        raise ValueError("no message")
    return found


def _grown(part: bytes, contents: dict[str, bytes]) -> int:
    """Bytes that an array takes once its chunks are joined; 0 of any other part."""
    kind, children, _ = get_object_head_values_from_object_content(part)
    if kind != Array.__qualname__:
        return 0
    places = json.loads(get_object_body(part, Array))["arraychunk_ids"]
    sizes = [len(contents[child]) for child in children]
    return sum(sizes[place] for place in places)


# Names of apps, no code: what runs is installed on either side.
_PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "pate-fed-shim"
version = "1.0.0"
description = "Names the installed apps of pate_fed; holds no code"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "pate-fed"

[tool.flwr.app.components]
serverapp = "server.app:app"
clientapp = "clients.app:app"

[tool.flwr.app.config]
"""


def build_bundle() -> bytes:
    """The shim as a Flower app bundle: an archive of the project file and its digest, always the same."""
    content = _PYPROJECT.encode()
    manifest = f"pyproject.toml,{hashlib.sha256(content).hexdigest()},{len(content) * 8}"
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in (("pyproject.toml", content), (".info/CONTENT", manifest.encode())):
            entry = zipfile.ZipInfo(name)  # with a fixed date
            entry.create_system = 3  # the same on every system
            archive.writestr(entry, text)
    return buffer.getvalue()


def is_the_shim(bundle: bytes) -> bool:
    """Whether a bundle is the shim, byte for byte; it is not opened to find out."""
    return bundle == build_bundle()
