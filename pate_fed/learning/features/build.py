"""Building a feature map from the public pool, and reading the one that a coordinator sent."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import IntegrityError
from pate_fed.learning.features.feature_map import FeatureMap
from pate_fed.learning.features.settings import BINS, FeatureSettings
from pate_fed.learning.features.tables import TableFeatures, fit_table_features

__all__ = ["build_feature_map", "feature_map_from_bytes"]


def build_feature_map(settings: FeatureSettings, public: NDArray[Any]) -> FeatureMap:
    """The map of these settings, fitted to the public pool alone: the same pool gives the same map.

    Shapes: `public` uint8 (n, H, W, C), or float64 (n, inputs) for a table.

    Raises:
        InputError: a pool that does not fit the settings.
    """
    if settings.name == BINS:
        return fit_table_features(settings, np.asarray(public, dtype=np.float64))
    from pate_fed.learning.features.images import fit_image_features  # late: tables need no torch

    return fit_image_features(settings, public)


def feature_map_from_bytes(data: bytes, *, digest: str) -> FeatureMap:
    """Read what `FeatureMap.to_bytes` gave, and hold it to the `digest` in the study's terms.

    Raises:
        IntegrityError: damaged, no feature map, or not the one with that digest.
    """
    found: FeatureMap
    if data[:1] == b"{":
        found = TableFeatures.from_bytes(data)
    else:
        from pate_fed.learning.features.images import ImageFeatures

        found = ImageFeatures.from_bytes(data)
    if found.digest != digest:
        raise IntegrityError(f"the message: the features' SHA-256 is {found.digest}, not {digest}")
    return found
