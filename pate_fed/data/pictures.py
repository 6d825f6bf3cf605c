"""Images in files as uint8 arrays: pictures of 8 bits a channel, NumPy arrays, idx files and DICOM."""

from __future__ import annotations

import gzip
import struct
import warnings
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from pate_fed.disk import load_arrays, open_regular
from pate_fed.errors import InputError

if TYPE_CHECKING:
    from pydicom.dataset import FileDataset


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
            with open_regular(path) as file, Image.open(file) as image:
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
    """The arrays of a .npz file by name, or of a .npy file the one; InputError: damaged, or pickled."""
    try:
        return load_arrays(path, most=None)
    except Exception as error:  # numpy raises what its readers meet first
        raise InputError(f"{path}: holds no arrays that can be read ({error})") from error


# Read idx files, the format of MNIST and its relatives, plain or gzip; every damage is named.
#
# An idx file is a big-endian header (two zero bytes, the type, the number of dimensions, then 32 bits a
# dimension) and the bare values: http://yann.lecun.com/exdb/mnist/.


_UINT8 = 0x08
_CHUNK = 1 << 20


def read_images(path: Path) -> NDArray[np.uint8]:
    """Images `(n, height, width)` of one file; InputError: cut, empty, no gzip, no idx, another length."""
    return _read_idx(path, dimensions=3, what="images")


def read_labels(path: Path, *, num_classes: int) -> NDArray[np.int64]:
    """Labels `(n,)` of one file; InputError: as `read_images`, or a label that is not below `num_classes`."""
    labels = _read_idx(path, dimensions=1, what="labels").astype(np.int64)
    if labels.max() >= num_classes:
        where = int(labels.argmax())
        raise InputError(
            f"{path}: label {labels[where]} of record {where}: labels from 0 to {num_classes - 1} are allowed"
        )
    return labels


def read_labelled_images(
    images: Path, labels: Path, *, num_classes: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images `(n, height, width, 1)` of one file, labels `(n,)` of another; InputError: not one each."""
    pixels, classes = read_images(images), read_labels(labels, num_classes=num_classes)
    if len(pixels) != len(classes):
        raise InputError(f"{images}: {len(pixels)} images, but {labels.name} holds {len(classes)} labels")
    return pixels[..., None], classes


def _read_idx(path: Path, *, dimensions: int, what: str) -> NDArray[np.uint8]:
    if path.stat().st_size == 0:
        raise InputError(f"{path}: the file is empty")
    try:
        with open_regular(path) as raw:
            packed = path.suffix == ".gz"
            stream = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if packed else raw
            return _parse(path, stream, dimensions, what)
    except EOFError as error:
        raise InputError(f"{path}: the gzip file is cut short; fetch it again") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path}: not an undamaged gzip file ({error})") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error


def _parse(path: Path, stream: BinaryIO, dimensions: int, what: str) -> NDArray[np.uint8]:
    header = stream.read(4 + 4 * dimensions)
    magic = int.from_bytes(header[:4], "big")
    wanted = _UINT8 << 8 | dimensions
    if len(header) >= 4 and magic != wanted:
        raise InputError(f"{path}: magic number {magic:#010x}: idx {what} start with {wanted:#010x}")
    if len(header) < 4 + 4 * dimensions:
        raise InputError(f"{path}: {len(header)} bytes are no idx header of {4 + 4 * dimensions}")
    shape = struct.unpack(f">{dimensions}I", header[4:])
    size = int(np.prod(shape, dtype=object))
    if size == 0:
        raise InputError(f"{path}: the header says {'×'.join(map(str, shape))}: the file holds no {what}")
    # In pieces: a damaged header may claim more than fits into memory.
    values = bytearray()
    while len(values) <= size and (piece := stream.read(min(_CHUNK, size + 1 - len(values)))):
        values += piece
    if len(values) != size:
        found = f"only {len(values)}" if len(values) < size else "more"
        raise InputError(
            f"{path}: the header says {'×'.join(map(str, shape))} = {size} bytes, the file has {found}"
        )
    return np.frombuffer(values, dtype=np.uint8).reshape(shape)


# DICOM images as pictures of 8 bits: the study's window says which values are black and white.
#
# Needs pydicom, which the extra `dicom` brings. Only the pixels and the patient's number are read; nothing
# of a file's other tags goes anywhere.


DICOM_SUFFIXES = (".dcm", ".dicom")

_MOST_PIXELS = 2**26
_DICOM_GREY = ("MONOCHROME1", "MONOCHROME2")
_DICOM_COLOUR = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT")


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
    if kind not in _DICOM_GREY + _DICOM_COLOUR:
        raise InputError(f"{path}: holds no grey or colour image that can be read ({kind or 'no pixels'})")
    frames = int(found.get("NumberOfFrames") or 1)
    if frames != 1:
        raise InputError(f"{path}: holds {frames} frames: one image a file is meant; part it")
    if int(found.get("Rows") or 0) * int(found.get("Columns") or 0) not in range(1, _MOST_PIXELS + 1):
        raise InputError(f"{path}: an image of up to {_MOST_PIXELS:,} pixels is meant")
    pixels = _pixels(path, found)
    picture = _grey(path, found, pixels, window) if kind in _DICOM_GREY else _colour(path, found, pixels)
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
        with open_regular(path) as file:
            return dcmread(file)
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
