"""Settings of a feature map: what a map takes, what it leaves to the kind of inputs, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from pate_fed.errors import InputError
from pate_fed.learning.features.feature_map import BINS, KERNEL, FeatureSettings


def test_what_is_left_open_follows_from_the_kind_of_inputs() -> None:
    images, table = FeatureSettings(), FeatureSettings(columns=(1, 3))
    assert (images.name, images.most_anchors, images.power) == (KERNEL, 2000, 0.6)
    assert (table.most_anchors, table.power) == (300, 0.75)
    given = FeatureSettings(dimension=7, whitening=0.0, columns=(1,))
    assert (given.most_anchors, given.power) == (7, 0.0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "kernels"}, "kernel"),
        ({"name": BINS}, "bins is for tables"),
        ({"columns": (1, 2), "cuts": ((0.5,),)}, "1 for 2 columns"),
        ({"columns": (1,), "cuts": ((2.0, 1.0),)}, "do not rise"),
        ({"columns": (1,), "cuts": ((1.0, 1.0),)}, "do not rise"),
        ({"lattice": 15}, "lattice"),
        ({"whitening": 2.5}, "whitening"),
    ],
)
def test_what_does_not_go_together_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        FeatureSettings(**given)


def test_a_map_of_one_s_own_is_told_from_ours() -> None:
    assert FeatureSettings(name="own_parts:rows").own and not FeatureSettings().own
