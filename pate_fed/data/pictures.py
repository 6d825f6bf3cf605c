"""One picture file as uint8: 8 bits a channel, grey or colour, refused where a reader would have to guess."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError

__all__ = ["PICTURE_SUFFIXES", "read_picture"]

PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".pgm", ".ppm", ".tif", ".tiff")

_GREY = ("1", "L", "LA")
_COLOUR = ("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")


def read_picture(path: Path, channels: int | None = None) -> NDArray[np.uint8]:
    """A picture as uint8 (height, width, channels); without `channels` 1 where the file is grey, else 3.

    A file of 16 or 32 bits a pixel is refused: which of its values are black and white is the user's to say
    (a window, in radiology), and the same for every hospital and for the pool.

    Raises:
        InputError: no such file, no picture, several, a damaged one, or one of more than 8 bits a channel.
    """
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # of a large or an oddly written file: it is read, or refused below
            with Image.open(path) as image:
                mode = image.mode
                # A camera's second picture (MPO) is the first one again, smaller or from aside.
                pictures = getattr(image, "n_frames", 1)
                if pictures > 1 and image.format != "MPO":
                    raise InputError(f"{path}: holds {pictures} pictures: one a file is meant; part it")
                if mode in _GREY + _COLOUR:
                    wanted = channels or (1 if mode in _GREY else 3)
                    picture = np.asarray(image.convert("L" if wanted == 1 else "RGB"), dtype=np.uint8)
                    return picture.reshape(*picture.shape[:2], wanted)
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise InputError(f"{path}: not an image that can be read ({error})") from error
    raise InputError(
        f"{path}: an image of mode {mode}, with more than 8 bits a channel; write it with 8, the same values "
        "black and white in every file of the study"
    )
