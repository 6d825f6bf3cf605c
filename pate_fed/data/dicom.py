"""DICOM images as pictures of 8 bits: the study's window says which values are black and white.

Needs pydicom, which the extra `dicom` brings. Only the pixels and the patient's number are read; nothing of a
file's other tags goes anywhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError

if TYPE_CHECKING:
    from pydicom.dataset import FileDataset

DICOM_SUFFIXES = (".dcm", ".dicom")

_MOST_PIXELS = 2**26
_GREY = ("MONOCHROME1", "MONOCHROME2")
_COLOUR = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT")


def read_dicom(
    path: Path, *, shape: tuple[int, ...] | None = None, window: tuple[float, float] | None = None
) -> tuple[NDArray[np.uint8], str]:
    """A DICOM file's image, uint8 (height, width, channels), and its patient's number ("" where it has none).

    Values become the modality's own units first (Hounsfield's in a CT). `window` are those that are shown
    black and white; what lies beyond is cut. Without one the file must have 8 bits a value. An image of
    another height or width than `shape` (height, width, channels) is resampled to it.

    Raises:
        InputError: pydicom is missing, or it is no DICOM file, or one without a single image that can be
            read; the error never shows a tag's content.
    """
    found = _open(path)
    kind = str(found.get("PhotometricInterpretation", ""))
    if kind not in _GREY + _COLOUR:
        raise InputError(f"{path}: holds no grey or colour image that can be read ({kind or 'no pixels'})")
    frames = int(found.get("NumberOfFrames") or 1)
    if frames != 1:
        raise InputError(f"{path}: holds {frames} frames: one image a file is meant; part it")
    if int(found.get("Rows") or 0) * int(found.get("Columns") or 0) not in range(1, _MOST_PIXELS + 1):
        raise InputError(f"{path}: an image of up to {_MOST_PIXELS:,} pixels is meant")
    pixels = _pixels(path, found)
    picture = _grey(path, found, pixels, window) if kind in _GREY else _colour(path, found, pixels)
    if kind == "MONOCHROME1":
        picture = 255 - picture
    return _fitted(picture, shape), str(found.get("PatientID") or "").strip()


def _open(path: Path) -> FileDataset:
    try:
        from pydicom import dcmread
        from pydicom.errors import InvalidDicomError
    except ImportError as error:
        raise InputError(f"{path}: a DICOM file needs pydicom: pip install 'pate-fed[dicom]'") from error
    try:
        return dcmread(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except InvalidDicomError as error:
        raise InputError(f"{path}: not a DICOM file") from error
    except Exception as error:  # pydicom raises what its readers meet first
        raise InputError(f"{path}: a damaged DICOM file ({type(error).__name__})") from error


def _pixels(path: Path, found: FileDataset) -> NDArray[Any]:
    from pydicom.pixels.utils import pixel_array

    try:
        return pixel_array(found)
    except Exception as error:  # of pydicom's decoders; their words could show tags
        name = found.file_meta.TransferSyntaxUID.name if "TransferSyntaxUID" in found.file_meta else "none"
        raise InputError(
            f"{path}: its pixels cannot be decoded ({type(error).__name__}; encoding {name}); for a "
            "compressed one install pylibjpeg with its plug-ins, or write it uncompressed"
        ) from error


def _grey(
    path: Path, found: FileDataset, pixels: NDArray[Any], window: tuple[float, float] | None
) -> NDArray[np.uint8]:
    if pixels.ndim != 2:
        raise InputError(f"{path}: pixels of {pixels.shape}: one grey image is meant")
    slope, intercept = float(found.get("RescaleSlope") or 1), float(found.get("RescaleIntercept") or 0)
    if window is None:
        if int(found.BitsStored) != 8 or (slope, intercept) != (1, 0) or found.get("PixelRepresentation"):
            raise InputError(
                f"{path}: {found.BitsStored} bits a value; say in study.toml which values are black and "
                "white, for every hospital: data.window = [black, white]"
            )
        return pixels.astype(np.uint8)[..., None]
    black, white = window
    values = (pixels.astype(np.float64) * slope + intercept - black) / (white - black)
    return np.rint(np.clip(values, 0, 1) * 255).astype(np.uint8)[..., None]


def _colour(path: Path, found: FileDataset, pixels: NDArray[Any]) -> NDArray[np.uint8]:
    if pixels.ndim != 3 or pixels.shape[2] != 3 or int(found.BitsStored) != 8:
        raise InputError(f"{path}: a colour image of 8 bits a value is meant")
    return pixels.astype(np.uint8)


def _fitted(picture: NDArray[np.uint8], shape: tuple[int, ...] | None) -> NDArray[np.uint8]:
    """The picture in the study's height, width and channels."""
    if shape is None or picture.shape == shape:
        return picture
    from PIL import Image

    grey = picture.shape[2] == 1
    image = Image.fromarray(picture[..., 0] if grey else picture)
    height, width, channels = shape
    image = image.convert("L" if channels == 1 else "RGB").resize((width, height), Image.Resampling.BOX)
    return np.asarray(image, dtype=np.uint8).reshape(height, width, channels)
