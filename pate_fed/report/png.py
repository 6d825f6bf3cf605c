"""Images as a PNG contact sheet, with the standard library and NumPy alone."""

from __future__ import annotations

import base64
import math
import struct
import zlib

import numpy as np
from numpy.typing import NDArray


def contact_sheet(images: NDArray[np.uint8], *, columns: int = 8, gap: int = 2) -> NDArray[np.uint8]:
    """Images side by side on mid grey.

    Shapes: uint8 (count, height, width, channels) to uint8 (rows, columns, channels), channels 1 or 3.
    """
    count, height, width, channels = images.shape
    columns = max(1, min(columns, count))
    rows = math.ceil(count / columns)
    shape = (rows * (height + gap) + gap, columns * (width + gap) + gap, channels)
    sheet = np.full(shape, 128, dtype=np.uint8)
    for place, image in enumerate(images):
        y, x = gap + place // columns * (height + gap), gap + place % columns * (width + gap)
        sheet[y : y + height, x : x + width] = image
    return sheet


def encode_png(image: NDArray[np.uint8]) -> bytes:
    """A PNG file (ISO/IEC 15948): 8 bits a channel, no filter, one IDAT chunk.

    Shapes: uint8 (height, width, 1 or 3).
    """
    height, width, channels = image.shape
    header = struct.pack(">IIBBBBB", width, height, 8, {1: 0, 3: 2}[channels], 0, 0, 0)
    rows = np.zeros((height, 1 + width * channels), dtype=np.uint8)  # each row begins with filter type 0
    rows[:, 1:] = image.reshape(height, -1)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def data_uri(image: NDArray[np.uint8]) -> str:
    """The image as a `data:` address for a page."""
    return "data:image/png;base64," + base64.b64encode(encode_png(image)).decode("ascii")
