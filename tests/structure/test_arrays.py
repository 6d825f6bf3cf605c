"""Images in text: they come back as they were, and damaged ones are refused."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from pate_fed.errors import InputError
from pate_fed.structure import from_plain, to_plain


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pictures:
    images: NDArray[np.uint8]


def test_images_survive_and_damaged_ones_do_not() -> None:
    images = np.random.default_rng(0).integers(0, 255, (2, 3, 4, 1), dtype=np.uint8)
    plain = json.loads(json.dumps(to_plain(Pictures(images=images))))
    np.testing.assert_array_equal(from_plain(Pictures, plain, where="f").images, images)
    for change in ({"shape": [2**40]}, {"shape": [-1]}, {"zlib_base64": "!"}, {"shape": [2, 3, 4, 2]}):
        with pytest.raises(InputError, match=r"images in f .*an array is meant"):
            from_plain(Pictures, {"images": {**plain["images"], **change}}, where="f")
    with pytest.raises(InputError, match="images"):
        from_plain(Pictures, {"images": images.astype(np.int64)}, where="f")
