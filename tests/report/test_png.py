"""Images: PNG bytes and contact sheets."""

from __future__ import annotations

import matplotlib.image as reader
import numpy as np
import pytest

from pate_fed.report.html import contact_sheet, encode_png


@pytest.mark.parametrize("channels", [1, 3])
def test_a_png_is_read_back_the_same(channels: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    image = np.random.default_rng(1).integers(0, 256, (5, 9, channels), dtype=np.uint8)
    path = tmp_path_factory.mktemp("png") / "image.png"
    path.write_bytes(encode_png(image))
    read = (reader.imread(path) * 255).round().astype(np.uint8)
    np.testing.assert_array_equal(read.reshape(5, 9, -1)[..., :channels], image)


def test_a_contact_sheet_keeps_every_image() -> None:
    images = np.arange(6 * 4 * 4, dtype=np.uint8).reshape(6, 4, 4, 1)
    sheet = contact_sheet(images, columns=4, gap=1)
    assert sheet.shape == (11, 21, 1)
    np.testing.assert_array_equal(sheet[6:10, 6:10], images[5])
