"""Images and labels as arrays: what is refused, and how pixels become tensors."""

from __future__ import annotations

import io
import warnings
import zipfile

import numpy as np
import pytest
import torch

from pate_fed.errors import InputError
from pate_fed.learning.tensors import (
    check_images,
    check_labels,
    image_shape,
    is_whole,
    tensor_batches,
    to_tensor,
)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((4, 8, 8), np.uint8), "uint8"),
        (np.zeros((4, 8, 8, 1), np.float32), "float32"),
        (np.zeros((4, 8, 8, 2), np.uint8), "1 or 3"),
        (np.zeros((4, 7, 8, 1), np.uint8), "at least 8"),
        (np.zeros((4, 9, 8, 1), np.uint8), r"takes \(8, 8, 1\)"),
    ],
)
def test_other_images_are_refused(images: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_images(images, (8, 8, 1) if images.shape[1:] == (9, 8, 1) else None)


@pytest.mark.parametrize("labels", [[0, 1, 4], [-1, 0, 1], [0, 1], [0.0, 1.0, 2.0]])
def test_other_labels_are_refused(labels: list[float]) -> None:
    with pytest.raises(InputError, match="meant"):
        check_labels(np.array(labels), 3, 4)
    with pytest.raises(InputError, match="at least 2"):
        check_labels(np.zeros(3, np.int64), 3, 1)


def test_pixels_are_from_0_to_1_in_any_number_of_batches() -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 9, 3), dtype=np.uint8)
    images.setflags(write=False)
    x = to_tensor(images, "cpu")
    assert image_shape(images) == (8, 9, 3) and x.shape == (5, 3, 8, 9)
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert np.allclose(x.permute(0, 2, 3, 1).numpy(), images / 255)
    parts = list(tensor_batches(images, 2, "cpu"))
    assert [len(part) for part in parts] == [2, 2, 1] and torch.equal(torch.cat(parts), x)
    assert list(tensor_batches(images[:0], 2, "cpu")) == []


def test_a_script_whose_code_is_packed_is_whole_and_an_archive_that_grows_a_thousandfold_is_not() -> None:
    """Torch packs a script's code: of many small layers it unpacks to more than the file has bytes."""
    layers = torch.nn.Sequential(*[torch.nn.Linear(2, 2) for _ in range(60)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer releases would have another format
        torch.jit.save(torch.jit.trace(layers, torch.zeros(1, 2)), script := io.BytesIO())
    held = zipfile.ZipFile(io.BytesIO(script.getvalue())).infolist()
    assert sum(each.file_size for each in held) > len(script.getvalue()) and is_whole(script.getvalue())
    assert not is_whole(script.getvalue()[:-200])
    with (
        zipfile.ZipFile(bomb := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("x", "w") as part,
    ):
        for _ in range(300):
            part.write(bytes(2**20))
    assert not is_whole(bomb.getvalue())
