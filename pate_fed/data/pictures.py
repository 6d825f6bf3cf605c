"""Images in files as uint8 arrays: pictures of 8 bits a channel, NumPy arrays and idx files."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.data.idx import read_images
from pate_fed.errors import InputError

PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".pgm", ".ppm", ".tif", ".tiff")
_IDX_SUFFIXES = ("ubyte", "ubyte.gz")

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
            warnings.simplefilter("ignore")  # of a large or an odd file: it is read, or refused below
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


def pictures_in(folder: Path) -> list[Path]:
    """The picture files right in a folder, by name."""
    return sorted(each for each in folder.iterdir() if each.suffix.lower() in PICTURE_SUFFIXES)


def read_image_file(path: Path, channels: int | None = None) -> NDArray[np.uint8]:
    """Images of a .npy, a .npz (its array `images` or `x`, or its only one), an idx file or a picture file.

    Shapes: uint8 (n, height, width, channels); an array without channels gets one. A picture file is made
    grey or coloured where `channels` says which.

    Raises:
        InputError: there is no such file, or no such images in it.
    """
    if not path.is_file():
        raise InputError(f"{path}: there is no such file")
    names = "".join(path.suffixes).lower()
    if names.endswith((".npy", ".npz")):
        images = _images_of(path)
    elif not names.endswith(PICTURE_SUFFIXES) and ("idx" in path.name or names.endswith(_IDX_SUFFIXES)):
        images = read_images(path)
    else:
        try:
            images = read_picture(path, channels)[None]
        except InputError as error:
            if names.endswith(PICTURE_SUFFIXES):
                raise
            raise InputError(f"{path}: not a picture, .npy, .npz or idx file") from error
    if images.ndim == 3:
        images = images[..., None]
    if images.dtype != np.uint8 or images.ndim != 4:
        raise InputError(
            f"{path}: holds {images.dtype} {images.shape}; uint8 (n, height, width, channels) is meant"
        )
    if not len(images):
        raise InputError(f"{path}: holds no image")
    return images


def _images_of(path: Path) -> NDArray[Any]:
    arrays = read_arrays(path)
    named = [arrays[name] for name in ("images", "x") if name in arrays]
    if not named and len(arrays) != 1:
        raise InputError(
            f"{path}: holds {', '.join(arrays) or 'nothing'}; one array, or one named images or x is meant"
        )
    return next(iter(named or arrays.values()))


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a .npz file by name, or of a .npy file the one; pickled objects are refused.

    Raises:
        InputError: it cannot be read, or is damaged.
    """
    try:
        with open(path, "rb") as file:
            found = np.load(file, allow_pickle=False)
            return {"": found} if isinstance(found, np.ndarray) else {name: found[name] for name in found}
    except Exception as error:  # numpy raises what its readers meet first
        raise InputError(f"{path}: holds no arrays that can be read ({error})") from error
