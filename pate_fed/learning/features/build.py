"""Building a feature map from the public pool, and reading the one that a coordinator sent."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError, IntegrityError
from pate_fed.learning.features.feature_map import Embedding, FeatureMap
from pate_fed.learning.features.kernel import AnchorFeatures, RandomFeatures
from pate_fed.learning.features.settings import BINS, HOG, RANDOM, FeatureSettings
from pate_fed.learning.features.tables import BinFeatures, TableEmbedding, fit_knots, fit_table_embedding
from pate_fed.structure import from_plain

_DAMAGED = "the message: not a feature map that pate_fed wrote, or damaged"


def build_feature_map(settings: FeatureSettings, public: NDArray[Any]) -> FeatureMap:
    """The map of these settings, fitted to the public pool alone: the same pool gives the same map.

    Shapes: `public` uint8 (n, H, W, C), or float64 (n, inputs) for a table; n ≥ 2.

    Raises:
        InputError: a pool that does not fit the settings.
    """
    if len(public) < 2:
        raise InputError(f"a public pool of {len(public)} inputs: at least 2 are meant")
    if settings.columns:
        rows = np.asarray(public, dtype=np.float64)
        if settings.name == BINS:
            return BinFeatures(settings, fit_knots(settings, rows, count=settings.bins))
        return _on_embedding(settings, fit_table_embedding(settings, rows), rows)
    from pate_fed.learning.features.images import fit_hog, fit_image_embedding  # late: tables need no torch

    if settings.name == HOG:
        return fit_hog(settings, public)
    return _on_embedding(settings, fit_image_embedding(public), public)


def _on_embedding(settings: FeatureSettings, embedding: Embedding, public: NDArray[Any]) -> FeatureMap:
    if settings.name == RANDOM:
        drawn = np.random.default_rng(settings.seed).standard_normal((settings.most_anchors, embedding.width))
        return RandomFeatures(settings, embedding, drawn.astype(np.float16))
    count = min(len(public) // 2, settings.most_anchors)
    chosen = np.linspace(0, len(public) - 1, count).astype(np.int64)
    return AnchorFeatures(settings, embedding, embedding.encode(public[chosen]).astype(np.float16))


def feature_map_from_bytes(data: bytes, *, digest: str) -> FeatureMap:
    """Read what `FeatureMap.to_bytes` gave, and hold it to the `digest` in the study's terms.

    Raises:
        InputError: the map is code of the user's own, which no file may name.
        IntegrityError: damaged, no feature map, or not the one with that digest.
    """
    found = _from_json(data) if data[:1] == b"{" else _from_arrays(data)
    if found.digest != digest:
        raise IntegrityError(f"the message: the features' SHA-256 is {found.digest}, not {digest}")
    return found


def _from_json(data: bytes) -> FeatureMap:
    try:
        content = json.loads(data)
        settings = from_plain(FeatureSettings, content["settings"], where="features")
        if settings.columns and not settings.own:
            return BinFeatures.from_bytes(data)
        shape = None if settings.own else content["shape"]
    except (ValueError, KeyError, TypeError, RecursionError, InputError) as error:
        raise IntegrityError(_DAMAGED) from error
    if settings.own:
        raise InputError(
            f"feature map {settings.name!r}: is code of the user's own, and a file may not name any; the run "
            "that `simulate` gave has the student itself"
        )
    from pate_fed.learning.features.images import hog_from_plain

    return hog_from_plain(settings, shape)


def _from_arrays(data: bytes) -> FeatureMap:
    from safetensors.numpy import load

    try:
        arrays = load(data)
        text = arrays["settings"].tobytes()
        settings = from_plain(FeatureSettings, json.loads(text), where="features")
        embedding: Embedding
        if settings.columns:
            embedding = TableEmbedding.from_plain(json.loads(arrays["table"].tobytes()))
        else:
            from pate_fed.learning.features.images import ImageEmbedding

            embedding = ImageEmbedding.from_array(arrays["encoder"])
        points = arrays["points"]
    except Exception as error:  # what the readers of the header, JSON and NumPy meet first
        raise IntegrityError(_DAMAGED) from error
    fits = points.dtype == np.float16 and points.ndim == 2 and len(points) > 0
    if not fits or points.shape[1] != embedding.width or not np.isfinite(points).all():
        raise IntegrityError("the message: the features' parts do not fit together")
    kind = RandomFeatures if settings.name == RANDOM else AnchorFeatures
    return kind(settings, embedding, points)
