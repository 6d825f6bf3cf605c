"""Models on disk: plain values and tensors, written whole or not at all, read without running any code."""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from pate_fed.disk import write_result
from pate_fed.errors import InputError, IntegrityError


def write_model(path: Path, kind: str, content: dict[str, Any], *, durable: bool = True) -> None:
    """Write the model `content` of `kind` to `path` as `write_result` does.

    Raises:
        InputError: the folder cannot be written to.
    """
    buffer = io.BytesIO()
    torch.save({"kind": kind, "version": 1, **content}, buffer)
    write_result(path, buffer.getvalue(), durable=durable)


def is_whole(data: bytes) -> bool:
    """Whether each part of a file of torch's has the checksum it was written with; torch does not look."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return archive.testzip() is None
    except Exception:  # zipfile raises whatever it meets first in damaged bytes
        return False


def read_model(path: Path, kind: str) -> dict[str, Any]:
    """What `write_model` wrote, tensors on the CPU.

    Raises:
        InputError: there is no such file, or it cannot be opened.
        IntegrityError: the file is damaged, or is another kind of model.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    if not is_whole(data):
        raise IntegrityError(f"{path}: not a {kind} that pate_fed wrote, or damaged")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a TorchScript file, which is refused below
            content = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever its unpickler meets first in damaged bytes
        raise IntegrityError(f"{path}: not a {kind} that pate_fed wrote, or damaged") from error
    if not isinstance(content, dict) or content.get("kind") != kind or content.get("version") != 1:
        raise IntegrityError(f"{path}: not a {kind} that this version of pate_fed can read")
    return _with_current_names(content)  # type: ignore[no-any-return]


@contextmanager
def reading_network(path: Path, kind: str) -> Iterator[tuple[dict[str, Any], tuple[int, int, int], int]]:
    """What `write_model` wrote of networks, with their image shape and number of classes, to build them from.

    Within the context torch's randomness is on loan: initial weights are drawn, and overwritten at once.

    Raises:
        InputError: there is no such file, or it cannot be opened.
        IntegrityError: the file is damaged or of another kind, or what is built from it does not fit.
    """
    content = read_model(path, kind)
    try:
        rows, columns, channels = content["image_shape"]
        with torch.random.fork_rng(devices=[]):
            yield content, (rows, columns, channels), content["num_classes"]
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError, InputError) as error:
        raise IntegrityError(f"{path}: the {kind}'s settings and weights do not fit together") from error


def _with_current_names(content: Any) -> Any:
    """The same with today's names of weights: earlier versions' files call preprocessing `front`."""
    if isinstance(content, dict):
        return {
            "preprocess." + key[6:] if str(key).startswith("front.") else key: _with_current_names(value)
            for key, value in content.items()
        }
    return [_with_current_names(value) for value in content] if isinstance(content, list) else content
